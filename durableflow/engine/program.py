"""Calling ``run``, synchronous or not, with the facade that fits it."""

from __future__ import annotations

from typing import Any

from durableflow.authoring.async_step import AsyncStep
from durableflow.authoring.events import WorkflowEvent
from durableflow.authoring.step import Step
from durableflow.core import running
from durableflow.engine.asyncrun import run_async
from durableflow.engine.execution import Execution


def run_program(cls: type[Any], params: Any, execution: Execution) -> Any:
    """What ``run`` of ``cls`` returns or raises. ``params``: frozen."""
    claim = execution.claim
    event = WorkflowEvent(
        params=params,
        timestamp=claim.created,
        instance_id=claim.instance_id,
        workflow=claim.workflow,
        run_number=claim.run_number,
        scheduled_for=claim.scheduled_for,
        cron=claim.cron,
    )
    program = cls()
    token = running.program.set(claim.label)
    try:
        if cls.run_is_async:
            return run_async(lambda runtime: program.run(event, AsyncStep(runtime)), execution)
        return program.run(event, Step(execution))
    finally:
        running.program.reset(token)
