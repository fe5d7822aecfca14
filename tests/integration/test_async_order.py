"""Identity and determinism of an ``async def run``: names, never timing; what is refused (design 6)."""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from durableflow import AsyncStep
from durableflow.models import WorkflowInstance
from tests.integration.async_flows import AsyncRun, async_workflow, error_of, later
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, noted, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def run_once(run: AsyncRun, log: list[Any] | None = None) -> WorkflowInstance:
    return drained(async_workflow(run, [] if log is None else log).create())


def changed_to(instance: WorkflowInstance, run: AsyncRun, log: list[Any]) -> WorkflowInstance:
    """The instance after its next execution, by other code."""
    async_workflow(run, log)
    return drained(instance)


# Calls that are left behind ---------------------------------------------------------------------------------------------


def test_a_call_that_nobody_awaits_is_reported_by_its_name() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        _call = step.do("charge card", lambda: noted(log, "charged"))
        await step.do("mail", lambda: noted(log, "mailed"))

    log: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        instance = run_once(run, log)
        gc.collect()
    assert instance.status == S.ERRORED
    assert error_of(instance)["type"].endswith("InvalidDurableCall")
    assert "do 'charge card' of sample/" in error_of(instance)["message"]
    assert "was called but not awaited" in error_of(instance)["message"]
    assert log == ["mailed"]


def test_an_unawaited_call_hides_no_error() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        _call = step.do("charge card", lambda: None)
        raise ValueError("the cause")

    assert error_of(run_once(run))["message"] == "the cause"


def test_a_call_that_is_still_pending_at_the_end_is_reported_by_its_name() -> None:
    """asyncio.wait returns with waits open."""

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        tasks = {
            asyncio.create_task(step.wait_for_event("answer", type="answer")),
            asyncio.create_task(step.do("work", later, 1)),
        }
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return "left"

    instance = run_once(run)
    assert instance.status == S.ERRORED
    assert "wait_for_event 'answer' of sample/" in error_of(instance)["message"]
    assert "was not over when run() returned" in error_of(instance)["message"]


def test_a_call_that_is_cancelled_is_not_left_behind() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        tasks = {
            asyncio.create_task(step.wait_for_event("answer", type="answer")),
            asyncio.create_task(step.do("work", later, 1)),
        }
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return done.pop().result()

    instance = run_once(run)
    assert (instance.status, instance.output) == (S.COMPLETE, 1), (instance.error, instance.blocked)
    assert dict(steps_of(instance)) == {"answer-1": "cancelled", "work-1": "complete"}


# Refused calls ----------------------------------------------------------------------------------------------------------


def test_two_tasks_of_one_scope_may_not_use_one_name() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def charge(item: str) -> None:
            await step.do("charge", lambda: noted(log, item))

        await asyncio.gather(charge("a"), charge("b"))

    instance = run_once(run)
    assert instance.status == S.ERRORED
    message = error_of(instance)["message"]
    assert "do 'charge'" in message
    assert "two tasks" in message
    assert "Put the item into the name" in message


def test_the_same_name_in_the_calling_task_is_no_clash() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return await asyncio.gather(*(step.do("charge", later, item) for item in "abc"))

    instance = run_once(run)
    assert instance.output == ["a", "b", "c"]
    assert [label for label, _ in steps_of(instance)] == ["charge-1", "charge-2", "charge-3"]


def test_a_clash_that_is_caught_blocks_the_instance() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def charge(item: str) -> None:
            await step.do("charge", lambda: noted(log, item))

        await asyncio.gather(charge("a"), charge("b"), return_exceptions=True)
        return "ignored"

    instance = run_once(run)
    assert (instance.status, bool(instance.blocked)) == (S.PAUSED, True)
    assert "two tasks" in instance.blocked


def nested_async(step: AsyncStep) -> Any:
    async def body() -> Any:
        return await step.do("inner", lambda: 1)

    return body


def nested_plain(step: AsyncStep) -> Any:
    return lambda: step.do("inner", lambda: 1)


def nested_in_a_task(step: AsyncStep) -> Any:
    async def body() -> Any:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(inner())
        return task.result()

    async def inner() -> Any:
        return await step.do("inner", lambda: 1)

    return body


def nested_in_sync_to_async(step: AsyncStep) -> Any:
    async def body() -> Any:
        return await sync_to_async(lambda: step.do("inner", lambda: 1))()

    return body


@pytest.mark.parametrize("nested", [nested_async, nested_plain, nested_in_a_task, nested_in_sync_to_async])
def test_a_durable_call_in_a_body_is_refused_and_names_both(nested: Any) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        await step.do("outer", nested(step))

    instance = run_once(run)
    assert instance.status == S.ERRORED, instance.blocked
    assert "do 'inner' was called inside the body of step 'outer-1'" in str(instance.error)


def test_a_durable_call_beside_a_body_is_fine() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        started = asyncio.Event()
        go = asyncio.Event()

        async def body() -> str:
            started.set()
            await go.wait()
            return "body"

        task = asyncio.create_task(step.do("body", body))
        await started.wait()
        await step.do("beside", lambda: None)
        go.set()
        return await task

    assert run_once(run).output == "body"


@pytest.mark.parametrize("way", ["thread", "callback", "nested loop"])
def test_calls_from_elsewhere_are_refused(way: str) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def call() -> Any:
            return await step.do("inner", lambda: 1)

        if way == "thread":
            _call = await asyncio.to_thread(step.do, "inner", lambda: 1)
        elif way == "nested loop":
            await sync_to_async(async_to_sync(call))()
        else:
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            loop.call_soon(lambda: future.set_result(loop.create_task(call())))
            await (await future)

    instance = run_once(run)
    assert instance.status == S.ERRORED
    assert "do 'inner' of sample/" in error_of(instance)["message"]


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


# Calls that nobody has awaited ----------------------------------------------------------------------------------------------


def test_the_truth_of_a_call_is_not_known_before_it_is_awaited() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        approved = step.wait_for_approval("release", title="Release?")
        if not approved:  # type: ignore[truthy-bool]
            return "held"
        await step.do("pay", lambda: noted(log, "paid"))

    log: list[Any] = []
    instance = run_once(run, log)
    assert (instance.status, log) == (S.ERRORED, [])
    assert "wait_for_approval 'release' of sample/" in error_of(instance)["message"]
    assert "Write await before the call" in error_of(instance)["message"]


@pytest.mark.parametrize("way", ["argument", "item", "returned"])
def test_a_call_in_place_of_its_value_reaches_no_body(way: str) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        charge = step.do("charge card", lambda: noted(log, "charged"))
        if way == "argument":
            await step.do("mail", lambda value: noted(log, value), charge)
        elif way == "item":
            await step.map("mail", lambda value: noted(log, value), [charge])
        else:
            await step.do("mail", lambda: charge)

    log: list[Any] = []
    instance = run_once(run, log)
    assert (instance.status, log) == (S.ERRORED, []), instance.blocked
    assert "do 'charge card'" in error_of(instance)["message"]
    assert "not awaited" in error_of(instance)["message"]
