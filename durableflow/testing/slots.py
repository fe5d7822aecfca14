"""Schedules under the testing kit's clock: each slot fires at its moment (design 10, "Testing kit")."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.db.models import Q, QuerySet

from durableflow.core import registry
from durableflow.engine.firing import fire
from durableflow.models import WorkflowInstance, WorkflowSchedule


def run_slots(using: str, target: datetime, now: Callable[[], datetime], run_until: Callable[[datetime], None]) -> None:
    """Go to ``target`` from slot to slot of the schedules whose workflows are known, and run on the way what is due.

    A slot that waits for an earlier instance (``buffer_one``) is looked at whenever something has run: a cluster does so each
    second, which would be a million looks in a month.
    """
    run_until(now())
    while True:
        for pk in _due(using, now()):
            if not fire(using, pk):
                raise RuntimeError(f"The schedule {pk} is due, but another transaction holds its row.")
        moment = _next_moment(using)
        if moment is None or moment > target:
            break
        run_until(max(moment, now()))
    run_until(target)


def _rows(using: str) -> QuerySet[WorkflowSchedule]:
    names = [name for _, cls in registry.items() for name in cls.options.names]
    rows = WorkflowSchedule._base_manager.using(using)
    return rows.filter(enabled=True, look_at__isnull=False, workflow__in=names)


def _next_moment(using: str) -> datetime | None:
    """The next slot; while one waits also the next moment at which an instance runs."""
    slots = _rows(using).values_list("next_slot", "look_at", "buffered_slot")
    moments = [look_at if waits is None or following is None else following for following, look_at, waits in slots]
    if any(waits is not None for _, _, waits in slots):
        running = WorkflowInstance._base_manager.using(using).filter(wake_at__isnull=False).order_by("wake_at")
        moments += running.values_list("wake_at", flat=True)[:1]
    return min((moment for moment in moments if moment is not None), default=None)


def _due(using: str, now: datetime) -> list[int]:
    rows = _rows(using).filter(Q(look_at__lte=now, buffered_slot__isnull=True) | Q(buffered_slot__isnull=False))
    return list(rows.order_by("look_at", "pk").values_list("pk", flat=True))
