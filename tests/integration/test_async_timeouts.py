"""Bodies of an ``async def run`` that are cut short: by their timeout, or because their call is cancelled (design 6)."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group

from durableflow import AsyncStep, Retries, StepTimeout, drain, get_step_context
from durableflow.engine import asyncbody, asyncjobs, asyncrun
from durableflow.models import WorkflowInstance
from tests.integration.async_flows import async_workflow
from tests.support.concurrency import PATIENCE, Gate, Task, eventually
from tests.support.engine import drained, history_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def give_time_to_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the second that a cancelled body has: the process may stand still meanwhile."""
    for module in (asyncbody, asyncjobs, asyncrun):
        for name in {"CANCEL_SECONDS", "BLOCKED_SECONDS", "CLOSE_SECONDS"} & set(vars(module)):
            monkeypatch.setattr(module, name, PATIENCE)


def test_a_timeout_cancels_the_body_which_may_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    give_time_to_clean_up(monkeypatch)

    async def body() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            log.append(await sync_to_async(Group.objects.count)())

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        try:
            await step.do("slow", body, timeout=0.2)
        except StepTimeout as error:
            return str(error)

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    assert instance.status == S.COMPLETE
    assert "step 'slow-1' took longer than its timeout of 0.2 seconds" in instance.output
    assert log == [0]


def test_a_body_that_swallows_its_cancellation_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """Its late value is dropped."""
    stop = threading.Event()

    async def body() -> str:
        while not stop.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        return "late"

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        try:
            await step.do("stubborn", body, timeout=0.2)
        except StepTimeout:
            return "timed out"

    try:
        with caplog.at_level(logging.WARNING, "durableflow"):
            instance = drained(async_workflow(run, []).create())
    finally:
        stop.set()
    assert (instance.status, instance.output) == (S.COMPLETE, "timed out")
    assert "swallows its cancellation" in caplog.text


def test_a_body_that_was_given_up_keeps_no_instance_from_being_put_away() -> None:
    stop = threading.Event()

    async def body() -> None:
        while not stop.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        with suppress(StepTimeout):
            await step.do("stubborn", body, timeout=0.2)
        await step.wait_for_event("answer", type="answer")

    try:
        instance = drained(async_workflow(run, []).create())
    finally:
        stop.set()
    assert (instance.status, instance.wake_at is not None) == (S.WAITING, True)


def test_a_value_that_comes_after_the_deadline_counts_as_timed_out() -> None:
    """A blocking call has kept the loop from cancelling it in time."""

    async def body() -> str:
        time.sleep(0.5)
        return "late"

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        try:
            return await step.do("blocks", body, timeout=0.2)
        except StepTimeout:
            return "timed out"

    assert drained(async_workflow(run, []).create()).output == "timed out"


def test_a_body_that_blocks_the_loop_is_given_up_by_the_watcher() -> None:
    """Its attempt is recorded while it hangs, and the next one runs elsewhere."""
    gate = Gate()

    async def body() -> str:
        if get_step_context().attempt == 1:
            gate.stop_here()
            return "A"
        return "B"

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return await step.do("blocks", body, timeout=0.3, retries=Retries(limit=1, delay=0))

    instance = async_workflow(run, []).create()
    try:
        task = Task(lambda: drain(1))
        gate.wait_until_reached()
        task.result()  # the instance's thread does not wait for it
        instance.refresh_from_db()
        assert instance.status == S.WAITING
        instance = drained(instance)
        assert (instance.status, instance.output) == (S.COMPLETE, "B")
        (first,) = history_of(instance, "attempt_errored")
        assert first["error"]["type"] == "durableflow.StepTimeout"
    finally:
        gate.open()


@pytest.mark.parametrize("where", ["main", "thread"])
def test_the_deadline_counts_for_what_a_body_does_in_the_instances_thread(where: str) -> None:
    """sync_to_async is interrupted by the alarm in the main thread, and by the watcher in another one."""

    def hang() -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            time.sleep(0.05)

    async def body() -> str:
        if get_step_context().attempt == 1:
            await sync_to_async(hang)()
        return "second"

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return await step.do("hangs", body, timeout=0.3, retries=Retries(limit=1, delay=0))

    instance = async_workflow(run, []).create()
    if where == "main":
        instance = drained(instance)
    else:
        Task(lambda: drain(1)).result()
        eventually(lambda: drained(instance).status == S.COMPLETE, "the second attempt ran")
    assert (instance.status, instance.output) == (S.COMPLETE, "second"), (instance.error, instance.blocked)
    (first,) = history_of(instance, "attempt_errored")
    assert first["error"]["type"] == "durableflow.StepTimeout"


def test_waiting_for_the_instances_thread_is_none_of_a_bodys_time() -> None:
    """A plain body of a sibling keeps that thread busy."""

    async def orm() -> int:
        await asyncio.sleep(0.1)
        return await Group.objects.acount()

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return await asyncio.gather(step.do("orm", orm, timeout=1.4), step.do("plain", time.sleep, 2))

    instance = drained(async_workflow(run, []).create())
    assert instance.output == [0, None], instance.error


def test_a_cancelled_call_cancels_its_body_and_records_nothing() -> None:
    async def body() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            log.append("cancelled")

    started = asyncio.Event()

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        task = asyncio.create_task(step.do("slow", body, retries=1))
        await started.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return "done"

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    assert (instance.status, instance.output, log) == (S.COMPLETE, "done", ["cancelled"])
    assert steps_of(instance) == []


def test_a_call_whose_task_is_cancelled_at_the_end_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its body takes a moment to clean up, after run() has returned."""
    give_time_to_clean_up(monkeypatch)
    started = asyncio.Event()

    async def body() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
            log.append("cleaned up")

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        task = asyncio.create_task(step.do("slow", body, retries=1))
        await started.wait()
        task.cancel()
        return "done"

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    assert (instance.status, instance.output, log) == (S.COMPLETE, "done", ["cleaned up"]), instance.error
