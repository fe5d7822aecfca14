"""django-filter for our views, without its HTML."""

from __future__ import annotations

from typing import Any

from django_filters.rest_framework import DjangoFilterBackend  # type: ignore[import-untyped]


class QueryFilter(DjangoFilterBackend):  # type: ignore[misc]
    """Filters by query parameters; a value that no filter can mean is a 400."""

    raise_exception = True

    def to_html(self, request: Any, queryset: Any, view: Any) -> str:
        """There is no browsable API here."""
        return ""
