"""Identity and determinism of an ``async def run`` at its replays: names, never timing (design 6)."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

import pytest

from durableflow import AsyncStep
from durableflow.models import WorkflowInstance
from tests.integration.async_flows import AsyncRun, async_workflow, later, run_once
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, noted

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def changed_to(instance: WorkflowInstance, run: AsyncRun, log: list[Any]) -> WorkflowInstance:
    """The instance after its next execution, by other code."""
    async_workflow(run, log)
    return drained(instance)


# Replays ----------------------------------------------------------------------------------------------------------------


def test_a_step_that_is_missing_at_a_replay_blocks_the_instance(stopped_clock: StoppedClock) -> None:
    """The answer of the second is held back until the first is called, which never happens."""

    async def before(step: AsyncStep, log: list[Any]) -> Any:
        await step.do("first", later, 1)
        await step.do("second", later, 2)
        await step.sleep("nap", 60)

    async def after(step: AsyncStep, log: list[Any]) -> Any:
        await step.do("second", later, 2)
        log.append("went on")
        await step.sleep("nap", 60)

    log: list[Any] = []
    instance = run_once(before)
    stopped_clock.advance(60)
    instance = changed_to(instance, after, log)
    assert (instance.status, log) == (S.PAUSED, [])
    assert "recorded with do 'first-1' before do 'second-1'" in instance.blocked
    async_workflow(before, log)
    instance.resume()
    assert drained(instance).status == S.COMPLETE


def test_a_recorded_step_that_run_does_not_come_to_blocks_it(stopped_clock: StoppedClock) -> None:
    async def before(step: AsyncStep, log: list[Any]) -> Any:
        await step.sleep("nap", 60)
        await step.do("last", later, 1)
        await step.sleep("nap", 60)

    async def after(step: AsyncStep, log: list[Any]) -> Any:
        await step.sleep("nap", 60)

    instance = run_once(before)
    stopped_clock.advance(60)
    drained(instance)
    instance = changed_to(instance, after, [])
    stopped_clock.advance(60)
    instance = drained(instance)
    assert instance.status == S.PAUSED
    assert "do 'last-1' is recorded and was not called" in instance.blocked


def test_another_kind_under_a_recorded_name_blocks_it(stopped_clock: StoppedClock) -> None:
    async def before(step: AsyncStep, log: list[Any]) -> Any:
        await step.do("same", later, 1)
        await step.sleep("nap", 60)

    async def after(step: AsyncStep, log: list[Any]) -> Any:
        await step.sleep("same", 60)

    instance = run_once(before)
    stopped_clock.advance(60)
    instance = changed_to(instance, after, [])
    assert instance.status == S.PAUSED
    assert "recorded with do 'same-1', but run() now calls sleep 'same-1'" in instance.blocked


def test_a_new_step_between_recorded_ones_is_fine(stopped_clock: StoppedClock) -> None:
    async def before(step: AsyncStep, log: list[Any]) -> Any:
        await step.do("first", later, 1)
        await step.sleep("nap", 60)

    async def after(step: AsyncStep, log: list[Any]) -> Any:
        await step.do("first", later, 1)
        await step.do("new", lambda: noted(log, "new"))
        await step.sleep("nap", 60)

    log: list[Any] = []
    instance = run_once(before)
    stopped_clock.advance(60)
    assert changed_to(instance, after, log).status == S.COMPLETE
    assert log == ["new"]


@pytest.mark.parametrize("seed", range(12))
def test_tasks_that_come_in_another_order_each_time_never_swap_records(seed: int, stopped_clock: StoppedClock) -> None:
    """Many replays, in which every body, plain sleep and plain await takes another time."""
    dice = random.Random(seed)

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def pause() -> None:
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            if not dice.randrange(3):
                await asyncio.sleep(dice.random() / 500)

        async def branch(name: str) -> list[Any]:
            found = []
            for number in range(3):
                await pause()
                found.append(await step.do(f"{name} {number}", later, f"{name}{number}", dice.random() / 500))
                await pause()
                if not number:
                    await step.sleep(f"nap of {name}", 60 * (1 + len(name)))
            return found

        return await asyncio.gather(*(branch("x" * number) for number in (1, 2, 3, 4)))

    log: list[Any] = []
    instance = run_once(run, log)
    for _ in range(6):
        assert instance.status in (S.WAITING, S.COMPLETE), instance.blocked
        stopped_clock.advance(60)
        instance = drained(instance)
    assert instance.output == [[f"{'x' * number}{part}" for part in range(3)] for number in (1, 2, 3, 4)]


def test_what_a_cancelled_task_had_recorded_need_not_be_met(stopped_clock: StoppedClock) -> None:
    """The failure of one cancels the other, which had come further than a replay lets it."""

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        further = asyncio.Event()

        async def fail() -> None:
            await further.wait()
            raise ValueError("broken")

        async def other() -> None:
            await step.do("first", later, 1)
            await step.do("second", later, 2)
            further.set()
            await step.sleep("long", 6000)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(other())
                group.create_task(step.do("fails", fail))
        except* ValueError:
            log.append("caught")
        await step.do("compensate", lambda: noted(log, "compensated"))
        log.append(step.is_replaying)
        await step.sleep("nap", 60)
        log.append(step.is_replaying)
        return "done"

    log: list[Any] = []
    instance = run_once(run, log)
    assert instance.status == S.WAITING, (instance.error, instance.blocked)
    stopped_clock.advance(60)
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, "done"), instance.blocked
    assert log == ["caught", "compensated", False, "caught", True, False]


# Programs that look at which one is first ---------------------------------------------------------------------------------


async def as_completed(step: AsyncStep, log: list[Any]) -> Any:
    found = []
    for future in asyncio.as_completed([step.do(f"x{n}", later, n, n / 20) for n in (3, 1, 2)]):
        value = await future
        found.append(await step.do(f"post {value}", partial(str, value)))
        log.append(value)
        await step.sleep(f"nap {value}", 60)
    return found


async def wait_for_the_first(step: AsyncStep, log: list[Any]) -> Any:
    tasks = {asyncio.create_task(step.do(f"x{n}", later, n, n / 20)) for n in (3, 1, 2)}
    found = []
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        found.append(sorted(task.result() for task in done))
        await step.do(f"post {found[-1]}", lambda: log.append(found[-1]))
        await step.sleep(f"nap {found[-1]}", 60)
    return found


async def a_queue(step: AsyncStep, log: list[Any]) -> Any:
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def produce(number: int) -> None:
        await step.do(f"x{number}", later, number, number / 20)
        await step.sleep(f"nap of {number}", 60 * (4 - number))
        await queue.put(number)

    async with asyncio.TaskGroup() as group:
        for number in (3, 1, 2):
            group.create_task(produce(number))
        found = []
        for place in range(3):
            found.append(await queue.get())
            await step.do(f"take {found[-1]}", lambda: log.append(found[-1]))
            await step.sleep(f"nap {place}", 1)
    return found


async def a_map_against_a_step(step: AsyncStep, log: list[Any]) -> Any:
    tasks = {
        asyncio.create_task(step.map("all", later, [1, 2, 3]), name="map"),
        asyncio.create_task(step.do("slow", later, 4, 0.3), name="step"),
    }
    found = []
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        found += sorted(task.get_name() for task in done)
        await step.do(f"post {found}", log.append, list(found))
        await step.sleep(f"nap {found}", 60)
    return found


@pytest.mark.parametrize(
    "run", [as_completed, wait_for_the_first, a_queue, a_map_against_a_step], ids=lambda run: run.__name__
)
@pytest.mark.parametrize("clock", ["stopped", "running"])
def test_a_replay_gets_its_answers_in_the_order_in_which_they_came(run: AsyncRun, clock: str, request: Any) -> None:
    """What was first stays first, however fast a replay is."""
    stopped: StoppedClock | None = request.getfixturevalue("stopped_clock") if clock == "stopped" else None
    log: list[Any] = []
    instance = run_once(run, log)
    for _ in range(20):
        if instance.status != S.WAITING:
            break
        if stopped is not None:
            stopped.advance(60)
        else:
            due = instance.steps.filter(status="pending", wake_at__isnull=False)
            due.update(wake_at=instance.created)
            WorkflowInstance.objects.update(wake_at=instance.created)
        instance = drained(instance)
    assert instance.status == S.COMPLETE, (instance.error, instance.blocked)
    assert sorted(map(str, instance.output)) == sorted(set(map(str, instance.output)))
    bodies = [step for step in instance.steps.all() if step.name.startswith(("post", "take"))]
    assert [step.attempts for step in bodies] == [1] * len(instance.output)
