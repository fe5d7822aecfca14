"""A call that is refused in one branch, and what becomes of the others (design 6, 7)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from durableflow import AsyncStep, Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.concurrency import PATIENCE
from tests.support.engine import drained, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def decide(step: Any, broken: list[bool]) -> Any:
    """A race that first breaks the rules."""
    body = (lambda: step.do("body", str, 1)) if broken else (lambda: step.sleep("nap", 60))
    return step.race("first", one=body, two=lambda: step.sleep("long", "1 day"))


def put_right(row: WorkflowInstance, broken: list[bool], clock: StoppedClock) -> WorkflowInstance:
    """Correct the program and go on; the group was not over."""
    broken.clear()
    row.resume() if row.status == S.PAUSED else row.retry()
    assert drained(row).status == S.WAITING and dict(steps_of(row))["both-1"] == "pending"
    clock.advance(60)
    drained(row)
    assert dict(steps_of(row))["both-1"] == "complete"
    return row


def test_a_body_that_runs_beside_it_has_not_failed(stopped_clock: StoppedClock) -> None:
    """It broke no rule: its result is stored, and it never runs again."""
    inside, refused, ran = threading.Event(), threading.Event(), []
    broken = [True]

    def work() -> str:
        ran.append(1)
        inside.set()
        assert refused.wait(PATIENCE)
        return "done"

    class Beside(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("both", lambda: step.do("work", work), lambda: self.other(step))[0]

        def other(self, step: Step) -> Any:
            assert inside.wait(PATIENCE)
            try:
                return decide(step, broken)
            finally:
                refused.set()

    row = drained(Beside.create())
    assert row.status == S.ERRORED and row.error is not None and "calls do 'body'" in row.error["message"]
    assert dict(steps_of(row))["both-1[1]/work-1"] == "complete" and "attempt_errored" not in types_of(row)
    assert put_right(row, broken, stopped_clock).output == "done" and ran == [1]


@pytest.mark.parametrize("return_exceptions", [False, True])
def test_the_others_come_to_their_ends_when_it_is_put_right(
    return_exceptions: bool, stopped_clock: StoppedClock
) -> None:
    """The next execution meets the refusal first: what the other branch has recorded, and cannot reach then, is no wrong replay."""
    paused, broken, ran = threading.Event(), [True], []

    class Others(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather(
                "both", lambda: self.decide(step), lambda: self.other(step), return_exceptions=return_exceptions
            )[1]

        def decide(self, step: Step) -> Any:
            assert paused.wait(PATIENCE)
            return decide(step, broken)

        def other(self, step: Step) -> Any:
            step.do("work", ran.append, 1)
            try:
                step.sleep("pause", 60)
            finally:
                paused.set()
            return step.do("more", str, 2)

    row = drained(Others.create())
    assert row.status == S.WAITING and dict(steps_of(row))["both-1[2]/pause-1"] == "pending"
    stopped_clock.advance(60)
    drained(row)
    if return_exceptions:  # nobody was told of it
        assert row.status == S.PAUSED and "calls do 'body'" in row.blocked
    else:
        assert row.status == S.ERRORED and row.error is not None and "calls do 'body'" in row.error["message"]
    assert put_right(row, broken, stopped_clock).output == "2" and ran == [1]


def test_the_same_in_tasks(stopped_clock: StoppedClock) -> None:
    """A body of another task, and what it has recorded."""
    inside, refused, broken, ran = asyncio.Event(), asyncio.Event(), [True], []

    async def work() -> str:
        ran.append(1)
        inside.set()
        await asyncio.wait_for(refused.wait(), PATIENCE)
        return "done"

    class Tasks(Workflow):
        async def run(self, event: WorkflowEvent, step: AsyncStep) -> Any:
            return (await step.gather("both", lambda: self.decide(step), lambda: self.other(step)))[1]

        async def decide(self, step: AsyncStep) -> Any:
            await inside.wait()
            try:
                return await step.race("first", one=lambda: self.one(step), two=lambda: step.sleep("long", "1 day"))
            finally:
                refused.set()

        async def one(self, step: AsyncStep) -> Any:
            return await (step.do("body", str, 1) if broken else step.sleep("nap", 60))

        async def other(self, step: AsyncStep) -> Any:
            done = await step.do("work", work)
            await step.sleep("pause", 60)
            return done

    row = drained(Tasks.create())
    assert row.status == S.ERRORED and row.error is not None and "calls do 'body'" in row.error["message"]
    assert dict(steps_of(row))["both-1[2]/work-1"] == "complete" and "attempt_errored" not in types_of(row)
    assert put_right(row, broken, stopped_clock).output == "done" and ran == [1]
