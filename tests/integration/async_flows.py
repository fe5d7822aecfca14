"""A workflow whose ``async def run`` is a function of the test."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from durableflow import AsyncStep, Retries, Workflow, WorkflowEvent, get_step_context
from durableflow.models import WorkflowInstance
from tests.integration import eng_parallel_flows
from tests.integration.con_flows import die
from tests.support.engine import drained
from tests.support.ledger import Ledger

BRANCHES = ("A", "B", "C")
AsyncRun = Callable[[AsyncStep, list[Any]], Awaitable[Any]]


def async_workflow(run: AsyncRun, log: list[Any]) -> type[Workflow]:
    """A workflow named ``sample`` of an async function of the step and a log. Failed steps are not tried again."""

    class Sample(Workflow):
        class Meta:
            name = "sample"
            step_retries = Retries(limit=0)

        async def run(self, event: WorkflowEvent, step: AsyncStep) -> Any:
            return await run(step, log)

    return Sample


def run_once(run: AsyncRun, log: list[Any] | None = None) -> WorkflowInstance:
    """An instance of this function, after its first execution."""
    return drained(async_workflow(run, [] if log is None else log).create())


async def later(value: Any, seconds: float = 0.01) -> Any:
    """``value``, after a moment of the real clock."""
    await asyncio.sleep(seconds)
    return value


def error_of(instance: WorkflowInstance) -> dict[str, Any]:
    """The error of an instance that has ended with one."""
    assert instance.error is not None, (instance.status, instance.blocked)
    return instance.error


class Mortal(Workflow[dict[str, Any], list[Any]]):
    """Tasks of two steps each, side by side, plainly or in a group; the second step is given the value of the first. ``kill``: in
    whose first attempt the process dies."""

    class Meta:
        name = "async-mortal"
        step_retries = Retries(limit=10, delay=0)

    async def run(self, event: WorkflowEvent[dict[str, Any]], step: AsyncStep) -> list[Any]:
        params = event.params

        async def named(name: str) -> list[str]:
            first = await step.do(f"first {name}", self.body, params, name, "")
            await step.sleep(f"nap {name}", 0.01)
            return [first, await step.do(f"second {name}", self.body, params, f"{name}2", first)]

        async def branch(name: str) -> list[str]:
            first = await step.do("first", self.body, params, f"{name}3", "")
            return [first, await step.do("second", self.body, params, f"{name}4", first)]

        tasks = await asyncio.gather(*(named(name) for name in BRANCHES))
        branches = await step.gather("all", *[lambda name=name: branch(name) for name in BRANCHES])  # type: ignore[misc]
        return [*tasks, *branches]

    async def body(self, params: Any, name: str, given: str) -> str:
        context = get_step_context()
        Ledger(params["ledger"]).add(f"{context.instance_id} {name} {context.attempt}")
        await asyncio.sleep(random.Random().uniform(0, 0.02))
        if params["kill"] == name and context.attempt == 1:
            die()
        return f"{given}/{name}:{uuid4()}"


def work() -> None:
    """A worker that knows these workflows."""
    eng_parallel_flows.work()
