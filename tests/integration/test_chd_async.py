"""Children of an ``async def run`` (design 6, 7): the same calls, with await."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from durableflow import AsyncStep, Workflow, WorkflowEvent, WorkflowFailed, drain
from durableflow.models import WorkflowInstance
from tests.integration.chd_flows import Child, S, children_of, history, settle

pytestmark = pytest.mark.django_db(transaction=True)


class AsyncParent(Workflow[Any, Any]):
    class Meta:
        name = "chd-async"

    async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
        async def one(n: int) -> Any:
            return await step.run_workflow(f"child {n}", Child, {"wait": n})

        found = await asyncio.gather(one(1), one(2), step.run_workflows("many", Child, [{"n": 3}, {"wait": 4}]))
        try:
            await step.run_workflow("bad", Child, {"raise": "no"})
        except WorkflowFailed as error:
            found.append(error.status)
        started = await step.start_workflow("started", Child, {"n": 5}, instance_id="started")
        if event.run_number == 1 and event.params == "again":
            await step.continue_as_new("once")
        return [*found, started]


def test_children_of_tasks() -> None:
    """Several waits at one time cost nothing; each result comes to its own task, in whatever order the children end."""
    row = AsyncParent.create()
    drain(5)
    row.refresh_from_db()
    assert (row.status, row.wake_at, row.lease_token) == (S.WAITING, None, None)
    waiting = {found.params["wait"]: found for found in children_of(row) if found.status == S.WAITING}
    for number in (2, 4, 1):
        waiting[number].send_event("go", number * 10)
        drain(5)
    row.refresh_from_db()
    assert (row.status, row.error) == (S.COMPLETE, None)
    assert row.output == [10, 20, [3, 40], "errored", "started"]
    assert len(children_of(row)) == 6


def test_children_of_tasks_end_with_their_parent() -> None:
    """Case CHD-04."""
    row = AsyncParent.create()
    drain(5)
    row.refresh_from_db()
    row.terminate()
    settle()
    assert {found.status for found in children_of(row)} == {S.TERMINATED, S.COMPLETE}


def test_continue_as_new() -> None:
    row = AsyncParent.create("again")
    for _ in range(2):
        drain(5)
        for found in children_of(row):
            if found.status == S.WAITING:
                found.send_event("go", 1)
        drain(5)
        WorkflowInstance.objects.filter(instance_id="started").delete()
    row.refresh_from_db()
    assert row.run_number == 2 and row.params == "once"
    assert history(row, "workflow_queued")[1:] == [("workflow_queued", {"verb": "continue_as_new"})]
    assert (row.status, row.output) == (S.COMPLETE, [1, 1, [3, 1], "errored", "started"])
