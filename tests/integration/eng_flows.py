"""A workflow whose ``run`` is a function of the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durableflow import Step, Workflow, WorkflowEvent

Run = Callable[[Step, list[str]], Any]


def workflow(run: Run, log: list[str]) -> type[Workflow]:
    """A workflow named ``sample`` of a plain function of the step and a log."""

    class Sample(Workflow):
        class Meta:
            name = "sample"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return run(step, log)

    return Sample
