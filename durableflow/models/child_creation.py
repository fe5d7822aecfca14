"""Creating the instances that another one has started, in few statements however many they are (design 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections

from durableflow.core import codec, dispatch
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import InstanceAlreadyExists
from durableflow.core.statuses import Hold, Trigger, Via
from durableflow.models.creation import NewInstance, insert_rows, row_for
from durableflow.models.history import HistoryEntry
from durableflow.models.instance import WorkflowInstance
from durableflow.models.step import StepRecord, step_label


@dataclass(frozen=True)
class Plan:
    """A child that is to be. ``text``: its params as they are stored."""

    row: WorkflowInstance
    text: str
    max_duration: timedelta | None
    previous_names: tuple[str, ...]


def plan(new: NewInstance) -> Plan:
    """Check what a child shall be; nothing is stored. Raises ValueError, TypeError, CodecError, LimitExceeded."""
    row = row_for(new)
    text = codec.dumps(new.params, what=f"params of {row.label}", max_bytes=get_settings().LIMITS.params)
    row.trigger = Trigger.PARENT
    return Plan(row, text, new.max_duration, new.previous_names)


def insert_children(
    using: str,
    parent: int,
    plans: Sequence[Plan],
    steps: Sequence[int],
    now: datetime,
    *,
    on_parent_end: str,
    room: int | None = None,
) -> None:
    """Insert children of one workflow with their first history entries, as children of these records of the parent.

    They have the parent's creator, and are as urgent as it is, or more. ``room``: only so many of them, the first, are due;
    the others wait for their turn (``Hold.WINDOW``). The caller holds the parent's row lock and has just written the records.
    Raises InstanceAlreadyExists; then the caller's transaction must not be committed.
    """
    parents = WorkflowInstance.objects.using(using).filter(pk=parent)
    creator, creator_name, priority = parents.values_list("created_by_id", "created_by_name", "priority").get()
    for position, (child, step) in enumerate(zip(plans, steps, strict=True)):
        row = child.row
        row.parent_step_id, row.on_parent_end = step, on_parent_end
        row.created_by_id, row.created_by_name = creator, creator_name
        row.priority = min(row.priority, priority)
        row.claim_class = 2 * row.priority + 1
        row.created = row.wake_at = now
        row.deadline_at = None if child.max_duration is None else now + child.max_duration
        row.hold = ""
        if room is not None and position >= room:
            row.wake_at, row.hold = None, Hold.WINDOW
    rows = [child.row for child in plans]
    stored = insert_rows(rows, using, plans[0].previous_names)
    for row in rows:
        if row.instance_id not in stored:
            raise _taken(using, parent, row, plans[0].previous_names)
    _tell(using, parent, min(stored.values()), max(stored.values()))
    dispatch.wake(using)


def _taken(using: str, parent: int, row: WorkflowInstance, previous_names: Sequence[str]) -> InstanceAlreadyExists:
    """The error for an id that is taken, which only an id that the program gives can be: by whom, and what helps. It is never set
    aside or taken over, also where this parent has started it in an earlier run: the id may stand for what must happen once."""
    rows: Any = WorkflowInstance._base_manager.using(using).filter(
        workflow__in=[row.workflow, *previous_names], instance_id=row.instance_id, parent_step__instance=parent
    )
    own = rows.values_list(
        "status", "parent_step__run_number", "parent_step__scope", "parent_step__name", "parent_step__count"
    )
    what = f'The workflow "{row.workflow}" already has an instance "{row.instance_id}"'
    found = own.first()
    if found is None:
        text = f"{what}, which this instance has not started. It is left alone: give the child another id."
    else:
        status, run, *step = found
        text = (
            f"{what}: step {step_label(*step)!r} has started it in run {run} of this instance, and it is {status}. Give each call and each "
            "run an id of its own (event.run_number is new after a restart), or none; or delete that instance and retry this one."
        )
    return InstanceAlreadyExists(text, workflow=row.workflow, instance_id=row.instance_id)


def _tell(using: str, parent: int, first: int, last: int) -> None:
    """The first history entry of the children that have just been written: nobody else has written children of this parent
    meanwhile, whose row the caller holds."""
    history, instances, records = (model._meta.db_table for model in (HistoryEntry, WorkflowInstance, StepRecord))
    sql = f"""
        INSERT INTO {history} (instance_id, run_number, type, kind, step, data, actor_id, actor_name, via, reason, at)
        SELECT c.id, 1, 'workflow_queued', '', '', %s, c.created_by_id, c.created_by_name, '{Via.ENGINE.value}', '', c.created
        FROM {instances} AS c JOIN {records} AS s ON s.id = c.parent_step_id
        WHERE c.id BETWEEN %s AND %s AND s.instance_id = %s ORDER BY c.id"""  # noqa: S608
    with connections[using].cursor() as cursor:
        cursor.execute(sql, [codec.dumps({"trigger": Trigger.PARENT.value}), first, last, parent])


__all__ = ["Plan", "insert_children", "plan"]
