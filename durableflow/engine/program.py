"""Calling ``run``, synchronous or not, with the facade that fits it."""

from __future__ import annotations

from typing import Any

from durableflow.authoring.events import WorkflowEvent
from durableflow.authoring.step import Step
from durableflow.engine.execution import Execution


def run_program(cls: type[Any], event: WorkflowEvent[Any], execution: Execution) -> Any:
    """What ``run`` of ``cls`` returns or raises."""
    return cls().run(event, Step(execution))
