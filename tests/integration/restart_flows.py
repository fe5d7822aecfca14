"""Workflows of the tests of ``restart``, and a process that dies in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import transaction

from durableflow import Step, Workflow, WorkflowEvent, get_step_context
from durableflow.models import StepRecord, WorkflowInstance
from tests.integration.chd_flows import Child
from tests.integration.con_flows import die

Run = Callable[[WorkflowEvent[Any], Step], Any]


class Bodies:
    """Counts what runs, with the keys; what is in ``broken`` fails."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self.broken: set[str] = set()

    def do(self, step: Step, name: str, **options: Any) -> Any:
        return step.do(name, self.body, name, **options)

    def body(self, name: str) -> str:
        self.ran.append((name, get_step_context().idempotency_key))
        if name in self.broken:
            raise OSError(name)
        return name.upper()

    @property
    def names(self) -> str:
        return "".join(name for name, _ in self.ran)

    def keys(self, name: str) -> list[str]:
        return [key for own, key in self.ran if own == name]


def flow(run: Run, **meta: Any) -> type[Workflow[Any, Any]]:
    class Again(Workflow[Any, Any]):
        Meta = type("Meta", (), {"name": "restart-from", **meta})

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return run(event, step)

    return Again


def step_of(row: WorkflowInstance, name: str, **fields: Any) -> StepRecord:
    return row.steps.get(run_number=row.run_number, name=name, **fields)


def labels(row: WorkflowInstance, run_number: int) -> list[str]:
    return [step.label for step in row.steps.filter(run_number=run_number).order_by("seq")]


class Raced(Workflow[Any, Any]):
    """Says in which run each of its parts was, then waits for what its params say."""

    class Meta:
        name = "restart-raced"
        max_concurrency = 3

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        parts: list[Any] = [step.do("a", lambda: event.run_number)]
        if event.params == "event":
            parts.append(step.wait_for_event("x", type="x", timeout=None).payload)
        if event.params == "approval":
            parts.append(step.wait_for_approval("ok", title="Ok?").comment)
        if event.params == "timer":
            step.sleep("nap", 0.01)
        if event.params == "child":
            parts.append(step.run_workflow("child", Child, {"n": event.run_number}))
        if event.params == "fail" and event.run_number == 1:
            step.do("b", lambda: 1 // 0, retries=0)
        return [*parts, step.do("c", lambda: event.run_number)]


def restart_and_die(pk: str) -> None:
    """As kill -9 does, just after the COMMIT of a restart, before anybody is told of it."""
    row = WorkflowInstance.objects.get(pk=pk)
    with transaction.atomic():
        transaction.on_commit(die)
        row.restart()
