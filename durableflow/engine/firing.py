"""One look at one schedule that is due: start its slots, record those that are skipped, move on (design 9; cases SCH-03, SCH-04,
SCH-07, SCH-08).

One transaction under the row's lock. Each slot is considered once, since ``next_slot`` only moves forward; what makes sure of one
instance per slot whatever happens is the unique (schedule, slot), and the instance's id, which is derived from both.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import Error, OperationalError, connections
from django.db.models import Q, QuerySet

from durableflow.core import clock, registry
from durableflow.core.cron import next_slot
from durableflow.core.exceptions import CodecError, LimitExceeded
from durableflow.core.fields import Unreadable
from durableflow.core.outages import locked, passes
from durableflow.core.schedules import check_catch_up, check_overlap, check_schedule_name
from durableflow.core.statuses import ACTIVE, Trigger, Via
from durableflow.core.transactions import write_transaction
from durableflow.engine.slotplan import Run, plan
from durableflow.engine.sql import is_postgres, run
from durableflow.models import SkippedSlots, WorkflowInstance, WorkflowSchedule
from durableflow.models.creation import insert

logger = logging.getLogger("durableflow.engine")

BUFFERED_EVERY: Final = timedelta(seconds=1)
"""Between two looks whether the instance has ended for which a slot waits."""
PATIENCE: Final = "1s"
"""How long a slot waits for a lock."""
SKIPS_KEPT: Final = timedelta(days=90)
MAX_PROBLEM: Final = 2_000
"""Characters."""
Reason = SkippedSlots.Reason


def slot_id(name: str, slot: datetime) -> str:
    """The id of the instance of this slot: ``nightly-20261130T020000Z``."""
    return f"{name}-{slot.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def fire(using: str, pk: int) -> bool:
    """Look at the schedule ``pk`` if it is due, or a slot of it waits, and nobody else does; whether it was.

    What is wrong with one row is told in its ``problem``, and it is not looked at again until it is saved: it must not keep the
    others from firing (case SCH-05). Raises ``django.db`` errors that pass by themselves.
    """
    try:
        return _fire(using, pk)
    except Exception as error:
        if isinstance(error, OperationalError) and locked(error):
            return False  # somebody's transaction has just taken the id of the slot
        if isinstance(error, Error) and passes(error):
            raise
        logger.exception("Schedule %d cannot fire", pk, extra={"schedule": pk})
        _give_up(using, pk, f"{type(error).__name__}: {error}")
        return True


def _fire(using: str, pk: int) -> bool:
    with write_transaction(using):
        if is_postgres(using):
            run(using, f"SELECT set_config('lock_timeout', '{PATIENCE}', true)")
        is_due = Q(look_at__lte=clock.comparable(connections[using].vendor)) | Q(buffered_slot__isnull=False)
        due = _rows(using).filter(is_due, pk=pk, enabled=True, look_at__isnull=False)
        row = due.select_for_update(no_key=True, skip_locked=True).first()
        cls = None if row is None else registry.find(row.workflow)
        if row is None or cls is None:  # by other code, that knows it
            return False
        check_schedule_name(row.name)
        check_overlap(row.overlap)
        check_catch_up(row.catch_up)
        if isinstance(row.params, Unreadable):
            raise ValueError(f"Its params cannot be read: {row.params.reason}")
        _Look(using, row, cls, clock.read(using)).look()
        return True


def _give_up(using: str, pk: int, problem: str) -> None:
    with write_transaction(using):
        values = {"problem": problem[:MAX_PROBLEM].replace("\0", ""), "look_at": None}
        _rows(using).filter(pk=pk, look_at__isnull=False).update(**values)


def _rows(using: str) -> QuerySet[WorkflowSchedule]:
    return WorkflowSchedule._base_manager.using(using)


@dataclass
class _Look:
    """The look at one locked row."""

    using: str
    row: WorkflowSchedule
    cls: type[Any]
    now: datetime

    def look(self) -> None:
        row = self.row
        found = plan(row.cron, row.timezone, row.catch_up, row.next_slot, self.now)
        waits: datetime | None = row.buffered_slot
        if waits is not None and (row.overlap == WorkflowSchedule.Overlap.ALLOW or not self._running()):
            self._start(waits)
            waits = None
        if found.left is not None:
            self._skip(found.left, Reason.CATCH_UP)
        for slot in found.start:
            waits = self._consider(slot, waits)
        look_at = found.next_slot if waits is None else min(found.next_slot, self.now + BUFFERED_EVERY)
        _rows(self.using).filter(pk=row.pk).update(
            next_slot=found.next_slot, buffered_slot=waits, look_at=look_at, problem=""
        )

    def _consider(self, slot: datetime, waits: datetime | None) -> datetime | None:
        """Start a slot unless the overlap says no; gives the slot that waits then."""
        if self.row.overlap == WorkflowSchedule.Overlap.ALLOW or not (running := self._running()):
            self._start(slot)
        elif self.row.overlap == WorkflowSchedule.Overlap.SKIP:
            self._skip(Run(slot, slot, 1), Reason.OVERLAP, f"{running} had not ended.")
        elif waits is None:
            return slot
        else:
            self._skip(Run(slot, slot, 1), Reason.BUFFER_FULL, f"The slot of {waits:%Y-%m-%d %H:%M} UTC was waiting.")
        return waits

    def _running(self) -> str:
        """An instance that has not ended: of this schedule, or of its workflow and started by hand; '' if there is none. One that
        waits or is paused has not ended."""
        by_hand = Q(schedule__isnull=True) & ~Q(trigger__in=(Trigger.SCHEDULE, Trigger.PARENT))
        rows = WorkflowInstance._base_manager.using(self.using).filter(
            Q(schedule=self.row.pk) | by_hand, workflow__in=self.cls.options.names, status__in=sorted(ACTIVE)
        )
        found = rows.order_by().values_list("workflow", "instance_id").first()
        return "" if found is None else "/".join(found)

    def _start(self, slot: datetime) -> None:
        row = self.row
        try:
            new = self.cls.planned(
                row.params,
                instance_id=slot_id(row.name, slot),
                trigger=Trigger.SCHEDULE,
                via=Via.ENGINE,
                schedule=row,
                scheduled_for=slot,
                cron=row.cron,
            )
            instance = insert(new)
        except (ValueError, TypeError, CodecError, LimitExceeded) as error:
            logger.warning("Schedule %s could not start the slot %s: %s", row, slot, error, extra={"schedule": row.pk})
            self._skip(Run(slot, slot, 1), Reason.REFUSED, str(error))
            return
        if instance is None:  # its id is taken: somebody has started this slot
            logger.info("Schedule %s: the slot %s was started before.", row, slot, extra={"schedule": row.pk})

    def _skip(self, left: Run, reason: str, detail: str = "") -> None:
        """Record slots that start nothing: with the row before, if they follow on it for the same reason."""
        rows = SkippedSlots._base_manager.using(self.using).filter(schedule=self.row.pk)
        before = rows.order_by("-slot").first()  # they rise
        if before is not None and (before.reason, before.detail) == (reason, detail) and self._follows(before, left):
            rows.filter(pk=before.pk).update(last=left.last, number=before.number + left.number, at=self.now)
            return
        rows.filter(slot__lt=self.now - SKIPS_KEPT, last__lt=self.now - SKIPS_KEPT).delete()
        skipped = SkippedSlots(
            schedule=self.row,
            slot=left.first,
            last=left.last,
            number=left.number,
            reason=reason,
            detail=detail,
            at=self.now,
        )
        # The clock was set back and the schedule edited: a slot that was skipped before.
        rows.bulk_create([skipped], ignore_conflicts=True)

    def _follows(self, before: SkippedSlots, left: Run) -> bool:
        return next_slot(self.row.cron, self.row.timezone, before.last) == left.first
