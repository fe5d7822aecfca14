"""What the replay makes of a run that a restart has begun with records of an earlier one (design 6, 9)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from durableflow import AsyncStep, Retries, Step, Workflow, WorkflowEvent, get_step_context
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from durableflow.timeline import steps as timeline_steps
from tests.integration.conftest import StoppedClock
from tests.integration.restart_flows import Bodies, flow, labels, step_of
from tests.support.concurrency import Gate, Task
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


def test_tasks_of_an_async_run_meet_their_order(stopped_clock: StoppedClock) -> None:
    """What is kept is answered in the order in which it had ended, which the history of the earlier run tells."""
    ended: list[list[str]] = []

    class Tasks(Workflow[Any, Any]):
        class Meta:
            name = "restart-tasks"

        async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
            order: list[str] = []
            ended.append(order)

            async def one(name: str, delay: int) -> None:
                await step.sleep(name, delay)
                order.append(name)

            await asyncio.gather(one("slow", 30), one("quick", 10), one("middle", 20))
            await step.do("a", lambda: None)
            return [*order, await step.do("last", lambda: event.run_number)]

    row = drained(Tasks.create())
    for _ in range(3):
        stopped_clock.advance(10)
        drained(row)
    expected = ["quick", "middle", "slow"]
    assert row.output == [*expected, 1]
    for run_number in (2, 3):
        row.restart(from_step="last")
        assert labels(row, run_number) == ["slow-1", "quick-1", "middle-1", "a-1"]
        assert drained(row).output == [*expected, run_number] and ended[-1] == expected
    row.restart(from_step="middle")
    drained(row)
    stopped_clock.advance(20)
    assert drained(row).output == [*expected[:1], "slow", "middle", 4], "what runs again ends later"


def test_a_body_in_flight_of_a_kept_branch() -> None:
    """The worker is at work in an earlier branch when the later one is restarted: the attempt is lost, and charged as one."""
    gate, ran = Gate(), list[str]()

    class Busy(Workflow[Any, Any]):
        class Meta:
            name = "restart-busy"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.gather(
                "both",
                lambda: step.do("kept", self.body, retries=Retries(limit=2, delay=0)),
                lambda: step.do("again", self.body),
                concurrency=1,
            )

        def body(self) -> int:
            context = get_step_context()
            ran.append(context.name)
            if len(ran) == 2:
                gate.stop_here()
            return context.attempt

    row = Busy.create()
    (claimed,) = claim("default")
    worker = Task(lambda: execute(claimed, renew=False))
    gate.wait_until_reached()
    running = WorkflowInstance.objects.get(pk=row.pk)
    assert running.status == Status.RUNNING
    running.restart(from_step="again")
    drained(row)
    gate.open()
    worker.result()
    row.refresh_from_db()
    assert (row.status, row.output, ran) == (Status.COMPLETE, (1, 1), ["kept", "again", "again"])
    assert step_of(row, "again").key_run == 2 and step_of(row, "kept").key_run == 1


def test_the_lost_attempt_of_a_kept_step() -> None:
    """Its start mark is of a lease that is gone: it counts as lost, and a step that begins once does not begin again."""

    class Once(Workflow[Any, Any]):
        class Meta:
            name = "restart-once"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            first, second = step.gather(
                "both",
                lambda: step.do("once", lambda: "never", retries=0),
                lambda: step.do("again", lambda: event.run_number),
                concurrency=1,
                return_exceptions=True,
            )
            return [type(first).__name__, second]

    row = drained(Once.create())
    row.steps.filter(name="once").update(status="started", finished=None, raw_output=None, token=7)
    row.restart(from_step="again")
    assert drained(row).output == ["WorkerLost", 2]


def test_after_a_retry(bodies: Bodies) -> None:
    """What retry() has freed stays freed: the program need not come by there again."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            bodies.do(step, "a", retries=0)
        except OSError as failed:
            bodies.do(step, "clean up")
            raise failed
        return [bodies.do(step, "b"), bodies.do(step, "c")]

    bodies.broken.add("a")
    row = drained(flow(run).create())
    bodies.broken.clear()
    row.retry()
    assert drained(row).output == ["B", "C"]
    row.restart(from_step="c")
    assert drained(row).output == ["B", "C"] and bodies.names == "aclean upabcc"


def test_a_program_that_has_changed_is_seen(bodies: Bodies) -> None:
    """Case ENG-08: what is kept must be met, as in the run that recorded it."""
    with_a = [True]

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if with_a:
            bodies.do(step, "a")
        return [bodies.do(step, "b"), bodies.do(step, "c")]

    row = drained(flow(run).create())
    with_a.clear()
    row.restart(from_step="c")
    drained(row)
    assert row.status == Status.PAUSED and "NonDeterminismError" in row.blocked and "'a-1'" in row.blocked
    row.restart(from_step="b")
    drained(row)
    assert row.status == Status.PAUSED
    row.restart()
    assert drained(row).output == ["B", "C"], "from the start nothing is kept"


def test_its_tries_are_shown(bodies: Bodies) -> None:
    """The attempts of a kept step stand in the history of an earlier run; those of a dropped one are none of the new step's."""
    bodies.broken |= {"a", "b"}

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return [bodies.do(step, name, retries=Retries(limit=5, delay=0)) for name in "ab"]

    row = flow(run).create()
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    bodies.broken.discard("a")
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    bodies.broken.clear()
    drained(row)
    assert [(step.label, len(step.tries)) for step in timeline_steps(row)] == [("a-1", 2), ("b-1", 2)]
    row.restart(from_step="b")
    drained(row)
    shown = timeline_steps(row)
    assert [(step.label, [attempt.status for attempt in step.tries]) for step in shown] == [
        ("a-1", ["failed", "complete"]),
        ("b-1", ["complete"]),
    ]


def test_mocks_survive_a_restart(workflows: Harness) -> None:
    """Reference 11: what a test has said of a step holds for each run."""

    class Mocked(Workflow[Any, Any]):
        class Meta:
            name = "restart-mocked"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return [step.do(name, lambda: "never", retries=0) for name in "ab"]

    workflows.mock_result("a", "mocked")
    workflows.mock_error("b", OSError("mocked too"))
    row = workflows.run(Mocked)
    for run_number, again in ((2, lambda: row.restart()), (3, lambda: row.restart(from_step="b"))):
        assert row.status == Status.ERRORED
        again()
        workflows.run_due()
        assert (row.run_number, step_of(row, "a").output) == (run_number, "mocked")
        assert row.error is not None and row.error["message"] == "mocked too"
    assert workflows.attempts("a") == 2, "in the third run it is kept"
