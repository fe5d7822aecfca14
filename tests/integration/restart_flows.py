"""Workflows of the tests of ``restart(from_step)``, which count what runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durableflow import Step, Workflow, WorkflowEvent, get_step_context
from durableflow.models import StepRecord, WorkflowInstance

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
