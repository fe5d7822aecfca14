"""``step.gather`` and ``step.map`` of an ``async def run``: tasks with scopes of their own (design 7)."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from durableflow import AsyncStep, Retries, get_step_context
from durableflow.models import PendingEvent, WorkflowInstance
from tests.integration.async_flows import async_workflow, error_of, later
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, noted, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def test_branches_have_scopes_of_their_own_and_may_use_the_same_names() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def branch(name: str) -> str:
            await step.do("same", later, name)
            return await step.do("same", lambda: name)

        return await step.gather("both", lambda: branch("a"), lambda: branch("b"), lambda: step.do("same", later, "c"))

    instance = drained(async_workflow(run, []).create())
    assert instance.output == ("a", "b", "c"), (instance.error, instance.blocked)
    assert sorted(steps_of(instance)) == [
        ("both-1", "complete"),
        ("both-1[1]/same-1", "complete"),
        ("both-1[1]/same-2", "complete"),
        ("both-1[2]/same-1", "complete"),
        ("both-1[2]/same-2", "complete"),
        ("both-1[3]/same-1", "complete"),
    ]


def test_branches_wait_sleep_retry_and_are_approved_at_once(stopped_clock: StoppedClock) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def sleeps() -> str:
            await step.sleep("nap", 60)
            return await step.do("after", lambda: noted(log, "slept", "slept"))

        async def waits() -> Any:
            return (await step.wait_for_event("answer", type="answer")).payload

        async def approves() -> bool:
            return bool(await step.wait_for_approval("ok", title="Well?"))

        async def fails_once() -> int:
            attempt = get_step_context().attempt
            if attempt == 1:
                raise ConnectionError("away")
            return attempt

        async def retries() -> int:
            return await step.do("work", fails_once, retries=Retries(limit=1, delay=60))

        return await step.gather("all", sleeps, waits, approves, retries)

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    assert instance.status == S.WAITING, (instance.error, instance.blocked)
    instance.send_event("answer", 7)
    instance = drained(instance)
    stopped_clock.advance(60)
    instance = drained(instance)
    assert log == ["slept"]
    PendingEvent.objects.open().get().approve(by=None)
    instance = drained(instance)
    assert (instance.status, instance.output, log) == (S.COMPLETE, ("slept", 7, True, 2), ["slept"])


def test_all_branches_are_settled_before_their_failures_are_raised(stopped_clock: StoppedClock) -> None:
    async def fail(text: str) -> None:
        raise ValueError(text)

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def slow() -> None:
            await step.sleep("nap", 60)
            await step.do("work", lambda: noted(log, "worked"))

        try:
            await step.gather("all", lambda: step.do("one", fail, "one"), slow, lambda: step.do("two", fail, "two"))
        except ExceptionGroup as group:
            return [str(error) for error in group.exceptions]

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    assert (instance.status, log) == (S.WAITING, [])
    stopped_clock.advance(60)
    assert (drained(instance).output, log) == (["one", "two"], ["worked"])


def test_return_exceptions_gives_them_in_place() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        found = await step.gather(
            "all", lambda: step.do("fails", fail), lambda: step.do("works", later, 1), return_exceptions=True
        )
        return [repr(value) for value in found]

    assert drained(async_workflow(run, []).create()).output == ["ValueError('broken')", "1"]


def test_an_uncaught_failure_of_a_branch_ends_the_run_and_is_repaired_by_retry() -> None:
    broken = [True]

    async def body() -> str:
        if broken:
            raise ValueError("broken")
        return "repaired"

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return await step.gather(
            "all", lambda: step.do("work", body), lambda: step.do("other", lambda: noted(log, 1, 1))
        )

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    assert instance.status == S.ERRORED
    assert error_of(instance)["step"] == "all-1[1]/work-1"
    broken.clear()
    instance.retry()
    assert (drained(instance).output, log) == (("repaired", 1), [1])


def test_map_runs_plain_and_async_functions_and_keeps_the_order(stopped_clock: StoppedClock) -> None:
    async def double(item: int) -> int:
        log.append(item)
        await asyncio.sleep((5 - item) / 200)
        return 2 * item

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        found = await step.map("double", double, range(5))
        plain = await step.map("plain", lambda item: -item, found)
        await step.sleep("nap", 60)
        return plain

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    stopped_clock.advance(60)
    instance = drained(instance)
    assert (instance.output, sorted(log)) == ([0, -2, -4, -6, -8], [0, 1, 2, 3, 4])
    assert ("double-1/double-5", "complete") in steps_of(instance)


def test_an_item_that_changed_is_refused(stopped_clock: StoppedClock) -> None:
    items = [1, 2, 3]

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        await step.map("double", later, items)
        await step.sleep("nap", 60)

    instance = drained(async_workflow(run, []).create())
    items[1] = 5
    stopped_clock.advance(60)
    instance = drained(instance)
    assert instance.status == S.PAUSED
    assert "number 2 is another one" in instance.blocked


@pytest.mark.parametrize("most", [1, 2, 3])
def test_concurrency_limits_bodies_at_work(most: int) -> None:
    at_once: list[int] = []
    working = [0]

    async def body(item: int) -> int:
        working[0] += 1
        at_once.append(working[0])
        while max(at_once) < most:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        working[0] -= 1
        return item

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return await step.map("work", body, range(7), concurrency=most)

    assert drained(async_workflow(run, []).create()).output == list(range(7))
    assert max(at_once) == most


def test_a_branch_that_waits_gives_its_place_up(stopped_clock: StoppedClock) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def branch(name: str) -> str:
            await step.do("before", lambda: noted(log, f"before {name}"))
            await step.sleep("nap", 60)
            return await step.do("after", lambda: noted(log, f"after {name}", name))

        return await step.gather("all", lambda: branch("a"), lambda: branch("b"), lambda: branch("c"), concurrency=1)

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    assert instance.status == S.WAITING, (instance.error, instance.blocked)
    assert log == ["before a", "before b", "before c"]
    stopped_clock.advance(60)
    assert drained(instance).output == ("a", "b", "c")
    assert sorted(log[3:]) == ["after a", "after b", "after c"]


def test_a_place_is_taken_again_before_a_branch_goes_on() -> None:
    """The waits end while others work; no more than one works at any time."""
    working = [0]
    most = [0]

    async def body() -> None:
        working[0] += 1
        most[0] = max(most[0], working[0])
        await asyncio.sleep(0.05)
        working[0] -= 1

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def branch() -> None:
            await step.do("before", body)
            await step.sleep("nap", 0.2)
            await step.do("after", body)

        await step.gather("all", *[branch] * 4, concurrency=1)

    instance = drained(async_workflow(run, []).create())
    for _ in range(500):
        if instance.status != S.WAITING:
            break
        time.sleep(0.02)  # the real clock runs in this test
        instance = drained(instance)
    assert (instance.status, most) == (S.COMPLETE, [1]), (instance.error, instance.blocked)


def test_groups_nest_and_what_is_cancelled_leaves_its_places() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def inner(name: str) -> list[str]:
            return list(
                await step.gather(
                    "inner",
                    lambda: step.do("one", later, f"{name}1"),
                    lambda: step.do("two", later, f"{name}2"),
                    concurrency=1,
                )
            )

        return await step.gather("outer", lambda: inner("a"), lambda: inner("b"), concurrency=1)

    instance = drained(async_workflow(run, []).create())
    assert instance.output == (["a1", "a2"], ["b1", "b2"])
    assert ("outer-1[2]/inner-1[1]/one-1", "complete") in steps_of(instance)


def test_a_branch_that_gives_nothing_to_await_is_named() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        await step.gather("all", lambda: 5)  # type: ignore[arg-type,return-value]

    instance = drained(async_workflow(run, []).create())
    assert instance.status == S.ERRORED
    assert "step 'all': branch 'all-1[1]' returned 5, which cannot be awaited" in error_of(instance)["traceback"]


def test_two_tasks_of_one_branch_clash_but_not_those_of_two() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def one() -> None:
            await step.do("charge", later, 1)

        async def both() -> None:
            await asyncio.gather(one(), one())

        await step.gather("fine", one, one)
        await step.gather("clash", both)

    instance = drained(async_workflow(run, []).create())
    assert instance.status == S.ERRORED
    assert "do 'charge' of sample/" in error_of(instance)["traceback"]
    assert "two tasks" in error_of(instance)["traceback"]
    assert dict(steps_of(instance))["fine-1"] == "complete"


def test_values_that_cost_no_write_differ_between_branches_and_stay(stopped_clock: StoppedClock) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def branch() -> str:
            await asyncio.sleep(0)
            return f"{step.uuid4()} {step.random.random()}"

        log.append(await step.gather("all", branch, branch))
        await step.sleep("nap", 60)

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    stopped_clock.advance(60)
    drained(instance)
    assert log[0] == log[1]
    assert len(set(log[0])) == 2


@pytest.mark.parametrize("seed", range(8))
def test_identity_never_depends_on_timing(seed: int, stopped_clock: StoppedClock) -> None:
    """Random delays; each execution of many has the branches in another order (case ENG-06)."""
    dice = random.Random(seed)

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def branch(name: str) -> list[str]:
            found = []
            for number in range(3):
                if dice.randrange(2):
                    await asyncio.sleep(dice.random() / 300)
                found.append(await step.do("work", later, f"{name}{number}", dice.random() / 300))
                await step.sleep("nap", 60 * (1 + dice.randrange(2)))
            return found

        return await step.gather("all", *[lambda name=name: branch(name) for name in "abcd"], concurrency=3)

    instance = drained(async_workflow(run, []).create())
    for _ in range(9):
        if instance.status != S.WAITING:
            break
        stopped_clock.advance(60)
        instance = drained(instance)
    assert instance.output == tuple([f"{name}{number}" for number in range(3)] for name in "abcd"), instance.blocked
