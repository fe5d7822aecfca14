"""LIF-04: a pause while several bodies run, in branches and in async runs: all end and are stored, and nothing else begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from durableflow import AsyncStep, Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.models import WorkflowInstance
from tests.support.concurrency import Gate, Task, eventually
from tests.support.engine import drained, types_of

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class Log:
    """What has run, and a gate at which body B stands."""

    ran: list[str] = []
    gate: Gate


def body(name: str) -> str:
    """Notes itself; ``slow`` ones stand at the gate, ``bad`` ones fail the first time."""
    Log.ran.append(name)
    if name.startswith("slow"):
        Log.gate.stop_here()
    if name.startswith("bad") and Log.ran.count(name) == 1:
        raise RuntimeError(f"{name} fails")
    return name.upper()


async def async_body(name: str) -> str:
    """The same for an event loop."""
    if name.startswith("slow"):
        Log.ran.append(name)
        await asyncio.to_thread(Log.gate.stop_here)
        return name.upper()
    return body(name)


class PauseMany(Workflow[str, Any]):
    """B is slow, A is quick; more of them wait for their turn; then C."""

    class Meta:
        name = "lif-pause-many"
        step_retries = Retries(limit=2, delay="1 hour")

    def run(self, event: WorkflowEvent[str], step: Step) -> Any:
        return [getattr(self, event.params)(step), step.do("c", body, "c")]

    def gather(self, step: Step) -> Any:
        return step.gather("both", lambda: self.branch(step, "slow"), lambda: self.branch(step, "quick"))

    def branch(self, step: Step, name: str) -> Any:
        return [step.do("first", body, name), step.do("second", body, f"after {name}")]

    def map(self, step: Step) -> Any:
        return step.map("each", body, ["slow", "quick", "third", "fourth"], concurrency=2)

    def retry(self, step: Step) -> Any:
        return step.gather("both", lambda: step.do("b", body, "slow"), lambda: step.do("a", body, "bad"))

    def nested(self, step: Step) -> Any:
        return step.gather("around", lambda: self.gather(step), lambda: step.sleep("nap", "1 minute"))


class PauseAsync(Workflow[str, Any]):
    """The same in an event loop, with bodies of both kinds."""

    class Meta:
        name = "lif-pause-async"
        step_retries = Retries(limit=2, delay="1 hour")

    async def run(self, event: WorkflowEvent[str], step: AsyncStep) -> Any:
        first = await getattr(self, event.params)(step)
        return [first, await step.do("c", async_body, "c")]

    async def gather(self, step: AsyncStep) -> Any:
        return await step.gather("both", lambda: self.branch(step, "slow"), lambda: self.branch(step, "quick"))

    async def branch(self, step: AsyncStep, name: str) -> Any:
        return [await step.do("first", async_body, name), await step.do("second", body, f"after {name}")]

    async def map(self, step: AsyncStep) -> Any:
        return await step.map("each", async_body, ["slow", "quick", "third", "fourth"], concurrency=2)

    async def retry(self, step: AsyncStep) -> Any:
        return await step.gather(
            "both", lambda: step.do("b", async_body, "slow"), lambda: step.do("a", async_body, "bad")
        )

    async def tasks(self, step: AsyncStep) -> Any:
        return await asyncio.gather(step.do("b", async_body, "slow"), step.do("a", async_body, "quick"))

    async def failing(self, step: AsyncStep) -> Any:
        return await asyncio.gather(step.do("b", self.slow_then_bad), step.do("a", async_body, "quick"))

    @staticmethod
    async def slow_then_bad() -> str:
        await async_body("slow")
        if Log.ran.count("slow") == 1:
            raise RuntimeError("fails")
        return "SLOW"


@pytest.fixture(autouse=True)
def gate() -> Iterator[Gate]:
    Log.ran, Log.gate = [], Gate()
    yield Log.gate
    Log.gate.open()


def paused_in_the_middle(row: WorkflowInstance, quick: Callable[[], bool]) -> Task:
    """The slow body runs and the quick one has ended: then somebody asks for a pause, and what is under way goes on."""
    task = Task(lambda: drain(1))
    Log.gate.wait_until_reached()
    eventually(quick, "the quick body has ended")
    row.pause()
    assert row.status == Status.WAITING_FOR_PAUSE
    return task


PARALLEL = [(PauseMany, way) for way in ("gather", "map", "retry", "nested")] + [
    (PauseAsync, way) for way in ("gather", "map", "retry", "tasks", "failing")
]


@pytest.mark.parametrize(("cls", "way"), PARALLEL)
def test_the_slow_body_ends_and_is_stored(cls: type[Workflow[str, Any]], way: str, gate: Gate) -> None:
    """LIF-04: it is not paused before; then it is, and after the resume nothing runs twice."""
    row = cls.create(way)
    task = paused_in_the_middle(row, lambda: "quick" in Log.ran or "bad" in Log.ran)
    gate.open()
    task.result()
    row.refresh_from_db()
    assert (row.status, row.wake_at, row.lease_token) == (Status.PAUSED, None, None)
    before = list(Log.ran)
    assert "c" not in before
    assert not row.steps.filter(status="started", kind="do").exists(), "an attempt would be charged"
    row.resume()
    drained(row)
    while row.status == Status.WAITING:  # a retry, or the nap
        row.steps.filter(wake_at__isnull=False).update(wake_at=row.created)
        WorkflowInstance.objects.filter(pk=row.pk).update(wake_at=row.created)
        drained(row)
    assert row.status == Status.COMPLETE, row.error
    assert Log.ran[: len(before)] == before
    again = [name for name in set(Log.ran) if Log.ran.count(name) > 1]
    assert again == {"retry": ["bad"], "failing": ["slow"]}.get(way, [])
    assert not row.history.filter(type="attempt_lost").exists()


@pytest.mark.parametrize(("cls", "way"), [(PauseMany, "gather"), (PauseAsync, "gather"), (PauseAsync, "tasks")])
def test_a_resume_before_the_slow_body_ends(cls: type[Workflow[str, Any]], way: str, gate: Gate) -> None:
    """LIF-04: that cancels the request, whether the execution has seen it or not."""
    row = cls.create(way)
    task = paused_in_the_middle(row, lambda: "quick" in Log.ran)
    row.resume()
    assert row.status == Status.RUNNING
    gate.open()
    task.result()
    assert drained(row).status == Status.COMPLETE
    assert len(Log.ran) == len(set(Log.ran)) and "workflow_paused" not in types_of(row)


class PauseAsyncFails(Workflow[Any, Any]):
    """While B runs, and fails in the end, A asks for a pause and the program goes on to its next call."""

    class Meta:
        name = "lif-pause-async-fails"
        step_retries = Retries(limit=1, delay="1 hour")

    async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
        return await asyncio.gather(step.do("b", self.bad), self.others(event, step))

    async def others(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
        await step.do("a", lambda: PauseAsyncFails.get(event.instance_id).pause())
        Log.gate.open()
        return await step.do("c", async_body, "c")

    @staticmethod
    async def bad() -> str:
        await asyncio.to_thread(Log.gate.stop_here)
        return await async_body("bad")


def test_an_async_body_that_fails_after_the_execution_has_seen_the_request() -> None:
    """Its retry waits for the resume like everything else; that it waits must not hide why the execution ends."""
    row = PauseAsyncFails.create()
    assert drained(row).status == Status.PAUSED, row.error
    assert Log.ran == ["bad"]
    assert [(step.label, step.attempts, step.status) for step in row.steps.order_by("seq")] == [
        ("b-1", 1, "pending"),
        ("a-1", 1, "complete"),
    ]
    row.resume()
    row.steps.filter(wake_at__isnull=False).update(wake_at=row.created)
    assert drained(row).output == ["BAD", "C"]
