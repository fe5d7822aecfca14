"""A workflow whose ``async def run`` is a function of the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from durableflow import AsyncStep, Workflow, WorkflowEvent

AsyncRun = Callable[[AsyncStep, list[Any]], Awaitable[Any]]


def async_workflow(run: AsyncRun, log: list[Any]) -> type[Workflow]:
    """A workflow named ``sample`` of an async function of the step and a log."""

    class Sample(Workflow):
        class Meta:
            name = "sample"
            step_retries = {"limit": 0}

        async def run(self, event: WorkflowEvent, step: AsyncStep) -> Any:
            return await run(step, log)

    return Sample
