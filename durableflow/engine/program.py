"""Calling ``run``, synchronous or not, with the facade that fits it."""

from __future__ import annotations

import inspect
from typing import Any

from durableflow.authoring.async_step import AsyncStep
from durableflow.authoring.events import WorkflowEvent
from durableflow.authoring.step import Step
from durableflow.engine.asyncrun import run_async
from durableflow.engine.execution import Execution


def run_program(cls: type[Any], event: WorkflowEvent[Any], execution: Execution) -> Any:
    """What ``run`` of ``cls`` returns or raises."""
    program = cls()
    if inspect.iscoroutinefunction(program.run):
        return run_async(lambda runtime: program.run(event, AsyncStep(runtime)), execution)
    return program.run(event, Step(execution))
