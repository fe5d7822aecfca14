"""The OpenAPI schema of our endpoints, where the project has mounted them."""

from __future__ import annotations

from typing import Any

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from durableflow.api.base import APP_NAME, ApiView, StrictJsonRenderer
from durableflow.api.docs import documented

SUFFIX = "schema/"


class SchemaView(ApiView, SpectacularAPIView):
    """OpenAPI 3 as YAML or JSON. ``routes``: the URL patterns that it describes."""

    renderer_classes = SpectacularAPIView.renderer_classes  # type: ignore[assignment]
    routes: list[Any] = []
    urlconf = None

    @documented(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The schema, with paths as they are in this project."""
        prefix = request.path_info.removesuffix(SUFFIX).lstrip("/")
        self.patterns = [path(prefix, include((self.routes, APP_NAME)))]
        response: Response = super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]
        return response

    def handle_exception(self, exc: Exception) -> Response:
        """Errors are JSON here too."""
        self.request.accepted_renderer = StrictJsonRenderer()
        self.request.accepted_media_type = StrictJsonRenderer.media_type
        return super().handle_exception(exc)
