"""Running an instance again, from its start or from a step (design 9; reference 11; cases LIF-07, LIF-08)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from django.db import connections

from durableflow.core import clock, dispatch, registry
from durableflow.core.aio import async_twin
from durableflow.core.exceptions import InvalidTransition
from durableflow.core.statuses import Hold, SentKind, Status, StepKind, Via
from durableflow.models import family
from durableflow.models.audit import record, verb
from durableflow.models.instance_fields import InstanceFields, Who
from durableflow.models.keeping import CLOSED, HOW, carry_over, close_events, split
from durableflow.models.lifecycle import LET_GO_FIELDS, cancel_open, shift_timers
from durableflow.models.limits import release
from durableflow.models.repair import deadline

if TYPE_CHECKING:
    from durableflow.models.step import StepRecord


class RestartVerbs(InstanceFields):
    """``restart``."""

    class Meta:
        abstract = True

    def restart(
        self,
        *,
        from_step: StepRecord | str | None = None,
        expected_run: int | None = None,
        by: Who = None,
        reason: str = "",
        via: str = Via.CODE,
    ) -> None:
        """Run the instance again as its next run, with the same id and params (design 9, case LIF-08).

        Refused only where it is queued or rolling back. One transaction: the next run number, status queued, due now; lease and
        slot are given back, output, error, progress and the outcome of a rollback are cleared, ``max_duration`` and the retention
        begin anew. A body that runs is not interrupted: its checkpoint finds no lease and is dropped (case LIF-07), but what it
        does outside may happen twice.

        Without ``from_step`` all runs again, with a new seed and so new idempotency keys: waits and steps that are open are
        cancelled, children that the old run still waits for end, those that it has started go on, events that nobody has read
        are closed. Steps, waits and history of the old run stay under its number, and so do its children: an id that ``run`` has given to
        one stays taken. That its parent has ended before does not end it.

        ``from_step``, a record of the present run or its name: what was started before it is kept, with its values, errors and
        keys, and goes on where it had not finished. The step and all that was started after it run again, with new keys, and so
        does every step whose rollback handler has started (design 7). What they have read stays read.

        ``expected_run``: the run that the caller means, as its ``run_number`` was when the caller looked. Where another has begun
        since, nothing is done: a worker may have taken the next run by the time a second click arrives.

        Raises PermissionDenied, InvalidTransition (also for the second of two clicks), ValueError for a step that is not known,
        not of the present run or not the only one of its name, and for a bad reason.
        """
        with verb(self, "restart", by) as row:
            if expected_run is not None and row.run_number != expected_run:
                raise InvalidTransition(
                    f"restart is not possible: {row.label} is in run {row.run_number} by now, and run {expected_run} was meant.",
                    status=Status(row.status).value,
                )
            data: dict[str, Any] = {"verb": "restart", "from_step": None}
            if from_step is None:
                _again(row)
            else:
                step = _step(row, from_step)
                data |= {"from_step": step.label, "kept": _from(row, step)}
            record(row, "workflow_queued", by=by, via=via, reason=reason, data=data)
            dispatch.wake(row._state.db)

    arestart = async_twin(restart)


def _again(row: Any) -> None:
    """Begin the next run with an empty journal. The caller holds the row's lock."""
    family.end_children(row._state.db, [row.pk], HOW, waited_in=row.run_number)
    cancel_open(row)
    close_events(row, row.sent_events.filter(consumed_by="", kind__in=(SentKind.EVENT, SentKind.DECISION)))
    row.seed = uuid.uuid4()
    cls = registry.find(row.workflow)
    if cls is not None:
        row.code_version = cls.options.version
    begin_run(row, "seed", "code_version")


def _from(row: Any, step: StepRecord) -> int:
    """Begin the next run with what was started before ``step``: so many records are kept. The caller holds the row's lock."""
    found = split(row, step)
    since = row.paused_at
    carry_over(row, found, row.run_number + 1)
    begin_run(row)
    if since is not None:  # its clock stood still
        shift_timers(row, since, clock.read(row._state.db))
    return len(found.kept)


def _step(row: Any, step: StepRecord | str) -> StepRecord:
    """The record to restart from, as it is under the row's lock."""
    if isinstance(step, str):
        return find_step(row, step, kind=None)
    model = row.steps.model
    if not isinstance(step, model):
        raise TypeError(f"from_step must be a StepRecord, the name of a step, or None, not {step!r}.")
    found: StepRecord | None = row.steps.filter(pk=step.pk).first()
    if found is None:
        raise ValueError(f"Step {step.label!r} is not a step of {row.label}.")
    if found.run_number != row.run_number:
        raise ValueError(
            f"Step {step.label!r} of {row.label} belongs to run {found.run_number}; the present run is {row.run_number}."
        )
    return found


def begin_run(row: Any, *more: str) -> None:
    """Make a locked instance queued as its next run; ``more``: other columns that have changed."""
    held_slot = row.holds_slot
    family.forget_end(row)
    row.run_number += 1
    row.status = Status.QUEUED
    row.output = row.error_data = row.progress = row.rollback = None
    row.started = row.finished = row.paused_at = row.starts_at = None
    row.blocked = ""
    row.interruptions = row.give_backs = 0
    row.lease_token = row.owner = None
    row.woken = row.suspect = row.holds_slot = False
    row.deadline_at = deadline(row)
    if row.hold != Hold.WINDOW:  # its turn among its siblings has not come
        row.hold = ""
        row.wake_at = clock.expression(connections[row._state.db].vendor)
    row.save(update_fields=[*_BEGUN, *LET_GO_FIELDS, *more])
    if held_slot:
        release(row)


_BEGUN: Final = (
    "run_number", "status", "output", "error_data", "progress", "rollback", "started", "finished", "paused_at", "starts_at", "blocked",
    "interruptions", "give_backs", "deadline_at", "wake_at",
)  # fmt: skip


def find_step(
    instance: InstanceFields, name: str, *, count: int = 1, kind: str | None = "do", scope: str | None = None
) -> StepRecord:
    """The record of the ``count``-th call of this name and kind in the instance's present run (reference 11).

    ``kind``: of ``StepRecord.Kind``; None: whatever it is. ``scope``: of a branch, as ``StepRecord.scope`` has it, '' for the
    root; None: wherever it is. Raises ValueError that says what there is, where there is none or more than one.
    """
    run = instance.steps.filter(run_number=instance.run_number).exclude(kind__in=_NO_TARGETS)
    run = run.order_by("seq").defer("config", "raw_output", "error_data")
    wanted = {"name": name, "count": count}
    wanted |= {field: value for field, value in (("kind", kind), ("scope", scope)) if value is not None}
    found = list(run.filter(**wanted)[: LISTED + 1])
    if len(found) == 1:
        only: StepRecord = found[0]
        return only
    what = f"{'step' if kind is None else kind} {name!r}, number {count}"
    where = f"{instance.label}, run {instance.run_number}" + ("" if scope is None else f", scope {scope!r}")
    if found:
        raise ValueError(f"There are several of {what} in {where}: {_listed(found)}. Say which by its kind and scope.")
    known = list(run.filter(name=name)[: LISTED + 1]) or list(run[: LISTED + 1])
    there = f"There is {_listed(known)}." if known else "The run has no steps yet."
    raise ValueError(f"There is no {what} in {where}. {there}")


LISTED: Final = 10
_NO_TARGETS: Final = (StepKind.NOTIFY, StepKind.PATCH)


def _listed(steps: Sequence[StepRecord]) -> str:
    shown = [f"{step.kind} {step.label!r}" for step in steps[:LISTED]]
    return ", ".join(shown) + (" and more" if len(steps) > LISTED else "")


__all__ = ["CLOSED", "RestartVerbs", "begin_run", "find_step"]
