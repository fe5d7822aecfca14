"""The OpenAPI schema of our endpoints, where the project has mounted them."""

from __future__ import annotations

import re
from typing import Any

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from durableflow.api.base import APP_NAME, ApiView, StrictJsonRenderer
from durableflow.api.docs import documented

SUFFIX = "schema/"
VERSION = re.compile(r"[\w.-]{1,64}", re.ASCII)


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

    def _get_version_parameter(self, request: Request) -> Any:
        """The version that was asked for, if it can stand in the header that names the file."""
        version = request.query_params.get("version", "")
        return super()._get_version_parameter(request) if VERSION.fullmatch(version) else None  # type: ignore[no-untyped-call]

    def handle_exception(self, exc: Exception) -> Response:
        """Errors are JSON here too."""
        self.request.accepted_renderer = StrictJsonRenderer()
        self.request.accepted_media_type = StrictJsonRenderer.media_type
        return super().handle_exception(exc)
