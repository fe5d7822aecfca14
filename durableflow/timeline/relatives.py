"""Parents and children of instances, as somebody who may see them finds them (design 7, 9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from durableflow.core.scopenames import component
from durableflow.core.statuses import StepKind
from durableflow.models import StepRecord, WorkflowInstance
from durableflow.models.instance_fields import Who
from durableflow.models.step import step_label


@dataclass(frozen=True, kw_only=True)
class Relative:
    """The parent or a child of an instance. ``step``, ``step_id``: the parent's step that stands between the two; of a child
    the label is ''."""

    id: int
    workflow: str
    instance_id: str
    status: str
    step: str
    step_id: int

    @property
    def label(self) -> str:
        """How messages name it: ``checkout/order-42``."""
        return f"{self.workflow}/{self.instance_id}"


def parent_of(instance: WorkflowInstance, user: Who) -> Relative | None:
    """The instance whose step has started this one, if it has one that ``user`` may see. One query at most."""
    step = instance.parent_step_id
    if step is None:
        return None
    rows: Any = WorkflowInstance.objects.using(instance._state.db).visible_to(user).filter(steps=step).order_by()
    found = rows.values_list(*_COLUMNS, "steps__scope", "steps__name", "steps__count").first()
    return None if found is None else _relative(found[:4], step, step_label(*found[4:]))


def children_of(records: Iterable[StepRecord], user: Who) -> dict[int, list[Relative]]:
    """For each of ``records`` that has started children their list, the latest first: those that ``user`` may see.

    A record has several where ``retry()`` of the parent has started one anew. One query, whatever the number of records; none
    where no record is a child's. The record of a join has none of its own: each child has one.
    """
    steps = [record for record in records if record.kind == StepKind.CHILD]
    found: dict[int, list[Relative]] = {}
    if not steps:
        return found
    rows: Any = WorkflowInstance.objects.using(steps[0]._state.db).visible_to(user)
    rows = rows.filter(parent_step__in=[step.pk for step in steps]).order_by("-id")
    for *row, step in rows.values_list(*_COLUMNS, "parent_step"):
        found.setdefault(step, []).append(_relative(row, step))
    return found


def members_scope(record: StepRecord) -> str:
    """The scope of the records that a map or a join has for its items or children."""
    own = component(record.name, record.count)
    return f"{record.scope}/{own}" if record.scope else own


_COLUMNS = ("id", "workflow", "instance_id", "status")


def _relative(row: Iterable[Any], step_id: int, step: str = "") -> Relative:
    return Relative(**dict(zip(_COLUMNS, row, strict=True)), step=step, step_id=step_id)
