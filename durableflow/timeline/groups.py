"""What has become of the branches of a group, told at its own step (design 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import Count

from durableflow.core.scopenames import groups_of
from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models import StepRecord, WorkflowInstance
from durableflow.models.step import step_label

GROUPS: Final = (StepKind.GATHER, StepKind.MAP, StepKind.RACE)
MOST_FAILED: Final = 500
"""Failed members that are looked at; ``failed`` counts them all."""
MOST_NAMED: Final = 5


@dataclass(kw_only=True)
class GroupView:
    """The members of a group: the items of a map, the children of a join, all steps in the branches of a gather or race.

    ``statuses``: how many there are of each status; ``failed``: key and label of the first that failed.
    """

    statuses: dict[str, int] = field(default_factory=dict)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def count(self, *statuses: str) -> int:
        """How many have one of these statuses."""
        return sum(self.statuses.get(status, 0) for status in statuses)


def is_group(record: StepRecord) -> bool:
    """Whether the step has branches, items or children of its own below it."""
    return record.kind in GROUPS or record.remaining is not None


def groups(instance: WorkflowInstance, records: Sequence[StepRecord]) -> dict[int, GroupView]:
    """For each group among ``records``, of the present run, what has become of its members.

    Groups within groups are not counted themselves, their members are. Two queries at most; none without a group.
    """
    found = {
        (record.scope, record.name, record.count): (record.pk, GroupView()) for record in records if is_group(record)
    }
    if not found:
        return {}
    members: Any = instance.steps.filter(run_number=instance.run_number, remaining__isnull=True)
    members = members.exclude(scope="").exclude(kind__in=GROUPS).order_by()
    for scope, status, number in members.values_list("scope", "status").annotate(Count("id")):
        for key in groups_of(scope):
            if key in found:
                statuses = found[key][1].statuses
                statuses[status] = statuses.get(status, 0) + number
    if any(view.count(StepStatus.FAILED) for _pk, view in found.values()):
        failed = members.filter(status=StepStatus.FAILED).order_by("seq")
        for pk, *names in failed.values_list("id", "scope", "name", "count")[:MOST_FAILED]:
            for key in groups_of(names[0]):
                if key in found and len(found[key][1].failed) < MOST_NAMED:
                    found[key][1].failed.append((pk, step_label(*names)))
    return dict(found.values())
