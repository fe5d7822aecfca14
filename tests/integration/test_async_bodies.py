"""Attempts of bodies in an ``async def run``: retries, lost workers, stops (design 6)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from durableflow import AsyncStep, Retries, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.engine import endings, shutdown
from durableflow.engine.asyncruntime import AsyncRuntime
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.loop import LoopThread
from durableflow.engine.steprun import StepRun
from durableflow.models import WorkflowInstance
from tests.integration.async_flows import async_workflow, error_of, later
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of, noted, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# Retries ----------------------------------------------------------------------------------------------------------------


def test_an_async_body_is_tried_again_after_its_delay(stopped_clock: StoppedClock) -> None:
    async def body() -> int:
        attempt = get_step_context().attempt
        log.append(attempt)
        await asyncio.sleep(0)
        if attempt < 3:
            raise ConnectionError("away")
        return attempt

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        retries = Retries(limit=3, delay=60, backoff="constant")
        return await asyncio.gather(step.do("work", body, retries=retries), step.do("beside", later, "beside"))

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    for _ in range(2):
        assert instance.status == S.WAITING, (instance.error, instance.blocked)
        stopped_clock.advance(60)
        instance = drained(instance)
    assert (instance.status, instance.output, log) == (S.COMPLETE, [3, "beside"], [1, 2, 3])
    assert [entry["error"]["message"] for entry in history_of(instance, "attempt_errored")] == ["away", "away"]


def test_a_retry_that_is_due_while_others_run_needs_no_second_execution() -> None:
    async def run(step: AsyncStep, log: list[Any]) -> Any:
        again = asyncio.Event()

        async def fails_once() -> int:
            attempt = get_step_context().attempt
            if attempt == 1:
                raise ConnectionError("away")
            again.set()
            return attempt

        async def beside() -> bool:
            await again.wait()
            return True

        retries = Retries(limit=1, delay=0.2)
        return await asyncio.gather(step.do("work", fails_once, retries=retries), step.do("beside", beside, timeout=20))

    instance = drained(async_workflow(run, []).create())
    assert (instance.output, instance.execution) == ([2, True], 1), (instance.error, instance.blocked)


def test_a_step_that_failed_for_good_is_not_tried_at_a_replay(stopped_clock: StoppedClock) -> None:
    async def body() -> None:
        log.append("body")
        raise ValueError("broken")

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        try:
            await step.do("work", body)
        except ValueError as error:
            await step.sleep("nap", 60)
            return str(error)

    log: list[Any] = []
    instance = drained(async_workflow(run, log).create())
    stopped_clock.advance(60)
    assert (drained(instance).output, log) == ("broken", ["body"])


def test_atomic_takes_plain_bodies_only() -> None:
    async def body() -> None:
        log.append("async")

    def plain() -> int:
        Group.objects.create(name="made")
        assert connection.in_atomic_block
        return Group.objects.count()

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        found: list[Any] = [await step.do("plain", plain, atomic=True)]
        for name, refused in (("async", body), ("lambda", lambda: body())):
            try:
                await step.do(name, refused, atomic=True)
            except Exception as error:
                found.append(str(error))
        return found

    log: list[Any] = []
    count, *refused = drained(async_workflow(run, log).create()).output
    assert count == 1
    assert all("atomic: the body is asynchronous" in message for message in refused)
    assert (len(refused), log) == (2, [])


# Other programs ---------------------------------------------------------------------------------------------------------


def test_a_body_may_run_another_program() -> None:
    async def body() -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print('said')", stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        return said.decode().strip()

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return await step.do("run", body)

    instance = drained(async_workflow(run, []).create())
    assert instance.output == "said", instance.error


# Lost workers and stops ---------------------------------------------------------------------------------------------------


def test_a_lost_worker_costs_an_attempt_and_finished_bodies_stay(stopped_clock: StoppedClock, monkeypatch: Any) -> None:
    """The process dies in the body of the second step: the first one does not run again."""

    async def body() -> int:
        log.append("second")
        return get_step_context().attempt

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        await step.do("first", lambda: noted(log, "first"))
        return await step.do("second", body, retries=2)

    log: list[Any] = []
    instance = async_workflow(run, log).create()
    write = StepRun.write

    def die(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.identity.name == "second":
            raise endings.LeaseLost("the process is gone")
        return write(self, *args, **kwargs)

    monkeypatch.setattr(StepRun, "write", die)
    drained(instance)
    monkeypatch.setattr(StepRun, "write", write)
    stopped_clock.outlast_leases()
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, 2), (instance.error, instance.blocked)
    assert log == ["first", "second", "second"]
    assert "attempt_lost" in types_of(instance)


def test_an_interrupted_instance_runs_its_bodies_one_at_a_time_until_one_is_stored(stopped_clock: StoppedClock) -> None:
    at_once: list[int] = []
    working = [0]
    both: dict[asyncio.AbstractEventLoop, asyncio.Barrier] = {}

    async def body(number: int) -> int:
        working[0] += 1
        at_once.append(working[0])
        if number:  # when the first is stored, the two others must run at the same time to get on
            await asyncio.wait_for(both.setdefault(asyncio.get_running_loop(), asyncio.Barrier(2)).wait(), 30)
        working[0] -= 1
        return number

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return await asyncio.gather(*(step.do("work", body, number, retries=2) for number in range(3)))

    instance = async_workflow(run, []).create()
    claim("default", 1)  # by a worker that dies
    stopped_clock.outlast_leases()
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, [0, 1, 2]), (instance.error, instance.blocked)
    assert at_once == [1, 1, 2]


def test_a_stop_gives_the_instance_back_between_its_steps() -> None:
    """SIGINT while nothing but a plain sleep is under way."""

    class Stopped(Workflow[Any, Any]):
        async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
            await step.do("before", lambda: None)
            if os.environ.pop("DF_TEST_STOP", None):
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(30)
            return "done"

    row = Stopped.create()
    os.environ["DF_TEST_STOP"] = "1"
    with pytest.raises(KeyboardInterrupt):
        drain()
    row.refresh_from_db()
    assert (row.status, row.lease_token, row.interruptions) == (S.QUEUED, None, 0)
    assert drained(row).output == "done"


def test_a_stop_lets_bodies_in_flight_end_and_stores_them(monkeypatch: Any) -> None:
    """A stop that is seen between two calls, while an async body runs."""
    stop = threading.Event()

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async def body() -> str:
            stop.set()
            await asyncio.sleep(0.5)
            return "body"

        async def other() -> None:
            while not stop.is_set():
                await asyncio.sleep(0.01)
            await step.do("after the stop", lambda: noted(log, "after"))

        found = await asyncio.gather(step.do("body", body), other())
        return found[0]

    log: list[Any] = []
    row = async_workflow(run, log).create()
    monkeypatch.setattr(shutdown, "_sources", [stop.is_set])
    with pytest.raises(KeyboardInterrupt):
        claimed = claim("default", 1)[0]
        execute(claimed)
    row.refresh_from_db()
    assert (row.status, row.lease_token) == (S.QUEUED, None)
    assert (steps_of(row), log) == ([("body-1", "complete")], [])
    monkeypatch.setattr(shutdown, "_sources", [])
    assert drained(row).output == "body"


def test_an_execution_that_ends_with_calls_queued_is_freed() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(step.do("fails", fail))
            group.create_task(step.sleep("nap", 60))

    instance = drained(async_workflow(run, []).create())
    assert instance.status == S.ERRORED
    gc.collect()
    kept = [found for found in gc.get_objects() if type(found) is AsyncRuntime]  # isinstance() would ask dead proxies
    assert instance.instance_id not in [found.instance_id for found in kept]


def test_max_duration_ends_a_run_that_only_waits_for_its_own_timer() -> None:
    class Long(Workflow[Any, Any]):
        class Meta:
            max_duration = 0.3

        async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
            await asyncio.sleep(60)

    instance = drained(Long.create())
    assert instance.status == S.ERRORED
    assert error_of(instance)["type"] == "durableflow.WorkflowTimeout"


def test_a_process_without_threads_loses_the_instance_which_nobody_has_to_resume(monkeypatch: Any) -> None:
    def start(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        return await step.do("work", later, 1)

    instance = async_workflow(run, []).create()
    with monkeypatch.context() as patch:
        patch.setattr(LoopThread, "start", start)
        (claimed,) = claim("default", 1)
        execute(claimed)
    instance.refresh_from_db()
    assert instance.status == S.RUNNING, instance.error
    assert drained(instance).output == 1, (instance.status, instance.error, instance.blocked)


def test_an_engine_failure_blocks_the_instance(monkeypatch: Any) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broken engine")

    async def run(step: AsyncStep, log: list[Any]) -> Any:
        await step.sleep("nap", 60)

    monkeypatch.setattr(endings, "suspend", fail)
    instance = drained(async_workflow(run, []).create())
    assert instance.status == S.PAUSED
    assert "broken engine" in instance.blocked
