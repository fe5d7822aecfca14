"""``retry()`` of a parent starts children anew that ended with it, and theirs (design 7, 9)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class GenerationsLast(Workflow):
    def run(self, event: WorkflowEvent, step: Step) -> int:
        step.sleep("nap", "1 hour")
        return 1


class GenerationsMiddle(Workflow):
    def run(self, event: WorkflowEvent, step: Step) -> Any:
        return step.run_workflow("last", GenerationsLast, None), step.run_workflows("more", GenerationsLast, [1, 2])


class GenerationsTop(Workflow):
    class Meta:
        max_duration = "90 minutes"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        return step.run_workflow("middle", GenerationsMiddle, None)


def test_a_child_that_is_started_anew_has_children_of_its_own(stopped_clock: StoppedClock) -> None:
    """CHD-03: it has its predecessor's keys, but cannot have its children's ids, which still exist."""
    instance = drained(GenerationsTop.create())
    for passed in ("1 hour", "40 minutes"):  # the parent's time is over before the second nap is
        stopped_clock.advance(passed)
        instance = drained(instance)
    assert instance.status == S.ERRORED
    for _ in range(2):
        instance = drained(instance)
    assert {row.status for row in GenerationsLast.instances()} == {S.COMPLETE, S.TERMINATED}
    GenerationsTop.instances().update(deadline_at=None)
    instance.refresh_from_db()
    instance.retry()
    WorkflowInstance.objects.filter(pk=instance.pk).update(deadline_at=None)
    for _ in range(3):
        instance = drained(instance)
        stopped_clock.advance("1 hour")
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, (1, [1, 1]))
