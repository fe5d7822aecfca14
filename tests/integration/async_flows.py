"""A workflow whose ``async def run`` is a function of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from durableflow import AsyncStep, Retries, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance

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


async def later(value: Any, seconds: float = 0.01) -> Any:
    """``value``, after a moment of the real clock."""
    await asyncio.sleep(seconds)
    return value


def error_of(instance: WorkflowInstance) -> dict[str, Any]:
    """The error of an instance that has ended with one."""
    assert instance.error is not None, (instance.status, instance.blocked)
    return instance.error
