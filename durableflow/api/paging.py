"""Pages that neither repeat nor miss a row while rows are added (case SEC-12): cursors over a unique order."""

from __future__ import annotations

from typing import Any, Final

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import BasePagination, CursorPagination
from rest_framework.response import Response

DIGITS: Final = 10


class ByCursor(CursorPagination):
    """No count: counting a million rows takes longer than showing fifty."""

    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 500

    def get_page_size(self, request: Any) -> int | None:
        """How many rows a page has, 500 at most. Raises ValidationError for what is no number, which would be taken for the default."""
        given = request.query_params.get(self.page_size_query_param)
        if given and not (_is_position(given) and len(given) < DIGITS and int(given)):
            text = f"Give a number from 1 to {self.max_page_size}."
            raise ValidationError({self.page_size_query_param: [text]})
        return super().get_page_size(request)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """What the schema says of them, with the sizes that are possible."""
        found: Any = super().get_schema_operation_parameters(view)
        for item in found:
            if item["name"] == self.page_size_query_param:
                item["schema"] = {**item["schema"], "minimum": 1, "maximum": self.max_page_size}
        return list(found)

    def decode_cursor(self, request: Any) -> Any:
        """The cursor of the request. Raises NotFound for one that is none of ours."""
        cursor = super().decode_cursor(request)
        if cursor is not None and not _is_position(cursor.position):
            raise NotFound(self.invalid_cursor_message)
        return cursor


class NewestFirst(ByCursor):
    """Newest rows first."""

    ordering = ("-id",)

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> Any:
        """The rows of the page. Their keys are found first, which an index alone can answer: for whole rows PostgreSQL
        reads the table from its newest row on, in the hope of meeting enough that match."""
        keys = queryset.select_related(None).prefetch_related(None).only("pk")
        page: Any = super().paginate_queryset(keys, request, view)
        found = queryset.in_bulk([row.pk for row in page])
        return [found[row.pk] for row in page if row.pk in found]


class InOrder(ByCursor):
    """The steps of one run, in the order in which they started."""

    ordering = ("seq",)
    page_size = 200


class Whole(BasePagination):
    """Everything on one page, in the form of a page."""

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> Any:
        """All of it."""
        return list(queryset)

    def get_paginated_response(self, data: Any) -> Response:
        """The one page."""
        return Response({"next": None, "previous": None, "results": data})

    def get_paginated_response_schema(self, schema: Any) -> dict[str, Any]:
        """The same form as the pages of a cursor."""
        return CursorPagination().get_paginated_response_schema(schema)


def _is_position(position: Any) -> bool:
    """We order by numbers alone."""
    return position is None or (str(position).isascii() and str(position).isdigit())
