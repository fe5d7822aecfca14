"""Verbs that stop an instance or let it go on (design 2, 9)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import F

from durableflow.core import clock, dispatch
from durableflow.core.aio import async_twin
from durableflow.core.statuses import STEP_FINISHED, Hold, PendingStatus, Status, StepKind, StepStatus, Via
from durableflow.models import family, undoing
from durableflow.models.audit import blocked_in_rollback, record, verb
from durableflow.models.instance_fields import InstanceFields, Who
from durableflow.models.limits import release


class LifecycleVerbs(InstanceFields):
    """``terminate``, ``pause`` and ``resume``."""

    class Meta:
        abstract = True

    def terminate(self, *, rollback: bool = False, by: Who = None, reason: str = "", via: str = Via.CODE) -> None:
        """End the instance now, for good (design 9).

        One transaction: status, end, no wake, no lease, no slot, open waits and open steps cancelled, history. A body that runs
        is not interrupted: its checkpoint finds no lease and is dropped.

        ``rollback``: first undo what it did (design 7, case LIF-17). The status is rolling_back until the handlers of its
        started steps have run, the latest first; a body that runs at this moment may still have its effect after its handler.
        Without a step to undo it ends at once. Raises PermissionDenied, InvalidTransition.
        """
        with verb(self, "terminate", by) as row:
            undone = row.status == Status.PAUSED and undoing.underway(row)
            if rollback and undone:
                raise blocked_in_rollback(row)
            held_slot = row.holds_slot
            row.blocked = row.hold = ""
            row.lease_token = row.owner = None
            row.woken = row.suspect = row.holds_slot = False
            if rollback and undoing.begin(row):
                undo_first(row)
                entry, data = "rollback_started", {"verb": "terminate"}
            else:
                _end(row, undone, undo=rollback)
                entry, data = "workflow_terminated", None
            if held_slot:
                release(row)
            record(row, entry, by=by, via=via, reason=reason, data=data)

    def pause(self, *, by: Who = None, reason: str = "", via: str = Via.CODE) -> None:
        """Let nothing of the instance start until ``resume()`` (design 6, "Pause"; case LIF-05).

        One that is queued or waiting is paused at once. Of one that runs, the bodies in flight finish and are stored, the status
        is ``waiting_for_pause`` meanwhile, and no step after them starts (case LIF-04). While it is paused its clock stands still;
        events and decisions are accepted, and answer its waits after the resume (case EVT-15). Its children go on.

        One transaction under the row's lock. Raises PermissionDenied, InvalidTransition.
        """
        with verb(self, "pause", by) as row:
            if row.status == Status.RUNNING:
                row.status = Status.WAITING_FOR_PAUSE
                row.save(update_fields=["status"])
                record(row, "workflow_waiting_for_pause", by=by, via=via, reason=reason)
                return
            row.status = Status.PAUSED
            row.paused_at = clock.expression(connections[row._state.db or "default"].vendor)
            row.wake_at = None
            if row.hold in (Hold.UNKNOWN_WORKFLOW, Hold.NEWER_CODE):
                row.give_backs = 0  # these were looks of code that could not run it
            if row.hold != Hold.WINDOW:  # its turn may come while it is paused, and must not be forgotten
                row.hold = ""
            row.save(update_fields=PAUSE_FIELDS)
            record(row, "workflow_paused", by=by, via=via, reason=reason)

    def resume(self, *, by: Who = None, reason: str = "", via: str = Via.CODE) -> None:
        """Let a paused instance go on; a blocked one tries again, usually after a deploy that repaired its code (design 6).

        Everything recorded is kept; nothing that finished runs again. Its clock stood still meanwhile: timers, deadlines
        and ``max_duration`` have what they had left, only ``sleep_until`` and ``start_at`` keep their moment (case TIM-09). One
        that was blocked while it was rolling back goes on with that. Of one that is ``waiting_for_pause`` only the request is
        cancelled (case LIF-04).

        One transaction under the row's lock. Raises PermissionDenied, InvalidTransition.
        """
        with verb(self, "resume", by) as row:
            if row.status == Status.WAITING_FOR_PAUSE:
                row.status = Status.RUNNING
                row.save(update_fields=["status"])
                record(row, "workflow_running", by=by, via=via, reason=reason, data={"verb": "resume"})
                return
            now = clock.read(row._state.db)
            if row.paused_at is not None:
                _shift(row, row.paused_at, now)
            undone = undoing.underway(row)
            row.status = Status.ROLLING_BACK if undone else Status.QUEUED
            if row.blocked:
                row.interruptions = row.give_backs = 0
            row.blocked = ""
            row.paused_at = None
            row.wake_at = _due(row, now)
            row.save(update_fields=RESUME_FIELDS)
            entry = "rollback_started" if undone else "workflow_queued"
            record(row, entry, by=by, via=via, reason=reason, data={"verb": "resume"})
            dispatch.wake(row._state.db)

    aterminate = async_twin(terminate)
    apause = async_twin(pause)
    aresume = async_twin(resume)


PAUSE_FIELDS = ["status", "paused_at", "wake_at", "hold", "give_backs"]
RESUME_FIELDS = ["status", "blocked", "paused_at", "interruptions", "give_backs", "deadline_at", "wake_at"]
LET_GO_FIELDS = ["lease_token", "owner", "woken", "suspect", "holds_slot", "hold"]
END_FIELDS = ["status", "finished", "blocked", "paused_at", "wake_at", *LET_GO_FIELDS]


def _end(row: InstanceFields, undone: bool, *, undo: bool) -> None:
    """The instance ends at once. ``undone``: in the middle of a rollback, which a person has given up. ``undo``: it had nothing to
    undo itself, but its children may have."""
    row.status = Status.TERMINATED
    row.finished = clock.expression(connections[row._state.db or "default"].vendor)
    row.wake_at = row.paused_at = None
    fields = END_FIELDS
    if undone:
        row.rollback = undoing.outcome(row)
        fields = [*END_FIELDS, "rollback"]
    row.save(update_fields=fields)
    close(row, undo=undo)


def undo_first(row: InstanceFields) -> None:
    """The instance ends when its handlers have run: it is due at once, for whoever claims it. The caller holds the row's lock,
    has taken its lease, and found something to undo (``undoing.begin``)."""
    row.status = Status.ROLLING_BACK
    row.wake_at = clock.expression(connections[row._state.db or "default"].vendor)
    row.paused_at = None
    row.interruptions = row.give_backs = 0
    row.save(update_fields=[*END_FIELDS, "interruptions", "give_backs"])
    dispatch.wake(str(row._state.db))


def rest(row: InstanceFields, now: datetime) -> None:
    """An instance that was to be paused has ended what it was at: it is paused, and the history says for whom (by name alone: a
    reference would wait for whoever holds that user's row). The caller holds the row's lock, and saves ``status``, ``paused_at``
    and ``wake_at``."""
    row.status, row.paused_at, row.wake_at = Status.PAUSED, now, None
    asked = row.history.filter(type="workflow_waiting_for_pause").order_by("-id").first()
    row.history.create(
        run_number=row.run_number,
        type="workflow_paused",
        actor_name="" if asked is None else asked.actor_name,
        via=Via.ENGINE if asked is None else asked.via,
        reason="" if asked is None else asked.reason,
        at=now,
    )


def _due(row: InstanceFields, now: datetime) -> datetime | None:
    """When a resumed instance needs a worker: None where it still waits for its turn among its siblings."""
    if row.hold == Hold.WINDOW:
        return None
    start = row.starts_at
    return now if start is None or row.execution else max(now, start)


def _shift(row: InstanceFields, since: datetime, now: datetime) -> None:
    """Move what ends by itself by the time of the pause (design 6, "Pause"), from ``since`` to ``now``.

    What was over before the pause stays over: what was sent meanwhile must not answer a wait that had timed out.
    """
    row.deadline_at = moved_deadline(row, since, now)
    shift_timers(row, since, now)


def moved_deadline(row: Any, since: datetime, now: datetime) -> datetime | None:
    """When the whole run has to have ended (``max_duration``), if the instance goes on ``now`` that is paused ``since``."""
    deadline: datetime | None = row.deadline_at
    if deadline is None or row.hold == Hold.WINDOW:  # there its time begins when its turn comes
        return deadline
    if row.starts_at is None or row.execution:
        return deadline + (now - since)  # backwards where the clock was set back meanwhile, as the timers
    late: timedelta = now - max(since, row.starts_at)  # before it was to start its time had not begun
    return deadline + max(late, timedelta())


def shift_timers(row: InstanceFields, since: datetime, now: datetime) -> None:
    """The same for the timers and deadlines of what the present run waits for."""
    paused = now - since
    steps = row.steps.filter(run_number=row.run_number)
    timers = steps.filter(wake_at__gte=since).exclude(status__in=sorted(STEP_FINISHED))
    timers.exclude(kind=StepKind.SLEEP_UNTIL).update(wake_at=F("wake_at") + paused)
    # A date that has passed comes now: in a race it must not beat an answer that was accepted before.
    timers.filter(kind=StepKind.SLEEP_UNTIL, wake_at__lt=now).update(wake_at=now)
    steps.filter(rollback_wake_at__gte=since).update(rollback_wake_at=F("rollback_wake_at") + paused)
    waits = row.pending_events.filter(status=PendingStatus.OPEN, deadline__gte=since)
    waits.update(deadline=F("deadline") + paused)


def close(row: InstanceFields, *, undo: bool = False) -> None:
    """Cancel what an ended instance leaves open (``cancel_open``), and tell its parent and its children (case CHD-04).

    The caller holds the row's lock, and has set the status in which it ends. ``undo``: it was rolled back.
    """
    cancel_open(row)
    family.ended(str(row._state.db), row.pk, row.label, row.status, row.parent_step_id, undo=undo)


def cancel_open(row: InstanceFields) -> None:
    """Cancel the waits and steps that an instance leaves open (case LIF-03). The caller holds the row's lock."""
    undoing.cancel_waits(row)
    now = clock.expression(connections[row._state.db or "default"].vendor)
    row.steps.filter(run_number=row.run_number).exclude(status__in=sorted(STEP_FINISHED)).update(
        status=StepStatus.CANCELLED, finished=now
    )
