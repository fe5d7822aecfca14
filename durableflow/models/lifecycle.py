"""Verbs that stop an instance or let it go on (design 2, 9)."""

from __future__ import annotations

from datetime import timedelta

from django.db import connections
from django.db.models import F

from durableflow.core import clock, dispatch
from durableflow.core.aio import async_twin
from durableflow.core.statuses import STEP_FINISHED, PendingStatus, Status, StepKind, StepStatus, Via
from durableflow.models.audit import record, verb
from durableflow.models.instance_fields import InstanceFields, Who
from durableflow.models.limits import release


class LifecycleVerbs(InstanceFields):
    """``terminate`` and ``resume``."""

    class Meta:
        abstract = True

    def terminate(self, *, by: Who = None, reason: str = "", via: str = Via.CODE) -> None:
        """End the instance now, for good (design 9).

        One transaction: status, end, no wake, no lease, no slot, open waits and open steps cancelled, history. A body that runs
        is not interrupted: its checkpoint finds no lease and is dropped. Raises PermissionDenied, InvalidTransition.
        """
        with verb(self, "terminate", by) as row:
            vendor = connections[row._state.db].vendor
            row.status = Status.TERMINATED
            row.finished = clock.expression(vendor)
            row.blocked = row.hold = ""
            row.wake_at = row.lease_token = row.owner = None
            held_slot = row.holds_slot
            row.woken = row.suspect = row.holds_slot = False
            row.save(update_fields=END_FIELDS)
            if held_slot:
                release(row)
            close(row)
            record(row, "workflow_terminated", by=by, via=via, reason=reason)

    def resume(self, *, by: Who = None, reason: str = "", via: str = Via.CODE) -> None:
        """Let a blocked instance try again, usually after a deploy that repaired its code (design 6, "Engine
        failures").

        Everything recorded is kept; nothing that finished runs again. Its clock stood still meanwhile: timers, deadlines
        and ``max_duration`` have what they had left, only ``sleep_until`` keeps its moment. Raises PermissionDenied,
        InvalidTransition.
        """
        with verb(self, "resume", by) as row:
            now = clock.read(row._state.db)
            if row.paused_at is not None:
                _shift(row, now - row.paused_at)
            row.status = Status.QUEUED
            row.blocked = ""
            row.paused_at = None
            row.interruptions = row.give_backs = 0
            row.wake_at = now
            row.save(update_fields=RESUME_FIELDS)
            record(row, "workflow_queued", by=by, via=via, reason=reason, data={"verb": "resume"})
            dispatch.wake(row._state.db)

    aterminate = async_twin(terminate)
    aresume = async_twin(resume)


RESUME_FIELDS = ["status", "blocked", "paused_at", "interruptions", "give_backs", "deadline_at", "wake_at"]
LET_GO_FIELDS = ["lease_token", "owner", "woken", "suspect", "holds_slot", "hold"]
END_FIELDS = ["status", "finished", "blocked", "wake_at", *LET_GO_FIELDS]


def _shift(row: InstanceFields, paused: timedelta) -> None:
    """Move what ends by itself by the time of the pause (design 6, "Pause")."""
    if row.deadline_at is not None:
        row.deadline_at += paused
    steps = row.steps.filter(run_number=row.run_number, wake_at__isnull=False).exclude(kind=StepKind.SLEEP_UNTIL)
    steps.exclude(status__in=sorted(STEP_FINISHED)).update(wake_at=F("wake_at") + paused)
    waits = row.pending_events.filter(status=PendingStatus.OPEN, deadline__isnull=False)
    waits.update(deadline=F("deadline") + paused)


def close(row: InstanceFields) -> None:
    """Cancel what an ended instance leaves open: waits and steps (case LIF-03). The caller holds the row's lock."""
    now = clock.expression(connections[row._state.db or "default"].vendor)
    row.pending_events.filter(status=PendingStatus.OPEN).update(status=PendingStatus.CANCELLED, closed=now)
    row.steps.filter(run_number=row.run_number).exclude(status__in=sorted(STEP_FINISHED)).update(
        status=StepStatus.CANCELLED, finished=now
    )
