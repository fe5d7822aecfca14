"""How an executor lets go of an instance: suspend, finish, block, give back (design 4, "Executor exits")."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from durableflow.core import clock, codec, failures, notices
from durableflow.core.statuses import Status
from durableflow.core.transactions import raw_transaction, write_transaction
from durableflow.engine import flushing
from durableflow.engine.fence import Fence, fenced, timeout
from durableflow.engine.lease import Lease
from durableflow.engine.patience import patient
from durableflow.engine.slots import frees_slot
from durableflow.engine.sql import ASYNC_COMMIT, HISTORY, INSTANCE, PENDING, STEP, is_postgres, moment, run
from durableflow.engine.unwind import LeaseLost
from durableflow.models import WorkflowInstance, family
from durableflow.models.audit import record
from durableflow.models.lifecycle import LET_GO_FIELDS, cancel_open, rest

# A rollback goes on as long as it takes, whatever max_duration has been (design 7).
_SUSPENDED: Final = "CASE WHEN status = 'rolling_back' THEN status ELSE 'waiting' END"
_BOUND: Final = "CASE WHEN status = 'rolling_back' THEN NULL ELSE deadline_at END"
_FREE: Final = "lease_token = NULL, owner = NULL, suspect = {false}, woken = {false}, holds_slot = {false}, hold = ''"


@patient
@frees_slot
def suspend(lease: Lease, wake_at: datetime | None) -> float | None:
    """Park the instance until ``wake_at`` (None: until an event); seconds until then, None for ever.

    What arrived while it was running has set ``woken``; then it is due at once, so no wake is lost (case EVT-02). Where a pause is
    asked for it is paused instead, whatever it would wait for: ``resume()`` has it look again.
    """
    while (written := _suspended(lease, wake_at)) is None:
        if _paused(lease):
            return None
    return written[0]


def _suspended(lease: Lease, wake_at: datetime | None) -> tuple[float | None] | None:
    """Seconds until it is due; nothing at all where the row is not what an instance that runs has."""
    if is_postgres(lease.using):
        sql = _suspend_sql(timeout(), clock.postgres("clock"))
        until = None if wake_at is None else wake_at.isoformat()
        rows = run(lease.using, sql, [until, str(lease.pk), str(lease.token)], bare=True)
        if not rows:
            return None
        lease.followed = _true(rows[0][1])
        return (None if rows[0][0] is None else float(rows[0][0]),)
    return _suspend_sqlite(lease, wake_at)


def _paused(lease: Lease) -> bool:
    """Pause the instance, if that is asked for. Raises LeaseLost."""
    with fenced(lease) as fence:
        if fence.status != Status.WAITING_FOR_PAUSE:
            return False
        _let_go(lease, fence)
        return True


@lru_cache(maxsize=16)
def _suspend_sql(timeout: str, now: str) -> str:
    return f"""WITH {timeout} UPDATE {INSTANCE} AS i SET status = {_SUSPENDED}, {_FREE.format(false="false")},
                    wake_at = CASE WHEN i.woken THEN {now} ELSE LEAST(%s::timestamptz, {_BOUND}) END
                FROM t WHERE i.id = %s AND i.lease_token = %s AND i.status IN ('running', 'rolling_back') AND t.v IS NOT NULL
                RETURNING extract(epoch FROM i.wake_at - {now})::float8, {notices.marked_sql(now, "i.")}"""


# Moments are texts of one form: they compare as times do.
_SUSPEND_SQLITE: Final = f"""
    UPDATE {INSTANCE} SET status = {_SUSPENDED}, {_FREE.format(false="0")},
        wake_at = CASE WHEN woken THEN %s ELSE min(COALESCE(%s, {_BOUND}), COALESCE({_BOUND}, %s)) END
    WHERE id = %s AND lease_token = %s AND status IN ('running', 'rolling_back') RETURNING wake_at"""


def _suspend_sqlite(lease: Lease, wake_at: datetime | None) -> tuple[float | None] | None:
    until = None if wake_at is None else clock.sqlite_text(wake_at)
    with raw_transaction(lease.using):
        now = clock.host_now()
        rows = run(lease.using, _SUSPEND_SQLITE, [clock.sqlite_text(now), until, until, lease.pk, lease.token])
    if not rows:
        return None
    wake = moment(rows[0][0])
    return (None if wake is None else (wake - now).total_seconds(),)


@patient
@frees_slot
def complete(lease: Lease, output: str, *, leftovers: bool) -> None:
    """End the instance with its output. ``leftovers``: whether open waits or steps may be there to cancel. Where the thread
    claims next, this COMMIT does not wait for the disk (``engine.flushing``)."""
    _end(lease, Status.COMPLETE, output, None, "workflow_completed", leftovers, later=flushing.allowed())


@patient
@frees_slot
def fail(lease: Lease, error: dict[str, Any], *, leftovers: bool) -> None:
    """End the instance with an error."""
    _end(lease, Status.ERRORED, None, codec.dumps(error, what="error"), "workflow_errored", leftovers)


def _end(lease: Lease, status: str, *args: Any, **kwargs: Any) -> None:
    """End the instance; one that has a parent or may have children tells them in the same transaction (case CHD-04)."""
    if lease.parent_step is None and not lease.children:
        _finish(lease, status, *args, **kwargs)
        return
    with write_transaction(lease.using):
        _finish(lease, status, *args, **kwargs)
        if lease.parent_step is not None:
            family.tell_parent(lease.using, lease.pk, lease.label, status, lease.parent_step)
        if lease.children:
            family.end_children(lease.using, [lease.pk], family.ENDED)


def _finish(
    lease: Lease,
    status: str,
    output: str | None,
    error: str | None,
    entry: str,
    leftovers: bool,
    *,
    later: bool = False,
) -> None:
    shown = None if error is None else _public(error)
    if is_postgres(lease.using):
        sql = _finish_sql(leftovers, later, timeout(), clock.postgres("clock"))
        # As text, with casts in the statement: see engine/steps.py.
        params = [status, output, error, str(lease.pk), str(lease.token), entry, shown]
        rows = run(lease.using, sql, params, bare=True)
        if not rows:
            raise LeaseLost(lease.label)
        # Nothing comes after the end: who follows or waits since this very body must hear of it.
        lease.followed = _true(rows[0][1])
        return
    with write_transaction(lease.using) if leftovers else raw_transaction(lease.using):
        now = clock.sqlite_text(clock.host_now())
        rows = run(lease.using, _FINISH_SQLITE, [status, output, error, now, lease.pk, lease.token])
        if not rows:
            raise LeaseLost(lease.label)
        if leftovers:
            cancel_open(_row(lease, rows[0][0]))
        run(lease.using, _TELL_SQLITE, [lease.pk, rows[0][0], entry, shown, now])


_FINISH_SQLITE: Final = f"""
    UPDATE {INSTANCE} SET status = %s, output = %s, error = %s, finished = %s, wake_at = NULL, interruptions = 0,
        give_backs = 0, {_FREE.format(false="0")} WHERE id = %s AND lease_token = %s RETURNING run_number"""
_TELL_SQLITE: Final = f"""
    INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, data, actor_name, via, reason, at)
    VALUES (%s, %s, %s, '', '', %s, '', 'engine', '', %s)"""


@lru_cache(maxsize=16)
def _finish_sql(leftovers: bool, later: bool, timeout: str, now: str) -> str:
    closing = (
        f""", p AS (UPDATE {PENDING} AS x SET status = 'cancelled', closed = {now} FROM i WHERE x.instance_id = i.id AND x.status = 'open'),
            s AS (UPDATE {STEP} AS x SET status = 'cancelled', finished = {now} FROM i
                  WHERE x.instance_id = i.id AND x.run_number = i.run_number AND x.status IN ('pending', 'started'))"""
        if leftovers
        else ""
    )
    return f"""
        WITH {timeout}, i AS (
            UPDATE {INSTANCE} AS i SET status = %s, output = %s, error = %s, finished = {now}, wake_at = NULL,
                interruptions = 0, give_backs = 0, {_FREE.format(false="false")}
            FROM t WHERE i.id = %s::bigint AND i.lease_token = %s::bigint AND t.v IS NOT NULL
            RETURNING i.id, i.run_number, i.followed_until, i.awaited_until
        ){closing}
        INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, data, actor_name, via, reason, at)
        SELECT id, run_number, %s::text, '', '', %s::text, '', 'engine', '', {now} FROM i
        RETURNING id, (SELECT {notices.marked_sql(now)} FROM i){f", {ASYNC_COMMIT}" if later else ""}"""


def _true(value: Any) -> bool:
    """Whether it is true, as the server's text or as the driver reads it."""
    return value == "t" or value is True


def _public(error: str) -> str:
    shown = failures.public(codec.loads(error))
    shown.pop("traceback")  # it stands with the instance
    return codec.dumps({"error": shown})


def _row(lease: Lease, run_number: int) -> WorkflowInstance:
    row = WorkflowInstance(pk=lease.pk, run_number=run_number)
    row._state.db, row._state.adding = lease.using, False
    return row


@patient
@frees_slot
def block(lease: Lease, reason: str, astray: Sequence[int] = (), *, lost: int | None = None) -> None:
    """Pause the instance for a person: nothing is ended, nothing is lost (design 6, "Engine failures").

    ``astray``: records, by their ``seq``, that need not be met any more. ``lost``: see ``Claim.lost_mark``.
    """
    with fenced(lease):
        row = WorkflowInstance.objects.using(lease.using).light().get(pk=lease.pk)
        row.status, row.blocked = Status.PAUSED, failures.clean(reason)
        row.paused_at = clock.expression("postgresql" if is_postgres(lease.using) else "sqlite")
        row.wake_at = row.lease_token = None
        row.owner = lost
        row.woken = row.suspect = row.holds_slot = False
        row.hold = ""
        row.save(update_fields=["status", "blocked", "paused_at", "wake_at", *LET_GO_FIELDS])
        if astray:
            row.steps.filter(run_number=row.run_number, seq__in=astray).update(freed=True)
        record(row, "workflow_paused", via="engine", data={"blocked": row.blocked})


@patient
@frees_slot
def give_back(lease: Lease, delay: timedelta = timedelta(), *, count: bool = False, lost: int | None = None) -> bool:
    """Make the instance due again after ``delay``; whether it is due at all.

    The row decides: one that was running is queued, one for which a pause is asked is paused, and one that is rolling back
    stays so. ``count``: this may not go on for ever. ``lost``: see ``Claim.lost_mark``.
    """
    with fenced(lease) as fence:
        return _let_go(lease, fence, delay, count=count, lost=lost).wake_at is not None


def _let_go(
    lease: Lease, fence: Fence, delay: timedelta = timedelta(), *, count: bool = False, lost: int | None = None
) -> WorkflowInstance:
    row: WorkflowInstance = WorkflowInstance.objects.using(lease.using).light().get(pk=lease.pk)
    row.lease_token, row.owner = None, lost
    row.woken = row.suspect = row.holds_slot = False
    row.hold = ""
    row.give_backs += int(count)
    row.wake_at = fence.now + delay
    if row.status == Status.RUNNING:
        row.status = Status.QUEUED
    if row.status == Status.WAITING_FOR_PAUSE:
        rest(row, fence.now)
        notices.give_all(lease.using, [row])  # also to those who wait for rest alone
    row.save(update_fields=["status", "wake_at", "paused_at", "give_backs", *LET_GO_FIELDS])
    return row


@patient
def take_woken(lease: Lease) -> bool:
    """Whether something has arrived for the instance since it was claimed or this was last asked. Takes no lock where
    nothing has."""
    mine = "id = %s AND lease_token = %s AND woken"
    if not run(lease.using, f"SELECT 1 FROM {INSTANCE} WHERE {mine}", [lease.pk, lease.token]):
        return False
    false = "false" if is_postgres(lease.using) else "0"
    with raw_transaction(lease.using):
        return bool(
            run(
                lease.using, f"UPDATE {INSTANCE} SET woken = {false} WHERE {mine} RETURNING id", [lease.pk, lease.token]
            )
        )


@patient
def set_progress(lease: Lease, text: str) -> None:
    """Store the progress that is shown outside."""
    with fenced(lease):
        run(lease.using, f"UPDATE {INSTANCE} SET progress = %s WHERE id = %s", [text, lease.pk])
