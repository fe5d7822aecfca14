"""A workflow of one step, with options, whose body may fail."""

from __future__ import annotations

from typing import Any

from durableflow import Step, StepTimeout, Workflow, WorkflowEvent, get_step_context


def one_step(body: Any, **options: Any) -> type[Workflow]:
    """A workflow of one step."""

    class OneStep(Workflow):
        class Meta:
            name = "one-step"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.do("work", body, **options)

    return OneStep


def failing(error: BaseException, bodies: list[int]) -> Any:
    def body() -> None:
        bodies.append(get_step_context().attempt)
        raise error

    return body


def catching_timeouts(body: Any, **options: Any) -> type[Workflow]:
    """A workflow of one step that catches the step's timeout."""

    class OneStep(Workflow):
        class Meta:
            name = "one-step"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            try:
                return step.do("work", body, **options)
            except StepTimeout as error:
                return ["timed out", str(error)]

    return OneStep
