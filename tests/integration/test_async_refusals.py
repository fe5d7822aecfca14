"""Calls of an ``async def run`` that are refused: left behind, under one name, in a body, from elsewhere, not awaited (design 6)."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from durableflow import AsyncStep
from durableflow.models import WorkflowInstance
from tests.integration.async_flows import error_of, later, run_once
from tests.support.engine import noted, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


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
