"""Ending the children of parents that have ended: a part of delivery (design 7, case CHD-04).

The parent's end has left each of them a message. Whoever delivers ends them, many in a transaction, and so their own children
in their turn; a crash in between leaves the messages of the others for the next look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final

from django.db import OperationalError, connections

from durableflow.core import clock, notices
from durableflow.core.outages import locked
from durableflow.core.statuses import (
    FINISHED,
    STEP_FINISHED,
    PendingStatus,
    SentKind,
    Status,
    StepKind,
    StepStatus,
    Via,
)
from durableflow.core.transactions import write_transaction
from durableflow.engine.inbox import undelivered
from durableflow.engine.slots import PATIENCE
from durableflow.engine.sql import INSTANCE, SENT, STEP, any_of, is_postgres, run
from durableflow.models import HistoryEntry, PendingEvent, StepRecord, WorkflowInstance, family, limits, undoing
from durableflow.models.audit import record
from durableflow.models.lifecycle import undo_first

DEEPEST: Final = 100
"""Generations that one look ends."""
AT_ONCE: Final = 200
"""Instances that one transaction ends."""
# One that is rolling back ends by itself.
OPEN: Final = frozenset(Status) - FINISHED - {Status.ROLLING_BACK}


def end_orphans(using: str, among: Collection[int]) -> bool:
    """End those of these instances that have been told to end, and all that follows from it; True if somebody holds one of
    them, so that a look in 20 ms is due."""
    held = False
    generation = _told(using, among)
    for _ in range(DEEPEST):
        if not generation:
            break
        ended: list[int] = []
        for start in range(0, len(generation), AT_ONCE):
            some, others = _end(using, generation[start : start + AT_ONCE])
            ended += some
            held |= others
        generation = _told(using, _children(using, ended))
    return held


def _told(using: str, instances: Collection[int]) -> list[int]:
    """Those that have an undelivered message of their parent's end, ascending."""
    if not instances:
        return []
    among, params = any_of(using, "instance_id", instances)
    sql = f"""SELECT DISTINCT instance_id FROM {SENT}
        WHERE {among} AND {undelivered(using)} AND kind = '{SentKind.PARENT.value}' ORDER BY instance_id"""
    return [pk for (pk,) in run(using, sql, params)]


def _children(using: str, instances: Collection[int]) -> list[int]:
    if not instances:
        return []
    among, params = any_of(using, "s.instance_id", instances)
    sql = f"""SELECT c.id FROM {STEP} AS s JOIN {INSTANCE} AS c ON c.parent_step_id = s.id
        WHERE {among} AND s.kind = '{StepKind.CHILD.value}' AND c.finished IS NULL"""
    return [pk for (pk,) in run(using, sql, params)]


def _end(using: str, pks: Sequence[int]) -> tuple[list[int], bool]:
    """Which of them have ended now, and whether somebody holds others."""
    try:
        with write_transaction(using):
            if is_postgres(using):
                run(using, f"SELECT set_config('lock_timeout', '{PATIENCE}', true)")
            wanted = WorkflowInstance.objects.using(using).filter(pk__in=pks)
            limits.lock_slots_of(wanted)
            rows = list(wanted.order_by("pk").select_for_update(no_key=True, skip_locked=True).light())
            reasons, undo = _reasons(using, [row.pk for row in rows])
            spared = _wanted_again(using, rows)
            ending = [row for row in rows if row.pk in reasons and row.pk not in spared and row.status in OPEN]
            slots = Counter(row.concurrency_key for row in ending if row.holds_slot)
            undone = {row.pk for row in ending if row.pk in undo and undoing.begin(row)}
            ended = [row for row in ending if row.pk not in undone]
            _terminate(using, ended, reasons, undo)
            for row in ending:
                if row.pk in undone:
                    _roll_back(row, reasons[row.pk])
            for key, count in sorted(slots.items()):
                limits.free(using, INSTANCE, key, count)
            _delivered(using, list(reasons))
            notices.give_all(using, [row for row in rows if row.pk in spared])  # nothing is on its way to it any more
            free = len(rows) < len(pks) and wanted.exclude(pk__in=[row.pk for row in rows]).exists()
            return [row.pk for row in ended], free
    except OperationalError as error:
        if not locked(error) or connections[using].in_atomic_block:
            raise
        return [], True


def _reasons(using: str, pks: Sequence[int]) -> tuple[dict[int, str], set[int]]:
    """Why each of them is to end, and which are to undo first what they have done; another look may have ended some meanwhile."""
    among, params = any_of(using, "instance_id", pks)
    sql = f"""SELECT instance_id, reason, type FROM {SENT}
        WHERE {among} AND {undelivered(using)} AND kind = '{SentKind.PARENT.value}' ORDER BY id DESC"""
    told = run(using, sql, params)
    return {pk: reason for pk, reason, _type in told}, {pk for pk, _reason, type in told if type == family.UNDO}


def _wanted_again(using: str, rows: Sequence[Any]) -> set[int]:
    """Those whose parent has been retried in the meantime, and waits for them once more."""
    steps = {row.parent_step_id: row.pk for row in rows if row.parent_step_id is not None}
    waiting = StepRecord.objects.using(using).filter(pk__in=list(steps), status=StepStatus.PENDING)
    waiting = waiting.exclude(instance__status__in=sorted(FINISHED))
    return {steps[pk] for pk in waiting.values_list("pk", flat=True)}


def _roll_back(row: Any, reason: str) -> None:
    """What ``terminate(rollback=True)`` does: it ends when its handlers have run."""
    row.blocked = row.hold = ""
    row.lease_token = row.owner = None
    row.woken = row.suspect = row.holds_slot = False
    undo_first(row)
    record(row, "rollback_started", via=Via.ENGINE, reason=reason, data={"verb": "terminate"})


def _terminate(using: str, rows: Sequence[Any], reasons: dict[int, str], undo: set[int]) -> None:
    """What ``terminate()`` does to one instance, for many. Their parents wait for none of them. ``undo``: those whose children
    are to undo what they have done."""
    if not rows:
        return
    pks = [row.pk for row in rows]
    now = clock.read(using)
    instances = WorkflowInstance.objects.using(using).filter(pk__in=pks)
    instances.update(
        status=Status.TERMINATED, finished=now, blocked="", hold="", wake_at=None, paused_at=None, lease_token=None, owner=None,
        woken=False, suspect=False, holds_slot=False,
    )  # fmt: skip
    for row in rows:
        if row.status == Status.PAUSED and undoing.underway(row):
            instances.filter(pk=row.pk).update(rollback=undoing.outcome(row))
    waits = PendingEvent.objects.using(using).filter(instance__in=pks, status=PendingStatus.OPEN)
    waits.update(status=PendingStatus.CANCELLED, closed=now)
    steps = StepRecord.objects.using(using).filter(instance__in=pks).exclude(status__in=sorted(STEP_FINISHED))
    steps.update(status=StepStatus.CANCELLED, finished=now)
    HistoryEntry.objects.using(using).bulk_create(
        HistoryEntry(
            instance_id=row.pk,
            run_number=row.run_number,
            type="workflow_terminated",
            via=Via.ENGINE,
            reason=reasons[row.pk],
            at=now,
        )
        for row in rows
    )
    notices.give_all(using, rows)
    family.end_children(using, [pk for pk in pks if pk not in undo], "has ended")
    family.end_children(using, [pk for pk in pks if pk in undo], "has ended", undo=True)


def _delivered(using: str, pks: Sequence[int]) -> None:
    if pks:
        among, params = any_of(using, "instance_id", pks)
        sql = f"UPDATE {SENT} SET delivered = true WHERE {among} AND {undelivered(using)} AND kind = '{SentKind.PARENT.value}'"
        run(using, sql, params)
