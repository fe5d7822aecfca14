"""A durable call that has to wait stays pending; the instance is put away when nothing else goes on (design 6; spike 5)."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group

from durableflow import AsyncStep, EventTimeout
from durableflow.engine import asyncanswers
from durableflow.engine.delivery import deliver
from durableflow.models import PendingEvent, WorkflowInstance
from tests.integration.async_flows import AsyncRun, async_workflow, later
from tests.integration.conftest import StoppedClock
from tests.support.concurrency import PATIENCE
from tests.support.engine import drained, noted, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def waiting(run: AsyncRun, log: list[Any] | None = None) -> WorkflowInstance:
    """An instance that waits after its first execution."""
    instance = drained(async_workflow(run, [] if log is None else log).create())
    assert instance.status == S.WAITING, (instance.status, instance.error, instance.blocked)
    return instance


# Ways to wait (table of spike 5) ------------------------------------------------------------------------------------------


async def gather(step: AsyncStep, log: list[Any]) -> Any:
    return await asyncio.gather(step.sleep("one", 60), step.sleep("two", 120), step.do("body", later, 3))


async def gather_exceptions(step: AsyncStep, log: list[Any]) -> Any:
    found = asyncio.gather(
        step.sleep("one", 60), step.sleep("two", 120), step.do("body", later, 3), return_exceptions=True
    )
    return await found


async def task_group(step: AsyncStep, log: list[Any]) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(step.sleep("one", 60)),
            group.create_task(step.sleep("two", 120)),
            group.create_task(step.do("body", later, 3)),
        ]
    return [task.result() for task in tasks]


async def bare_except(step: AsyncStep, log: list[Any]) -> Any:
    async def nap(name: str, seconds: int) -> None:
        try:
            await step.sleep(name, seconds)
        except:  # noqa: E722
            log.append("swallowed")

    return await asyncio.gather(nap("one", 60), nap("two", 120), step.do("body", later, 3))


async def branches_of_several_steps(step: AsyncStep, log: list[Any]) -> Any:
    async def branch(name: str, seconds: int) -> None:
        await step.do(f"before {name}", lambda: None)
        await step.sleep(name, seconds)
        await step.do(f"after {name}", lambda: None)

    found = await asyncio.gather(branch("one", 60), branch("two", 120), step.do("body", later, 3))
    return found


@pytest.mark.parametrize(
    "run", [gather, gather_exceptions, task_group, bare_except, branches_of_several_steps], ids=lambda run: run.__name__
)
def test_all_that_waits_is_recorded_bodies_end_first_and_the_run_goes_on(
    run: AsyncRun, stopped_clock: StoppedClock
) -> None:
    """The first pass records both sleeps and the body; the next ones go on from there."""
    instance = waiting(run)
    recorded = dict(steps_of(instance))
    assert (recorded["one-1"], recorded["two-1"], recorded["body-1"]) == ("pending", "pending", "complete")
    assert instance.wake_at == stopped_clock.now + timedelta(seconds=60)
    stopped_clock.advance(60)
    instance = drained(instance)
    assert instance.status == S.WAITING
    assert dict(steps_of(instance))["one-1"] == "complete"
    stopped_clock.advance(60)
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, [None, None, 3])


def test_wait_for_gives_up_by_its_own_timer_which_keeps_the_loop_awake() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        try:
            await asyncio.wait_for(step.wait_for_event("answer", type="answer"), 0.2)
        except TimeoutError:
            return "gave up"

    instance = drained(async_workflow(run, []).create())
    assert (instance.status, instance.output) == (S.COMPLETE, "gave up")
    assert steps_of(instance) == [("answer-1", "cancelled")]


def test_a_plain_sleep_outside_a_step_keeps_the_loop_awake() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def plain() -> None:
            await asyncio.sleep(0.2)
            log.append("slept")

        await asyncio.gather(plain(), step.wait_for_event("answer", type="answer"))

    log: list[Any] = []
    waiting(run, log)
    assert log == ["slept"]


def test_a_foreign_descriptor_keeps_the_loop_awake() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        here, there = socket.socketpair()
        here.setblocking(False)
        timer = threading.Timer(0.2, there.send, [b"x"])
        timer.start()

        async def read() -> None:
            log.append(await asyncio.get_running_loop().sock_recv(here, 1))

        try:
            await asyncio.gather(read(), step.wait_for_event("answer", type="answer"))
        finally:
            timer.join()
            here.close()
            there.close()

    log: list[Any] = []
    waiting(run, log)
    assert log == [b"x"]


def test_work_of_an_executor_keeps_the_loop_awake() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def work() -> None:
            log.append(await asyncio.to_thread(threading.Event().wait, 0.2))
            log.append(await sync_to_async(Group.objects.count)())

        await asyncio.gather(work(), step.wait_for_event("answer", type="answer"))

    log: list[Any] = []
    waiting(run, log)
    assert log == [False, 0]


def test_waits_and_approvals_in_several_tasks_are_open_at_once(stopped_clock: StoppedClock) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def approve(name: str) -> bool:
            decision = await step.wait_for_approval(name, title=name)
            await step.do(f"act on {name}", lambda: noted(log, name))
            return bool(decision)

        event, *decisions = await asyncio.gather(
            step.wait_for_event("answer", type="answer"), approve("first"), approve("second")
        )
        return [event.payload, *decisions]

    log: list[Any] = []
    instance = waiting(run, log)
    assert PendingEvent.objects.open().count() == 3
    PendingEvent.objects.get(name="second").approve(by=None)
    instance = drained(instance)
    assert (instance.status, log) == (S.WAITING, ["second"])
    instance.send_event("answer", 7)
    instance = drained(instance)
    PendingEvent.objects.get(name="first").reject(by=None)
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, [7, False, True])
    assert log == ["second", "first"]


def test_a_wait_that_times_out_raises_in_its_task_alone(stopped_clock: StoppedClock) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def wait() -> str:
            try:
                await step.wait_for_event("answer", type="answer", timeout=60)
            except EventTimeout:
                return await step.do("give up", lambda: "gave up")
            return "answered"

        return await asyncio.gather(wait(), step.sleep("nap", 120))

    instance = waiting(run)
    stopped_clock.advance(60)
    drained(instance)
    stopped_clock.advance(60)
    assert drained(instance).output == ["gave up", None]


def test_what_arrives_while_a_body_runs_lets_its_wait_go_on_at_once() -> None:
    """No second execution is needed: the wait is answered while the other body still runs."""
    arrived = threading.Event()

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def wait() -> None:
            event = await step.wait_for_event("answer", type="answer")
            log.append(event.payload)
            arrived.set()

        async def body() -> bool:
            await sync_to_async(open_wait, thread_sensitive=False)()
            return await asyncio.to_thread(arrived.wait, 20)

        _none, seen = await asyncio.gather(wait(), step.do("body", body))
        return seen

    def open_wait() -> None:
        for _ in range(400):
            if PendingEvent.objects.open().exists():
                break
            threading.Event().wait(0.02)
        WorkflowInstance.objects.get().send_event("answer", 7)
        deliver("default")

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    assert (instance.status, instance.output, log) == (S.COMPLETE, True, [7])
    assert instance.execution == 1


# While the instance is put away --------------------------------------------------------------------------------------------


def test_a_durable_call_in_a_finally_does_nothing_while_suspending(stopped_clock: StoppedClock) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        try:
            await step.sleep("nap", 60)
        finally:
            log.append("finally")
            await step.do("clean", lambda: noted(log, "clean"))
            log.append("after")

    log: list[Any] = []
    instance = waiting(run, log)
    assert (log, steps_of(instance)) == (["finally"], [("nap-1", "pending")])
    stopped_clock.advance(60)
    assert drained(instance).status == S.COMPLETE
    assert log == ["finally", "finally", "clean", "after"]


def test_cleaning_up_may_use_the_database(stopped_clock: StoppedClock) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        try:
            await step.sleep("nap", 60)
        finally:
            log.append(await sync_to_async(Group.objects.count)())

    log: list[Any] = []
    waiting(run, log)
    assert log == [0]


def test_a_task_that_swallows_its_cancellation_is_given_up_by_name(caplog: Any) -> None:
    stop = threading.Event()

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def stubborn() -> None:
            while not stop.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(stubborn(), name="stubborn task")
        await asyncio.gather(task, step.wait_for_event("answer", type="answer"))

    with caplog.at_level(logging.WARNING, "durableflow.engine"):
        waiting(run)
    assert "stubborn task" in caplog.text


def test_a_program_that_waits_for_something_of_its_own_is_not_put_away() -> None:
    """No durable call is pending: it goes on when its own thread tells it to."""

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        timer = threading.Timer(0.3, loop.call_soon_threadsafe, [future.set_result, "told"])
        timer.start()
        try:
            return await future
        finally:
            timer.join()

    instance = drained(async_workflow(run, []).create())
    assert (instance.status, instance.output) == (S.COMPLETE, "told")


def test_pending_calls_are_read_again_when_their_moment_comes_while_others_run() -> None:
    """A sleep that ends while a sibling's body runs goes on without a second execution."""

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        woke = asyncio.Event()

        async def nap() -> None:
            await step.sleep("nap", 0.3)
            woke.set()

        async def body() -> bool:
            await woke.wait()
            return True

        return await asyncio.gather(nap(), step.do("body", body, timeout=20))

    instance = drained(async_workflow(run, []).create())
    assert (instance.status, instance.output, instance.execution) == (S.COMPLETE, [None, True], 1)


def test_what_keeps_an_instance_from_being_put_away_is_told(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncanswers, "TELL_SECONDS", 0.2)

    tell = asyncanswers.Answers._tell_why_awake

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        loop, is_told = asyncio.get_running_loop(), asyncio.Event()

        def and_go_on(self: Any, calls: Any) -> None:
            tell(self, calls)
            loop.call_soon_threadsafe(is_told.set)

        monkeypatch.setattr(asyncanswers.Answers, "_tell_why_awake", and_go_on)
        until_told = asyncio.wait_for(is_told.wait(), PATIENCE)  # a timer
        await asyncio.gather(step.wait_for_event("answer", type="answer"), until_told)

    with caplog.at_level(logging.WARNING, "durableflow.engine"):
        waiting(run)
    (told,) = [record.getMessage() for record in caplog.records if "cannot be put away" in record.getMessage()]
    assert "waits at answer-1" in told
    assert "a timer" in told


def test_a_loop_that_spins_gets_its_answers_all_the_same() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        task = asyncio.create_task(step.do("work", later, 1))
        while not task.done():
            await asyncio.sleep(0)
        return task.result()

    instance = drained(async_workflow(run, []).create())
    assert (instance.status, instance.output) == (S.COMPLETE, 1)


def test_a_run_that_waits_for_what_can_never_come_is_left_to_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncanswers, "STALLED_SECONDS", 0.3)

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def produce() -> None:
            await queue.put(await step.do("work", fail))

        async def fail() -> int:
            raise ValueError("broken")

        task = asyncio.create_task(produce(), name="producer")
        found = await queue.get()
        await task
        return found

    instance = drained(async_workflow(run, []).create())
    assert instance.status == S.PAUSED
    assert "waits for something that no call, timer, connection or task will bring" in instance.blocked
    assert "producer has ended with ValueError: broken" in instance.blocked
