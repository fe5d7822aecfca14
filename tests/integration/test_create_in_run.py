"""``create()`` in ``run`` would start one more instance at each replay (case OPS-02; reference 7, rule 4)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import AsyncStep, Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class CreatedInRun(Workflow):
    def run(self, event: WorkflowEvent, step: Step) -> None:
        """Nothing."""


class Creates(Workflow):
    def run(self, event: WorkflowEvent, step: Step) -> Any:
        if event.params == "branch":
            step.gather("all", lambda: CreatedInRun.create(), lambda: None)
        CreatedInRun.create()


class CreatesAsync(Workflow):
    async def run(self, event: WorkflowEvent, step: AsyncStep) -> Any:
        await CreatedInRun.acreate()


@pytest.mark.parametrize(("workflow", "params"), [(Creates, None), (Creates, "branch"), (CreatesAsync, None)])
def test_it_is_refused_with_the_cure(workflow: type[Workflow], params: Any) -> None:
    instance = drained(workflow.create(params, instance_id="one"))
    assert instance.status == S.ERRORED and instance.error is not None
    assert "CreatedInRun.create() was called in run() of " in instance.error["message"]
    assert "/one, outside of a step" in instance.error["message"] and "step.start_workflow" in instance.error["message"]
    assert not CreatedInRun.instances().exists()


class CreatesWell(Workflow):
    def run(self, event: WorkflowEvent, step: Step) -> Any:
        CreatedInRun.get_or_create(instance_id="known")
        return step.do("start", lambda: CreatedInRun.create().instance_id)


def test_in_a_body_or_with_an_id_it_is_not() -> None:
    instance = drained(CreatesWell.create())
    assert (instance.status, CreatedInRun.instances().count()) == (S.COMPLETE, 2)
    CreatedInRun.create()  # nothing of the run is left behind in this thread
