"""``async def run``: bodies, tasks, the ORM, context (design 6; spike 5, 8)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.utils import translation

from durableflow import AsyncStep, Step, Workflow, WorkflowEvent, get_step_context
from durableflow.models import PendingEvent, WorkflowInstance
from tests.integration.async_flows import AsyncRun, async_workflow, error_of, later
from tests.support.engine import drained, noted, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def complete(run: AsyncRun, log: list[Any] | None = None) -> Any:
    """The output of a run that ends in one execution."""
    instance = drained(async_workflow(run, [] if log is None else log).create())
    assert instance.status == S.COMPLETE, (instance.error, instance.blocked)
    return instance.output


# Bodies -----------------------------------------------------------------------------------------------------------------


def test_plain_and_async_bodies_run_once_and_their_values_are_recorded() -> None:
    log: list[Any] = []

    async def body(number: int) -> int:
        log.append("async")
        return await later(number)

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        first = await step.do("plain", lambda: noted(log, "plain", 1))
        second = await step.do("async", body, first + 1)
        third = await step.do("coroutine of a lambda", lambda: body(3))
        return [first, second, third]

    instance = drained(async_workflow(run, log).create())
    assert instance.output == [1, 2, 3]
    assert log == ["plain", "async", "async"]
    assert steps_of(instance) == [
        ("plain-1", "complete"),
        ("async-1", "complete"),
        ("coroutine of a lambda-1", "complete"),
    ]
    assert types_of(instance).count("step_completed") == 3


def test_a_plain_body_runs_in_the_instances_thread_an_async_one_does_not() -> None:
    mine = threading.get_ident()

    async def body() -> bool:
        return threading.get_ident() == mine

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return [await step.do("plain", lambda: threading.get_ident() == mine), await step.do("async", body)]

    assert complete(run) == [True, False]


def test_async_bodies_overlap() -> None:
    """They wait for each other: one after the other they would not end before their timeouts."""

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        here, there = asyncio.Event(), asyncio.Event()

        async def first() -> str:
            here.set()
            await there.wait()
            return "first"

        async def second() -> str:
            there.set()
            await here.wait()
            return "second"

        return await asyncio.gather(step.do("first", first, timeout=20), step.do("second", second, timeout=20))

    assert complete(run) == ["first", "second"]


def test_the_context_of_a_step_is_its_bodys_alone() -> None:
    async def body() -> list[Any]:
        context = get_step_context()
        inner = await asyncio.create_task(named())
        return [context.name, context.count, context.attempt, inner]

    async def named() -> str:
        return get_step_context().name

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        found = await asyncio.gather(
            step.do("a", body), step.do("b", body), step.do("plain", lambda: get_step_context().name)
        )
        with pytest.raises(RuntimeError):
            get_step_context()
        return found

    assert complete(run) == [["a", 1, 1, "a"], ["b", 1, 1, "b"], "plain"]


def test_an_error_of_an_async_body_is_raised_into_run_as_recorded() -> None:
    async def body() -> None:
        raise KeyError("missing")

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        try:
            await step.do("fails", body)
        except KeyError as error:
            return str(error)

    assert complete(run) == "'missing'"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_what_would_end_a_loop_fails_the_attempt(error: type[BaseException]) -> None:
    async def body() -> None:
        raise error("out")

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        try:
            await step.do("leaves", body)
        except Exception as failed:
            return str(failed)

    assert error.__name__ in complete(run)


# Tasks ------------------------------------------------------------------------------------------------------------------


def test_a_call_is_taken_by_all_that_take_a_coroutine() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        task = asyncio.create_task(step.do("task", lambda: 1))
        async with asyncio.TaskGroup() as group:
            grouped = group.create_task(step.do("grouped", lambda: 2))
        gathered = await asyncio.gather(step.do("gathered", lambda: 3), step.do("async", later, 4))
        waited = await asyncio.wait_for(step.do("waited for", lambda: 5), 20)
        shielded = await asyncio.shield(step.do("shielded", lambda: 6))
        done, _ = await asyncio.wait({asyncio.ensure_future(step.do("future", lambda: 7))})
        completed = [await future for future in asyncio.as_completed([step.do("completed", lambda: 8)])]
        return [await task, grouped.result(), *gathered, waited, shielded, done.pop().result(), *completed]

    assert complete(run) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_failed_step_in_a_task_group_cancels_the_others_and_ends_the_run() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            log.append("cancelled")

    log: list[Any] = []

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(step.do("slow", slow))
            group.create_task(step.do("fails", fail))

    instance = drained(async_workflow(run, log).create())
    assert instance.status == S.ERRORED
    assert error_of(instance)["step"] == "fails-1"
    assert log == ["cancelled"]


def test_gather_gives_a_recorded_error_as_a_value_if_asked_to() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        found = await asyncio.gather(step.do("works", later, 1), step.do("fails", fail), return_exceptions=True)
        return [repr(value) for value in found]

    assert complete(run) == ["1", "ValueError('broken')"]


def test_awaiting_a_call_twice_is_refused() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        call = step.do("once", lambda: 1)
        await call
        with pytest.raises(RuntimeError, match="cannot await do 'once' twice"):
            await call
        return "refused"

    assert complete(run) == "refused"


def test_values_that_cost_no_write_are_the_same_at_each_replay_in_each_task(stopped_clock: Any) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def values() -> list[str]:
            return [str(step.uuid4()), str(step.random.random()), str(step.uuid4())]

        found = await asyncio.gather(values(), values())
        log.append([*found, await values()])
        await step.sleep("nap", 60)
        assert (await step.now()).isoformat()

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    stopped_clock.advance(60)
    assert drained(instance).status == S.COMPLETE
    assert log[0] == log[1]
    values = [value for three in log[0] for value in three]
    assert len(set(values)) == 9


# The instance's thread ----------------------------------------------------------------------------------------------------


def test_user_code_orm_and_checkpoint_share_one_connection() -> None:
    """Spike 8: what sync_to_async runs uses the connection of the instance's thread."""
    mine = connection.connection if connection.ensure_connection() is None else None

    async def body() -> bool:
        return await sync_to_async(lambda: connection.connection is mine)()

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return [
            await step.do("plain", lambda: connection.connection is mine),
            await step.do("in an async body", body),
            await sync_to_async(lambda: connection.connection is mine)(),
        ]

    assert complete(run) == [True, True, True]


def test_the_asynchronous_orm_and_atomic_work() -> None:
    @sync_to_async
    def both() -> int:
        with transaction.atomic():
            Group.objects.create(name="in atomic")
            return Group.objects.count()

    async def body() -> list[Any]:
        await Group.objects.acreate(name="asynchronous")
        try:
            await sync_to_async(fail)()
        except ValueError:
            pass
        return [await both(), [group.name async for group in Group.objects.order_by("name")]]

    def fail() -> None:
        with transaction.atomic():
            Group.objects.create(name="rolled back")
            raise ValueError

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return await step.do("orm", body)

    assert complete(run) == [2, ["asynchronous", "in atomic"]]


def test_a_nested_async_to_sync_comes_back_to_the_loop() -> None:
    mine = threading.get_ident()

    async def inner() -> list[bool]:
        return [threading.get_ident() == mine, await sync_to_async(lambda: threading.get_ident() == mine)()]

    def outer() -> list[bool]:
        return async_to_sync(inner)()

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return [await sync_to_async(outer)(), await step.do("plain", outer)]

    assert complete(run) == [[False, True], [False, True]]


def test_threads_of_to_thread_leave_no_connection_behind() -> None:
    left: list[Any] = []

    def query() -> int:
        count = Group.objects.count()
        left.append(connection.connection)
        return count

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return await step.do("threads", lambda: asyncio.to_thread(query))

    assert complete(run) == 0
    if connection.vendor == "postgresql":
        assert left[0].closed
    else:
        with pytest.raises(Exception, match="closed"):
            left[0].execute("SELECT 1")


def test_the_callers_context_reaches_run_and_bodies() -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")

    async def body() -> str:
        return tenant.get()

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        outer = tenant.get()
        tenant.set("inner")
        with translation.override("de"):
            language = await step.do("language", lambda: translation.get_language())
        return [outer, await step.do("plain", lambda: tenant.get()), await step.do("async", body), language]

    tenant.set("outer")
    assert complete(run) == ["outer", "inner", "inner", "de"]
    assert tenant.get() == "outer"


def test_a_transaction_left_open_by_sync_to_async_is_refused() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        await sync_to_async(transaction.atomic().__enter__)()
        await step.do("pay", lambda: noted(log, "paid"))

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    assert instance.status == S.ERRORED
    assert "while atomic() on 'default' was open" in error_of(instance)["message"]
    assert log == []


def test_progress_is_set_while_run_goes_on(stopped_clock: Any) -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        await step.set_progress({"at": "start"})
        await step.sleep("nap", 60)

    instance = drained(async_workflow(run, []).create())
    assert instance.progress == {"at": "start"}


def test_continue_as_new_leaves_from_any_depth() -> None:
    log: list[Any] = []

    class Loops(Workflow):
        async def run(self, event: WorkflowEvent, step: AsyncStep) -> Any:
            number = event.params["number"]
            log.append((number, step.run_number))
            await step.do("work", later, number)

            async def deep() -> None:
                try:
                    step.continue_as_new({"number": number + 1})
                except Exception:
                    log.append("swallowed")

            if number < 3:
                await asyncio.gather(deep(), step.sleep("nap", 60))
            return number

    instance = drained(Loops.create({"number": 1}))
    assert (instance.status, instance.output) == (S.COMPLETE, 3), (instance.error, instance.blocked)
    assert log == [(1, 1), (2, 2), (3, 3)]


def test_continue_as_new_in_a_branch_is_refused() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def branch() -> None:
            step.continue_as_new({})

        try:
            await step.gather("all", branch)
        except ExceptionGroup as group:
            return str(group.exceptions[0])

    assert "continue_as_new() was called in the branch 'all-1[1]'" in complete(run)


def test_an_async_body_of_a_plain_run_is_refused_with_the_cure() -> None:
    class Plain(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.do("work", later, 1)

    instance = drained(Plain.create())
    assert instance.status == S.ERRORED
    assert "step 'work': the body is asynchronous, and run() is not" in error_of(instance)["message"]
    assert instance.steps.get().attempts == 1


def test_notify_may_be_an_async_function() -> None:
    told: list[str] = []

    async def tell(pending: PendingEvent) -> None:
        told.append(f"{pending.title} {await Group.objects.acount()}")

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return bool(await step.wait_for_approval("ok", title="Well?", notify=tell))

    instance = drained(async_workflow(run, []).create())
    assert (instance.status, told) == (S.WAITING, ["Well? 0"]), (instance.error, instance.blocked)
    PendingEvent.objects.get().approve(by=None)
    assert (drained(instance).output, len(told)) == (True, 1)
