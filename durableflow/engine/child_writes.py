"""Starting children, starting them again after ``retry()``, giving one up: each one fenced transaction (design 7)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from durableflow.authoring.context import derive
from durableflow.core import codec, failures
from durableflow.core.exceptions import InvalidTransition, WorkflowTimeout
from durableflow.core.statuses import FINISHED, STEP_FINISHED, SentKind, Status, Via
from durableflow.engine import child_rows as rows
from durableflow.engine.child_rows import Latest, Stored
from durableflow.engine.delivery import deliver_own
from durableflow.engine.fence import Fence, fenced
from durableflow.engine.journal import COMPLETE, FAILED, Identity, Record
from durableflow.engine.lease import Claim, Lease
from durableflow.engine.outcomes import fill
from durableflow.engine.patience import patient
from durableflow.engine.sql import SENT, STEP, now_of, run, stored
from durableflow.models import WorkflowInstance, family
from durableflow.models.child_creation import Plan, insert_children

SOME: Final = 50
"""Children that one transaction sets going again."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One child that a call starts. ``waited``: the parent waits for it, for at most ``timeout``."""

    plan: Plan
    waited: bool
    timeout: timedelta | None = None
    on_parent_end: str = family.TERMINATE


@patient
def start(lease: Lease, claim: Claim, record: Record, start: Start) -> None:
    """Write the record and the child, both or neither (case CHD-03); of a child that nobody waits for the record is finished
    by that. Raises InstanceAlreadyExists; then nothing is written."""
    with fenced(lease) as fence:
        found = rows.read(lease, claim, record.identity)
        if found is not None and not found.reset:
            return  # by this very write, whose answer was lost
        row = start.plan.row
        if start.waited:
            record.wake_at = None if start.timeout is None else fence.now + start.timeout
            pk = rows.insert(lease, claim, record, fence.now)
        else:
            pk = rows.insert(lease, claim, record, fence.now, status=COMPLETE, output=codec.dumps(row.instance_id))
            rows.calm(lease, claim)
        insert_children(lease.using, lease.pk, [start.plan], [pk], fence.now, on_parent_end=start.on_parent_end)
        data = {"workflow": row.workflow, "instance_id": row.instance_id}
        rows.tell(lease, claim, record.identity, "child_started", data)


@dataclass(frozen=True, kw_only=True)
class Join:
    """The children of one ``run_workflows``. ``window``: so many of them may be unfinished at once, None: all."""

    record: Record
    children: Sequence[Record]
    plans: Sequence[Plan]
    window: int | None


@patient
def start_all(lease: Lease, claim: Claim, join: Join) -> None:
    """Write the join, the records of its children and the children. Raises InstanceAlreadyExists; then nothing is written."""
    with fenced(lease) as fence:
        found = rows.read(lease, claim, join.record.identity)
        if found is not None and not found.reset:
            return
        count = len(join.children)
        room = count if join.window is None else min(join.window, count)
        pk = rows.insert(lease, claim, join.record, fence.now, attempts=room, remaining=count)
        for child in join.children:
            child.config = codec.dumps({"as": "child", "join": pk})
        steps = rows.insert_all(lease, claim, join.children, fence.now)
        insert_children(lease.using, lease.pk, join.plans, steps, fence.now, on_parent_end=family.TERMINATE, room=room)
        data = {"workflow": join.plans[0].row.workflow, "children": count}
        rows.tell(lease, claim, join.record.identity, "child_started", data)


@patient
def read(lease: Lease, claim: Claim, identity: Identity) -> Stored | None:
    """The record of a child or a join as it is stored now."""
    return rows.read(lease, claim, identity)


@patient
def read_all(lease: Lease, claim: Claim, scope: str, name: str) -> dict[int, Stored]:
    """The records of a join's children as they are stored now, by their position."""
    return rows.read_all(lease, claim, scope, name)


@patient
def take_up(lease: Lease, claim: Claim, record: Record, plan: Plan, timeout: timedelta | None) -> Stored:
    """See to a child that ``retry()`` of the parent wants anew, and to what its end may have become meanwhile.

    One that has failed is retried itself: all that it has done is kept. One that was terminated, deleted or rolled back is
    started anew. One that is complete, or that somebody has set going again, is taken as it is. Raises InstanceAlreadyExists.
    """
    with fenced(lease) as fence:
        found = _stored(lease, claim, record.identity)
        if found.reset:
            wake_at = None if timeout is None else fence.now + timeout
            sql = f"UPDATE {STEP} SET attempts = attempts + 1, wake_at = %s WHERE id = %s"
            run(lease.using, sql, [stored(lease.using, wake_at), found.pk])
            _go_on(lease, claim, fence, [(plan, found.pk)])
            deliver_own(lease)
            found = _stored(lease, claim, record.identity)
        return found


@patient
def take_up_some(lease: Lease, claim: Claim, join: Join) -> bool:
    """The same for the next of those children of a join that ``retry()`` wants anew (``join.children`` and ``join.plans`` are
    theirs), ``SOME`` in a transaction, so that nobody waits long for this one's row; whether there were any."""
    with fenced(lease) as fence:
        found = _stored(lease, claim, join.record.identity)
        first = join.children[0].identity
        reset = rows.reset_of(lease, claim, first.scope, first.name)
        wanted = [
            (plan, reset[child.identity.count])
            for child, plan in zip(join.children, join.plans, strict=True)
            if child.identity.count in reset
        ][:SOME]
        if not wanted:
            return False
        sql = f"UPDATE {STEP} SET status = 'pending', error = NULL, finished = NULL, attempts_before_retry = 0 WHERE id = %s"
        run(lease.using, sql, [found.pk])
        for _plan, pk in wanted:
            run(lease.using, f"UPDATE {STEP} SET attempts = attempts + 1 WHERE id = %s", [pk])
        _go_on(lease, claim, fence, wanted, join)
        rows.recount(lease, claim, found.pk, first.scope, first.name)
        deliver_own(lease)  # what has ended meanwhile makes room
        fill(lease.using, found.pk)
        rows.recount(lease, claim, found.pk, first.scope, first.name)
        return True


def _go_on(
    lease: Lease, claim: Claim, fence: Fence, wanted: Sequence[tuple[Plan, int]], join: Join | None = None
) -> None:
    """Retry, start or take over the children of these records, whose attempt is counted already."""
    latest = rows.latest(lease.using, [pk for _plan, pk in wanted])
    new: list[tuple[Plan, int]] = []
    for plan, pk in wanted:
        child = latest.get(pk)
        if child is None or child.over or (child.status == Status.ERRORED and not _retry(lease, child)):
            if child is not None and child.undone:
                # The old keys stand for what was undone: with them a payment service would answer with the refunded charge.
                plan.row.seed = UUID(bytes=derive("child seed", plan.row.seed, child.pk)[:16], version=4)
            new.append((plan, pk))
        elif child.status == Status.COMPLETE:
            family.tell_parent(lease.using, child.pk, f"{child.workflow}/{child.instance_id}", child.status, pk)
    if new:
        # Of a join with a window all are parked at first: those that have waited before go first (``outcomes.fill``).
        room = 0 if join is not None and join.window is not None else None
        plans, steps = [plan for plan, _ in new], [pk for _, pk in new]
        insert_children(lease.using, lease.pk, plans, steps, fence.now, on_parent_end=family.TERMINATE, room=room)


def _retry(lease: Lease, child: Latest) -> bool:
    """Let a child that has failed go on; False if it cannot."""
    row: Any = WorkflowInstance.objects.using(lease.using).light().get(pk=child.pk)
    with suppress(InvalidTransition):  # somebody has just set it going again
        row.retry(via=Via.ENGINE, reason=f"Its parent {lease.label} was retried.")
        return True
    row.refresh_from_db(fields=["status"])
    return row.status not in (Status.ERRORED, Status.TERMINATED)


@patient
def give_up(lease: Lease, claim: Claim, record: Record) -> Stored:
    """The time of a child is over: the record fails, and the child is told to end, unless it has ended already (then that
    counts) or the moment has not come by the database's clock."""
    with fenced(lease) as fence:
        deliver_own(lease)
        found = _stored(lease, claim, record.identity)
        if found.status != "pending" or found.wake_at is None or found.wake_at > fence.now:
            return found
        expire(lease, claim, record, found, fence.now)
        return _stored(lease, claim, record.identity)


def settled_at(lease: Lease, claim: Claim, record: Record, now: datetime) -> datetime | None:
    """When the call of a child was decided: the child had ended, or its time was over; None: neither. For a transaction that has
    the instance's row, and has delivered what was sent to it."""
    found = _stored(lease, claim, record.identity)
    if found.status in STEP_FINISHED:
        return found.finished
    return found.wake_at if found.wake_at is not None and found.wake_at <= now else None


def expire(lease: Lease, claim: Claim, record: Record, found: Stored, now: datetime) -> None:
    """Let the call of a child whose time is over fail, and tell the child to end. A part of a fenced transaction."""
    child = rows.latest(lease.using, [found.pk]).get(found.pk)
    name = "its child" if child is None else f"{child.workflow}/{child.instance_id}"
    error = WorkflowTimeout(
        f"{claim.label}: {name}, started by {record.identity.label!r}, did not finish by "
        f"{found.wake_at:%Y-%m-%d %H:%M:%S %Z} (timeout)."
    )
    described = failures.describe(error, step=record.identity.label)
    run(
        lease.using,
        f"UPDATE {STEP} SET status = '{FAILED}', error = %s, finished = %s, wake_at = NULL, token = %s WHERE id = %s",
        [codec.dumps(described), stored(lease.using, now), lease.token, found.pk],
    )
    if child is not None and child.status not in FINISHED:
        _end(lease, child)
    rows.calm(lease, claim)
    rows.tell(lease, claim, record.identity, "step_errored", {"error": failures.public(described)})


def cancel(lease: Lease, claim: Claim, record: Record, now: datetime) -> None:
    """Wait for a child no longer: its record is cancelled, and it is told to end. A part of a fenced transaction."""
    found = rows.read(lease, claim, record.identity)
    if found is None or found.status != "pending":
        return
    sql = f"UPDATE {STEP} SET status = 'cancelled', finished = %s, wake_at = NULL, token = %s WHERE id = %s"
    run(lease.using, sql, [stored(lease.using, now), lease.token, found.pk])
    child = rows.latest(lease.using, [found.pk]).get(found.pk)
    if child is not None and child.status not in FINISHED:
        _end(lease, child)


def _end(lease: Lease, child: Latest) -> None:
    """Tell one child to end."""
    now, at = now_of(lease.using)
    sql = f"""INSERT INTO {SENT} (instance_id, run_number, kind, type, payload, sent_by_name, via, reason, sent_at, dedupe_key, delivered,
                  consumed_by) VALUES (%s, 1, '{SentKind.PARENT.value}', '', NULL, '', 'engine', %s, {now}, '', false, '')"""
    run(lease.using, sql, [child.pk, f"Its parent {lease.label} waits for it no longer.", *at])


def _stored(lease: Lease, claim: Claim, identity: Identity) -> Stored:
    found = rows.read(lease, claim, identity)
    if found is None:
        raise RuntimeError(f"{claim.label}: the record of {identity.label!r} is gone.")
    return found
