"""Lists that stay fast in a table of a million rows: nothing here counts or sorts more than it shows (design 11)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import EmptyResultSet
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import Prefetch, QuerySet
from django.db.models.functions import Substr
from django.http import HttpRequest

from durableflow.admin.badges import badge
from durableflow.admin.filters import AttentionFilter, newest
from durableflow.admin.raw import HINT, with_start
from durableflow.core.statuses import Status
from durableflow.models import PendingEvent

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
else:
    AnyPaginator = Paginator

MOST_COUNTED: Final = 10_000
MOST_PER_STATUS: Final = 999


class BoundedPaginator(AnyPaginator):
    """Counts no further than ``MOST_COUNTED`` rows; filters lead to what lies behind them."""

    @cached_property
    def counted(self) -> int:
        """At most one above the bound."""
        rows: Any = self.object_list
        if not isinstance(rows, QuerySet):
            return len(rows)
        return rows.order_by().values("pk")[: MOST_COUNTED + 1].count()

    @cached_property
    def count(self) -> int:
        """The number of rows that pages are made of."""
        return min(self.counted, MOST_COUNTED)


class BoundedChangeList(ChangeList):
    """A list that knows whether its count is the whole truth, and why it is empty.

    The keys of a page are found before its rows, which an index alone can answer: for whole rows PostgreSQL reads the
    table from its newest row on, in the hope of meeting enough that match.
    """

    def get_results(self, request: HttpRequest) -> None:
        """The rows of the page; a count is told only where it says how many match."""
        super().get_results(request)
        if not self.is_narrowed:
            self.full_result_count = self.result_count
        bottom = self.list_per_page * (self.page_num - 1) if self.multi_page else 0
        top = min(bottom + self.list_per_page, self.result_count)
        rows = self.page_rows(self.page_keys(request, bottom, top))
        self.result_list = rows.order_by(*self.queryset.query.order_by)

    def page_keys(self, request: HttpRequest, bottom: int, top: int) -> list[int]:
        """The keys of the matching rows from ``bottom`` to ``top``, in the order of the list."""
        return list(self.queryset.values_list("pk", flat=True)[bottom:top])

    def page_rows(self, keys: list[int]) -> Any:
        """The rows of ``keys`` as the list shows them, in any order."""
        rows = self.root_queryset.filter(pk__in=keys)
        return rows if rows.query.select_related else self.apply_select_related(rows)

    @property
    def more_than_counted(self) -> bool:
        """Whether there are rows behind the last page."""
        return bool(getattr(self.paginator, "counted", 0) > MOST_COUNTED)

    @property
    def most_counted(self) -> int:
        """The number of rows that the pages reach."""
        return MOST_COUNTED

    @property
    def is_narrowed(self) -> bool:
        """Whether a search or a filter is in force, so that an empty list means "nothing matches"."""
        return bool(self.query or self.has_active_filters)


class InstanceChangeList(BoundedChangeList):
    """The list of instances: without the big columns; with the start of the progress and the open waits of its page."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """The matching rows."""
        return super().get_queryset(request, *args, **kwargs).light()  # type: ignore[attr-defined]

    def page_keys(self, request: HttpRequest, bottom: int, top: int) -> list[int]:
        """Of the rows that need attention, the newest of each kind are found by its own index: all of them would have to
        be put together and sorted first."""
        chosen = self.params.get(AttentionFilter.parameter_name)
        if chosen not in AttentionFilter.options or set(self.queryset.query.order_by) != {"-id"}:
            return super().page_keys(request, bottom, top)
        rest = self.get_queryset(request, exclude_parameters=[AttentionFilter.parameter_name])
        return newest(rest, chosen, request.user, top)[bottom:]

    def page_rows(self, keys: list[int]) -> Any:
        """With what the list shows of error, rollback, progress and waits."""
        waits = PendingEvent.objects.open().order_by("id").only("id", "instance", "name", "kind")
        prefetch = Prefetch("pending_events", queryset=waits, to_attr="waits_now")
        rows = (
            super().page_rows(keys).light().with_not_undone().annotate(error_data_start=Substr("error_data", 1, HINT))
        )
        return with_start(rows, "progress", HINT).prefetch_related(prefetch)


def status_counts(visible: QuerySet[Any], selected: str) -> list[dict[str, Any]]:
    """For each status that has rows: how many there are ("999+" at most), and whether it is the ``selected`` one.

    One statement; each status costs at most a thousand steps through the index on (status, id).
    """
    parts: list[str] = []
    params: list[Any] = []
    for status in Status:
        rows = visible.filter(status=status).order_by().values("pk")[: MOST_PER_STATUS + 1]
        try:
            sql, values = rows.query.get_compiler(rows.db).as_sql()
        except EmptyResultSet:  # nobody's rows
            continue
        parts.append(f"SELECT %s, (SELECT COUNT(*) FROM ({sql}) counted)")  # noqa: S608 - made by the ORM
        params += [status.value, *values]
    if not parts:
        return []
    with connections[visible.db].cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), params)
        found = dict(cursor.fetchall())
    shown = []
    for status in Status:
        number = found.get(status.value, 0)
        if number:
            shown.append(
                {
                    "status": status.value,
                    "badge": badge(status.value, status.label),
                    "number": f"{MOST_PER_STATUS}+" if number > MOST_PER_STATUS else str(number),
                    "selected": selected == status.value,
                }
            )
    return shown
