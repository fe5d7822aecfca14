"""Schedules that a wrong clock has put off (design 9, cases SCH-03, SCH-09): a chore.

A database whose clock was days or years ahead, and is right again, leaves next slots that are as far ahead. Nobody looks at
such a row, and pausing and resuming it would be the only cure.

The row alone does not tell whether the clock was ahead or is behind now, and in the second case a slot that was started would
start again once its instance is purged. What tells is a record of missed slots that have not come yet: to a clock that is
right no slot is missed ahead of its time. The slots of such a record have never been started, so that they may come again. Other
rows are left as they are, and told of.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Final

from django.db.models import QuerySet

from durableflow.core import clock
from durableflow.core.cron import count_slots, last_slots, next_slot
from durableflow.core.transactions import write_transaction
from durableflow.engine import chores
from durableflow.models import SkippedSlots, WorkflowSchedule
from durableflow.models import schedule_verbs as verbs

logger = logging.getLogger("durableflow.engine")

EVERY: Final = timedelta(hours=1)
AHEAD: Final = timedelta(days=1)
"""A clock that was less far ahead, as one with local time for UTC, has put nothing off for longer than that."""
_SECOND: Final = timedelta(seconds=1)
"""Slots are whole minutes."""
_ROW: Final = ("pk", "workflow", "name", "cron", "timezone", "enabled", "next_slot", "buffered_slot", "look_at")


def connect() -> None:
    """Called when the app is ready; no query."""
    chores.register("schedules", EVERY, one_batch)


def one_batch(using: str) -> bool:
    """Look at all schedules that nobody looks at for more than a day. They are read without a lock first: hardly ever is one of
    them wrong."""
    now = clock.read(using)
    found = [row for row in _far(using, now).only(*_ROW).order_by("pk") if _passed(row, now) or _waits(row, now)]
    left = [row for row in found if not _replan(using, row.pk) and _passed(row, now)]
    if left:
        logger.warning(
            "Schedules (%d, among them %s) look past slots that have not come yet: the clock of the database is behind, or it was "
            "ahead when their next slot (%s) was computed. One that should begin at its first slot from now on has to be paused "
            "and resumed.",
            len(left),
            left[0],
            left[0].next_slot,
            extra={"schedules": [row.pk for row in left]},
        )
    return False


def _far(using: str, now: datetime) -> QuerySet[WorkflowSchedule]:
    # With the condition of the index.
    return WorkflowSchedule._base_manager.using(using).filter(enabled=True, look_at__gt=now + AHEAD)


def _passed(row: WorkflowSchedule, now: datetime) -> bool:
    """Whether the row has passed a slot that comes in more than a day."""
    if row.next_slot is None:
        return False
    try:
        return next_slot(row.cron, row.timezone, now + AHEAD) < row.next_slot
    except ValueError:  # a row that was changed past save(): the look at it will tell
        return False


def _waits(row: WorkflowSchedule, now: datetime) -> bool:
    """Whether a slot waits for the end of an instance: such a row is looked at each second."""
    return row.buffered_slot is not None and row.buffered_slot <= now


def _missed(row: WorkflowSchedule, now: datetime, after: datetime) -> bool:
    """Whether the slot ``after`` is recorded as missed. If so, what is recorded of slots ahead is taken back: they come again."""
    ahead = SkippedSlots._base_manager.using(row._state.db).filter(schedule=row.pk, last__gt=now)
    record = ahead.filter(reason=SkippedSlots.Reason.CATCH_UP, slot__lte=after, last__gte=after).first()
    if record is None:
        return False
    over = (row.cron, row.timezone, record.slot - _SECOND, now)
    if record.slot <= now and (number := count_slots(*over)):
        (last,) = last_slots(*over, limit=1)
        ahead.filter(pk=record.pk).update(last=last, number=number)
    ahead.delete()
    return True


def _replan(using: str, pk: int) -> bool:
    """Go back to the first slot from now on, if it was recorded as missed; look at once where a slot waits. False: the row looks
    past slots as before."""
    with write_transaction(using):
        locked = _far(using, now := clock.read(using)).select_for_update(no_key=True, skip_locked=True)
        row = locked.filter(pk=pk).first()
        if row is None:  # somebody has changed it meanwhile, or does
            return True
        after = next_slot(row.cron, row.timezone, now) if _passed(row, now) else None
        again = after is not None and _missed(row, now, after)
        new: dict[str, datetime | None] = {"next_slot": after, "look_at": after} if again else {}
        if _waits(row, now):
            new["look_at"] = now
        elif again:
            new["buffered_slot"] = None  # it comes again
        if new:
            WorkflowSchedule._base_manager.using(using).filter(pk=pk).update(**new)
            verbs.tell(using)
    if again:
        logger.warning(
            "The next slot of the schedule %s was %s, because the clock of the database was ahead. It is %s again.",
            row,
            row.next_slot,
            after,
            extra={"schedule": pk},
        )
    return again


__all__ = ["AHEAD", "EVERY", "connect", "one_batch"]
