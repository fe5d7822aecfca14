"""Short words for tests that run the engine on a real database."""

from __future__ import annotations

from typing import Any

from durableflow import drain
from durableflow.models import WorkflowInstance


def drained(instance: WorkflowInstance) -> WorkflowInstance:
    """Execute all that is due, in this process, and read ``instance`` again."""
    drain(seconds=10)
    instance.refresh_from_db()
    return instance


def drain_all() -> None:
    """Execute all that is due. One drain leaves a row alone that somebody holds for a moment, say to mark that it is followed."""
    while drain(seconds=10) or WorkflowInstance.objects.due().exists():
        pass


def steps_of(instance: WorkflowInstance) -> list[tuple[str, str]]:
    """The journal as pairs of label and status, in the order of first start."""
    return [(step.label, step.status) for step in instance.steps.order_by("seq")]


def history_of(instance: WorkflowInstance, *types: str) -> list[Any]:
    """The data of the history entries of these types, oldest first."""
    return [entry.data for entry in instance.history.filter(type__in=types).order_by("id")]


def types_of(instance: WorkflowInstance) -> list[str]:
    """The types of all history entries, oldest first."""
    return list(instance.history.order_by("id").values_list("type", flat=True))


def noted(log: list[Any], entry: Any, value: Any = None) -> Any:
    """For bodies that are lambdas: put ``entry`` into ``log`` and return ``value``."""
    log.append(entry)
    return value
