"""How long finished instances are kept, and which of them are due (design 9; reference 14; case LIF-14).

Counted from the last end. ``success`` is for those that are complete or terminated, ``error`` for those that are errored. An
instance's own rule comes before its workflow's ``Meta``, and that before the setting; what one leaves open is taken from the
next. ``Meta`` and the setting count as they are when somebody looks, for old instances too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections
from django.db.models import DateTimeField, ExpressionWrapper, F, Q, QuerySet

from durableflow.core import clock, registry
from durableflow.core.conf import DEFAULT_RETENTION, get_settings
from durableflow.core.durations import parse_duration
from durableflow.core.retries import Retention
from durableflow.core.statuses import FINISHED, STEP_FINISHED, Status
from durableflow.models import StepRecord, WorkflowInstance

SUCCESS: Final = (Status.COMPLETE, Status.TERMINATED)
ENDS: Final = (*SUCCESS, Status.ERRORED)
OWN: Final = Q(retention_success__isnull=False) | Q(retention_error__isnull=False)
INHERITED: Final = Q(retention_success__isnull=True, retention_error__isnull=True)
COLUMNS: Final = (
    "pk",
    "workflow",
    "instance_id",
    "status",
    "finished",
    "retention_success",
    "retention_error",
    "parent_step_id",
)


@dataclass(frozen=True)
class Finished:
    """What decides on an instance: the columns ``COLUMNS``."""

    pk: int
    workflow: str
    instance_id: str
    status: str
    finished: datetime | None
    retention_success: timedelta | None
    retention_error: timedelta | None
    parent_step: int | None

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.workflow}/{self.instance_id}"

    def due(self, now: datetime) -> bool:
        """Whether its time is over. One that has not ended is never due, however old it is."""
        if self.status not in FINISHED or self.finished is None:
            return False
        return now - self.finished >= kept_for(self)


def kept_for(row: Finished | WorkflowInstance) -> timedelta:
    """How long an instance that has ended is kept; ``timedelta.max``: for ever."""
    own = row.retention_success if row.status in SUCCESS else row.retention_error
    return own if own is not None else inherited(row.workflow, row.status)


def inherited(workflow: str, status: str) -> timedelta:
    """How long an instance without a rule of its own is kept after such an end. ``workflow``: the name under which it is stored;
    one that this code does not know has the setting's time."""
    cls = registry.find(workflow)
    general = get_settings().RETENTION.merge(DEFAULT_RETENTION)
    rule = general if cls is None or cls.options.retention is None else cls.options.retention.merge(general)
    return _duration(rule, status)


def _duration(rule: Retention, status: str) -> timedelta:
    given = rule.success if status in SUCCESS else rule.error
    return parse_duration(given, what="retention") if given is not None else timedelta.max


@dataclass(frozen=True)
class Group:
    """Finished rows that one index gives in the order of their ends, and that may be due. ``rows``: without an order."""

    rows: QuerySet[Any]

    def page(self, after: tuple[datetime, int] | None, size: int) -> list[tuple[datetime, int]]:
        """End and key of the first ``size`` of them behind ``after``."""
        rows = self.rows
        if after is not None:
            end, pk = after
            rows = rows.filter(Q(finished__gt=end) | Q(finished=end, pk__gt=pk), finished__gte=end)
        return list(rows.order_by("finished", "pk").values_list("finished", "pk")[:size])


def groups(using: str) -> Iterator[Group]:
    """All rows that may be due: of each workflow and each end those without a rule of their own, then all with one. No row
    whose time is not over is read in the first; of those with a rule of their own the index gives all that have ended."""
    every = WorkflowInstance.objects.using(using).order_by().filter(finished__isnull=False)
    vendor = connections[using].vendor
    for workflow in _names(every.filter(INHERITED)):
        for status in ENDS:
            since = clock.comparable(vendor, -inherited(workflow, status))
            yield Group(every.filter(INHERITED, workflow=workflow, status=status, finished__lte=since))
    now = clock.comparable(vendor)
    over = {
        name: ExpressionWrapper(F("finished") + F(name), output_field=DateTimeField())
        for name in ("retention_success", "retention_error")
    }
    rows = every.filter(OWN).alias(success_over=over["retention_success"], error_over=over["retention_error"])
    yield Group(
        rows.filter(
            Q(status__in=SUCCESS, retention_success__isnull=False, success_over__lte=now)
            | Q(status=Status.ERRORED, retention_error__isnull=False, error_over__lte=now)
            # What it leaves open is looked up when it is looked at.
            | Q(status__in=SUCCESS, retention_success__isnull=True)
            | Q(status=Status.ERRORED, retention_error__isnull=True),
            status__in=ENDS,
        )
    )


def _names(rows: QuerySet[Any]) -> Iterator[str]:
    """The names under which finished rows are stored: a probe of the index for each, however many rows there are."""
    name = ""
    while True:
        found = rows.filter(workflow__gt=name).order_by("workflow").values_list("workflow", flat=True)[:1]
        if not found:
            return
        name = found[0]
        yield name


def awaited(using: str, rows: list[Finished]) -> set[int]:
    """Those whose parent has not taken in yet that they have ended: delivery reads their rows for that (``engine.outcomes``)."""
    steps = {row.parent_step: row.pk for row in rows if row.parent_step is not None}
    waiting = StepRecord.objects.using(using).filter(pk__in=list(steps)).exclude(status__in=sorted(STEP_FINISHED))
    return {steps[pk] for pk in waiting.values_list("pk", flat=True)}


__all__ = ["COLUMNS", "Finished", "Group", "awaited", "groups", "inherited", "kept_for"]
