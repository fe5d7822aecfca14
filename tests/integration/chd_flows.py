"""Parents and children that tests and their child processes run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from durableflow import NonRetryableError, Step, Workflow, WorkflowEvent, drain
from durableflow.engine.delivery import deliver
from durableflow.models import HistoryEntry, StepRecord, WorkflowInstance

S = WorkflowInstance.Status
Run = Callable[[WorkflowEvent[Any], Step], Any]


class Declined(NonRetryableError):
    """What a child raises."""

    def __init__(self, message: str = "", *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Child(Workflow[dict[str, Any], Any]):
    """Does what its params say: ``{"raise": ...}``, ``{"wait": ...}``, or return them."""

    class Meta:
        name = "chd-child"

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> Any:
        if "raise" in event.params:
            step.do("fail", fail, event.params["raise"], retries=0)
        if "wait" in event.params:
            return step.wait_for_event("go", type="go", timeout=None).payload
        return step.do("work", work, event.params.get("n"))


def work(n: Any) -> Any:
    return n


def fail(message: str) -> None:
    raise Declined(message, code=7)


def parent(run: Run, name: str = "chd-parent", **meta: Any) -> type[Workflow[Any, Any]]:
    """A workflow whose ``run`` is this function of the test."""

    class Parent(Workflow[Any, Any]):
        Meta = type("Meta", (), {"name": name, **meta})

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return run(event, step)

    return Parent


def waiting(event: WorkflowEvent[Any], step: Step) -> Any:
    """The ``run`` of a parent that gives its params to one child, and waits for it."""
    return step.run_workflow("child", Child, event.params)


def child_of(parent: WorkflowInstance) -> WorkflowInstance:
    """The only child of ``parent``."""
    return WorkflowInstance.objects.get(parent_step__instance=parent)


def children_of(parent: WorkflowInstance) -> list[WorkflowInstance]:
    """All children of ``parent``, in the order in which they were made."""
    return list(WorkflowInstance.objects.filter(parent_step__instance=parent).order_by("id"))


def fresh(row: WorkflowInstance) -> WorkflowInstance:
    """The row as it is stored now."""
    return WorkflowInstance.objects.get(pk=row.pk)


def settle(using: str = "default") -> None:
    """Deliver all that was sent."""
    while deliver(using):
        pass


def history(row: WorkflowInstance, *types: str) -> list[tuple[str, Any]]:
    """Type and data of the entries of these types (all, if none is named)."""
    entries = HistoryEntry.objects.filter(instance=row).order_by("id")
    return [(entry.type, entry.data) for entry in entries if not types or entry.type in types]


def last_entry(row: WorkflowInstance) -> HistoryEntry:
    """The newest history entry."""
    entry: HistoryEntry = HistoryEntry.objects.filter(instance=row).order_by("id")[::1][-1]
    return entry


def step_of(child: WorkflowInstance) -> StepRecord:
    """The parent's record of a child."""
    assert child.parent_step is not None
    return child.parent_step


def record_of(row: WorkflowInstance, name: str, scope: str = "") -> StepRecord:
    return StepRecord.objects.get(instance=row, name=name, scope=scope, run_number=fresh(row).run_number)


class Nested(Workflow[dict[str, Any], Any]):
    """Children that have a child each."""

    class Meta:
        name = "chd-nested"

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> Any:
        return step.run_workflows("children", Tenfold, range(event.params["of"]), concurrency=event.params["window"])


class Tenfold(Workflow[int, int]):
    """Ten times its number, by a child."""

    class Meta:
        name = "chd-tenfold"

    def run(self, event: WorkflowEvent[int], step: Step) -> int:
        found: int = step.run_workflow("child", Child, {"n": event.params})
        return step.do("tenfold", work, found * 10)  # type: ignore[no-any-return]


def drain_for_ever() -> None:
    """Say that we are ready, and drain until somebody kills us."""
    WorkflowInstance.objects.count()
    print("ready", flush=True)  # noqa: T201
    end = time.monotonic() + 90
    while time.monotonic() < end:
        drain(0.2)
