"""What a rollback writes and reads: its start, its handlers' attempts, its end (design 7, "Rollback").

Each is one transaction under the fence. None of it is on the plain path, so it is plain ORM.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from durableflow.core import clock, codec, failures
from durableflow.core.statuses import Status
from durableflow.engine.fence import fenced
from durableflow.engine.journal import COMPLETE, FAILED, Identity, Record
from durableflow.engine.lease import Lease
from durableflow.engine.patience import patient
from durableflow.engine.slots import frees_slot
from durableflow.engine.sql import is_postgres
from durableflow.engine.steps import Entry
from durableflow.engine.unwind import AlreadyFinished, LeaseLost
from durableflow.models import StepRecord, WorkflowInstance, undoing
from durableflow.models.audit import record as tell
from durableflow.models.lifecycle import END_FIELDS, close

_BIG: Final = ("config", "raw_output", "error_data", "rollback_error")
ENDED: Final = frozenset({COMPLETE, FAILED})


@dataclass(frozen=True)
class Handler:
    """A step that is to be undone, and how far that is. ``used_before``: attempts that do not count to the present budget;
    ``wake_at``: when the next one may begin."""

    identity: Identity
    status: str
    attempts: int
    used_before: int
    wake_at: datetime | None

    @property
    def ended(self) -> bool:
        """Whether it has run, for good or ill: then it never runs again by itself."""
        return self.status in ENDED


@dataclass(frozen=True)
class Undoing:
    """A rollback as it stands. ``error``: what ended the run, as it is stored; None: somebody has terminated it. ``handlers``:
    in the order in which they run, the step that started last first."""

    error: dict[str, Any] | None
    handlers: list[Handler]


@patient
def begin(lease: Lease, error: dict[str, Any]) -> bool:
    """The run has ended with ``error``: store that and begin to undo it, if there is anything to undo. The lease stays."""
    with fenced(lease):
        row = _light(lease)
        if row.status == Status.ROLLING_BACK:
            return True  # this very write was done, and its answer was lost
        if not undoing.begin(row):
            return False
        row.status, row.error_data = Status.ROLLING_BACK, error
        row.save(update_fields=["status", "error_data"])
        tell(row, "rollback_started", via="engine", data={"error": _shown(error)})
        return True


@patient
def load(lease: Lease, run_number: int) -> Undoing:
    """What is to be undone, and how far that is. Two queries."""
    instances = WorkflowInstance.objects.using(lease.using).filter(pk=lease.pk)
    rows = StepRecord.objects.using(lease.using).filter(instance_id=lease.pk, run_number=run_number)
    rows = rows.exclude(rollback_status="").order_by("-seq").defer(*_BIG)
    return Undoing(
        error=instances.values_list("error_data", flat=True).get(),
        handlers=[
            Handler(
                identity=Identity(row.scope, row.kind, row.name, row.count),
                status=row.rollback_status,
                attempts=row.rollback_attempts,
                used_before=row.rollback_attempts_before_retry or 0,
                wake_at=row.rollback_wake_at,
            )
            for row in rows
        ],
    )


@patient
def write_handler(
    lease: Lease,
    run_number: int,
    record: Record,
    entries: tuple[Entry, ...],
    wake_in: float | None,
    unshaken: bool,
) -> datetime | None:
    """Write how far a handler is, as ``record`` says, with its history; its ``wake_at``.

    One that has ended is never touched, and a write that is repeated after a lost answer finds the state that it has written:
    each write changes status or attempts. ``unshaken``: the instance has made progress. Raises LeaseLost, AlreadyFinished.
    """
    with fenced(lease) as fence:
        wake_at = None if wake_in is None else fence.now + timedelta(seconds=wake_in)
        scope, kind, name, count = record.identity
        rows = StepRecord.objects.using(lease.using).filter(
            instance_id=lease.pk, run_number=run_number, scope=scope, kind=kind, name=name, count=count
        )
        open_rows = rows.exclude(rollback_status__in=sorted(ENDED))
        changed = open_rows.exclude(rollback_status=record.status, rollback_attempts=record.attempts).update(
            rollback_status=record.status,
            rollback_attempts=record.attempts,
            rollback_error=None if record.error is None else codec.loads(record.error),
            rollback_wake_at=wake_at,
        )
        if not changed:
            return _written_before(lease, record, rows.values_list("rollback_status", "rollback_wake_at").first())
        row = _bare(lease, run_number)
        for entry in entries:
            data = entry.data if entry.text is None else codec.loads(entry.text)
            tell(row, f"rollback_{entry.type}", via="engine", kind=kind, step=record.identity.label, data=data)
        if unshaken:
            WorkflowInstance.objects.using(lease.using).filter(pk=lease.pk).update(interruptions=0, give_backs=0)
        return wake_at


def _written_before(lease: Lease, record: Record, found: tuple[str, datetime | None] | None) -> datetime | None:
    if found is None:
        raise LeaseLost(lease.label)  # the instance is gone
    status, wake_at = found
    if status != record.status:
        raise AlreadyFinished(f"{lease.label}: the rollback of {record.identity.label}")
    return wake_at


@patient
@frees_slot
def finish(lease: Lease) -> None:
    """All handlers have run: the instance ends, with the error that ended its run or as terminated, and with what came of the
    rollback."""
    with fenced(lease):
        row = WorkflowInstance.objects.using(lease.using).defer("params", "output", "progress").get(pk=lease.pk)
        error = row.error_data
        row.rollback = undoing.outcome(row)
        row.status = Status.TERMINATED if error is None else Status.ERRORED
        row.finished = clock.expression("postgresql" if is_postgres(lease.using) else "sqlite")
        row.wake_at = row.lease_token = row.owner = None
        row.woken = row.suspect = row.holds_slot = False
        row.interruptions = row.give_backs = 0
        row.hold = ""
        row.save(update_fields=[*END_FIELDS, "rollback", "interruptions", "give_backs"])
        close(row, undo=True)
        failed = row.rollback["failed"]
        tell(
            row,
            "rollback_errored" if failed else "rollback_completed",
            via="engine",
            data={"failed": failed} if failed else None,
        )
        if error is None:
            tell(row, "workflow_terminated", via="engine")
        else:
            tell(row, "workflow_errored", via="engine", data={"error": _shown(error)})


def _light(lease: Lease) -> WorkflowInstance:
    row: WorkflowInstance = WorkflowInstance.objects.using(lease.using).light().get(pk=lease.pk)
    return row


def _bare(lease: Lease, run_number: int) -> WorkflowInstance:
    row = WorkflowInstance(pk=lease.pk, run_number=run_number)
    row._state.db, row._state.adding = lease.using, False
    return row


def _shown(error: Any) -> dict[str, Any]:
    """An error as the history tells it: its traceback stands with the instance."""
    shown = failures.public(error if isinstance(error, dict) else {"type": "Unreadable", "message": str(error)})
    shown.pop("traceback")
    return shown
