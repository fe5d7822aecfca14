"""What is to be undone of a run, how far that is, and what came of it (design 7, "Rollback")."""

from __future__ import annotations

from typing import Any, Final

from django.db import connections
from django.db.models import F, Q, TextField, Value
from django.db.models.functions import Cast

from durableflow.core import clock
from durableflow.core.statuses import STEP_FINISHED, PendingStatus, RollbackStatus, StepKind
from durableflow.models.instance_fields import InstanceFields

HAS_HANDLER: Final = '"rollback":true'
"""In the stored config of a step whose call named a handler, when it first started."""
COMPLETE, FAILED = "complete", "failed"
ALL_UNDONE: Final = '{"outcome":"complete","failed":[]}'
"""The stored outcome of a rollback that has left nothing to do. It stands in the condition of an index."""
NOT_UNDONE: Final = Q(rollback__isnull=False) & ~Q(rollback=Value(ALL_UNDONE, TextField()))
"""Instances that have ended, and of which something could not be undone."""


def undoable(row: InstanceFields) -> Any:
    """The steps of the present run that have a handler and were started: they may have had an effect, whatever became of them
    (case LIF-15). One that ``retry()`` has reset has not started again."""
    steps = row.steps.filter(run_number=row.run_number, kind=StepKind.DO, attempts__gt=0)
    steps = steps.filter(Q(status__in=sorted(STEP_FINISHED)) | Q(attempts__gt=F("attempts_before_retry")))
    return steps.annotate(config_text=Cast("config", TextField())).filter(config_text__contains=HAS_HANDLER)


def underway(row: InstanceFields) -> bool:
    """Whether the present run is being undone, or was: then nothing of it goes forward any more."""
    found: bool = row.steps.filter(run_number=row.run_number).exclude(rollback_status="").exists()
    return found


def begin(row: InstanceFields) -> bool:
    """Note which handlers are to run, and cancel the open waits: whether there is anything to undo. The caller holds the row's
    lock, and changes the status."""
    if not undoable(row).filter(rollback_status="").update(rollback_status=RollbackStatus.PENDING):
        return False
    cancel_waits(row)
    return True


def again(row: InstanceFields) -> list[str]:
    """Let failed handlers run again, with a fresh budget; their attempt numbers go on rising. Their labels, in the order in
    which they will run. The caller holds the row's lock."""
    failed = row.steps.filter(run_number=row.run_number, rollback_status=RollbackStatus.FAILED)
    labels = [step.label for step in failed.order_by("-seq").only("scope", "name", "count")]
    failed.update(
        rollback_status=RollbackStatus.PENDING,
        rollback_error=None,
        rollback_wake_at=None,
        rollback_attempts_before_retry=F("rollback_attempts"),
    )
    return labels


def outcome(row: InstanceFields) -> dict[str, Any]:
    """What ``instance.rollback`` says: ``{"outcome": "complete" | "failed", "failed": [labels]}``. What has not run counts as
    failed: somebody has ended the instance in between."""
    steps = row.steps.filter(run_number=row.run_number).exclude(rollback_status__in=("", RollbackStatus.COMPLETE))
    failed = [step.label for step in steps.order_by("-seq").only("scope", "name", "count")]
    return {"outcome": FAILED if failed else COMPLETE, "failed": failed}


def cancel_waits(row: InstanceFields) -> None:
    """Nobody can answer the open waits of an instance any more (case LIF-03). The caller holds the row's lock."""
    now = clock.expression(connections[row._state.db or "default"].vendor)
    row.pending_events.filter(status=PendingStatus.OPEN).update(status=PendingStatus.CANCELLED, closed=now)
