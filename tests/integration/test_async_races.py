"""``step.race`` of an ``async def run`` (design 7; case ENG-07)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from durableflow import AsyncStep, EventTimeout
from durableflow.models import PendingEvent, WorkflowInstance
from tests.integration.async_flows import async_workflow, error_of, later
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, noted, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


async def answer_or_time(step: AsyncStep, log: list[Any]) -> Any:
    async def answer() -> Any:
        log.append("asked")
        event = await step.wait_for_event("answer", type="answer")
        return event.payload

    first = await step.race("first", answer=answer, time=lambda: step.sleep("time", 60))
    await step.do("after", lambda: noted(log, first.name))
    await step.sleep("nap", 60)
    return [first.name, first.value]


def test_the_event_wins_and_the_rest_is_cancelled(stopped_clock: StoppedClock) -> None:
    log: list[Any] = []
    instance = drained(async_workflow(answer_or_time, log).create())
    assert instance.status == S.WAITING, (instance.error, instance.blocked)
    assert [label for label, _ in steps_of(instance)] == ["first-1", "first-1[answer]/answer-1", "first-1[time]/time-1"]
    instance.send_event("answer", 7)
    instance = drained(instance)
    assert dict(steps_of(instance))["first-1[time]/time-1"] == "cancelled", (instance.error, instance.blocked)
    stopped_clock.advance(60)
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, ["answer", 7]), (instance.error, instance.blocked)
    assert [entry for entry in log if entry != "asked"] == ["answer"]


def test_the_time_wins_and_a_replay_finds_the_same(stopped_clock: StoppedClock) -> None:
    log: list[Any] = []
    instance = drained(async_workflow(answer_or_time, log).create())
    stopped_clock.advance(60)
    instance = drained(instance)
    assert instance.status == S.WAITING, (instance.error, instance.blocked)
    instance.send_event("answer", "too late")
    stopped_clock.advance(60)
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, ["time", None]), (instance.error, instance.blocked)


def test_a_race_beside_others_goes_on_when_it_is_decided(stopped_clock: StoppedClock) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def decide() -> str:
            first = await step.race(
                "first", ok=lambda: step.wait_for_approval("ok", title="Well?"), time=lambda: step.sleep("time", 600)
            )
            return await step.do("after", later, first.name)

        return await asyncio.gather(decide(), step.sleep("nap", 60))

    instance = drained(async_workflow(run, []).create())
    stopped_clock.advance(60)
    instance = drained(instance)
    PendingEvent.objects.get().approve(by=None)
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, ["ok", None]), (instance.error, instance.blocked)


def test_an_error_of_the_winner_is_raised_and_may_be_caught(stopped_clock: StoppedClock) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        try:
            await step.race(
                "first",
                answer=lambda: step.wait_for_event("answer", type="answer", timeout=60),
                time=lambda: step.sleep("time", 600),
            )
        except EventTimeout:
            return "timed out"

    instance = drained(async_workflow(run, []).create())
    stopped_clock.advance(60)
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, "timed out"), (instance.error, instance.blocked)


@pytest.mark.parametrize("way", ["body", "two calls", "no call"])
def test_a_branch_that_does_not_just_wait_is_refused(way: str) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def branch() -> Any:
            if way == "body":
                return await step.do("work", lambda: noted(log, "ran"))
            if way == "two calls":
                await asyncio.gather(step.sleep("one", 60), step.sleep("two", 60))

        await step.race("first", branch=branch, time=lambda: step.sleep("time", 60))

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    assert instance.status == S.ERRORED
    assert "branch 'branch'" in error_of(instance)["message"]
    assert log == []


def test_cleaning_up_after_a_race_hides_no_change_of_the_program(stopped_clock: StoppedClock) -> None:
    """That the engine cancels a branch where it waits does not count as the program's doing."""

    async def before(step: AsyncStep, log: list[Any]) -> Any:
        await step.race(
            "first", answer=lambda: step.wait_for_event("answer", type="answer"), time=lambda: step.sleep("time", 60)
        )
        await step.do("one", later, 1)
        await step.do("two", later, 2)
        await step.sleep("nap", 60)

    async def after(step: AsyncStep, log: list[Any]) -> Any:
        await step.race(
            "first", answer=lambda: step.wait_for_event("answer", type="answer"), time=lambda: step.sleep("time", 60)
        )
        await step.do("two", later, 2)
        await step.sleep("nap", 60)

    instance = drained(async_workflow(before, []).create())
    instance.send_event("answer")
    instance = drained(instance)
    async_workflow(after, [])
    stopped_clock.advance(60)
    instance = drained(instance)
    assert instance.status == S.PAUSED
    assert "before do 'two-1'" in instance.blocked
