"""Durable multi-step workflows for Django: plain Python, checkpointed in the project's own database.

The public names are resolved when they are used (PEP 562), so that this package can be imported before the app registry
is ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durableflow.authoring.async_step import AsyncStep
    from durableflow.authoring.calls import DEFAULT
    from durableflow.authoring.context import StepContext, get_step_context
    from durableflow.authoring.events import WorkflowEvent
    from durableflow.authoring.options import WorkflowOptions
    from durableflow.authoring.schedule import Schedule
    from durableflow.authoring.step import Step
    from durableflow.authoring.undo import Rollback, Undo, Winner
    from durableflow.authoring.workflow import Workflow
    from durableflow.core.answers import Decision, Event
    from durableflow.core.exceptions import (
        CodecError,
        DurableflowError,
        EventTimeout,
        HandlerMissing,
        IdempotencyConflict,
        InstanceAlreadyExists,
        InvalidConfig,
        InvalidDurableCall,
        InvalidTransition,
        LimitExceeded,
        NonDeterminismError,
        NonRetryableError,
        StaleDecision,
        StepFailed,
        StepTimeout,
        SuspensionSwallowed,
        Terminated,
        WorkerLost,
        WorkflowFailed,
        WorkflowTimeout,
    )
    from durableflow.core.retries import Retention, Retries
    from durableflow.engine.drain import drain
    from durableflow.models.instance_fields import Priority

_HOMES = {
    "durableflow.authoring.async_step": ("AsyncStep",),
    "durableflow.authoring.calls": ("DEFAULT",),
    "durableflow.authoring.context": ("StepContext", "get_step_context"),
    "durableflow.authoring.events": ("WorkflowEvent",),
    "durableflow.authoring.options": ("WorkflowOptions",),
    "durableflow.authoring.schedule": ("Schedule",),
    "durableflow.authoring.step": ("Step",),
    "durableflow.authoring.undo": ("Rollback", "Undo", "Winner"),
    "durableflow.authoring.workflow": ("Workflow",),
    "durableflow.core.answers": ("Decision", "Event"),
    "durableflow.core.exceptions": (
        "CodecError",
        "DurableflowError",
        "EventTimeout",
        "HandlerMissing",
        "IdempotencyConflict",
        "InstanceAlreadyExists",
        "InvalidConfig",
        "InvalidDurableCall",
        "InvalidTransition",
        "LimitExceeded",
        "NonDeterminismError",
        "NonRetryableError",
        "StaleDecision",
        "StepFailed",
        "StepTimeout",
        "SuspensionSwallowed",
        "Terminated",
        "WorkerLost",
        "WorkflowFailed",
        "WorkflowTimeout",
    ),
    "durableflow.core.retries": ("Retention", "Retries"),
    "durableflow.engine.drain": ("drain",),
    "durableflow.models.instance_fields": ("Priority",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "DEFAULT",
    "AsyncStep",
    "CodecError",
    "Decision",
    "DurableflowError",
    "Event",
    "EventTimeout",
    "HandlerMissing",
    "IdempotencyConflict",
    "InstanceAlreadyExists",
    "InvalidConfig",
    "InvalidDurableCall",
    "InvalidTransition",
    "LimitExceeded",
    "NonDeterminismError",
    "NonRetryableError",
    "Priority",
    "Retention",
    "Retries",
    "Rollback",
    "Schedule",
    "StaleDecision",
    "Step",
    "StepContext",
    "StepFailed",
    "StepTimeout",
    "SuspensionSwallowed",
    "Terminated",
    "Undo",
    "Winner",
    "WorkerLost",
    "Workflow",
    "WorkflowEvent",
    "WorkflowFailed",
    "WorkflowOptions",
    "WorkflowTimeout",
    "drain",
    "get_step_context",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'durableflow' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
