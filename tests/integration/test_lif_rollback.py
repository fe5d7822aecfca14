"""Rollback: what is undone, in which order, with what each handler gets (design 7; LIF-15 to LIF-19, reference 8 and G)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import (
    InvalidTransition,
    NonRetryableError,
    Retries,
    Rollback,
    Step,
    Undo,
    Workflow,
    WorkflowEvent,
    get_step_context,
)
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from tests.integration.eng_flows import workflow
from tests.support.engine import history_of, types_of

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


class Undone:
    """What the handlers of a test have been given, in the order in which they ran."""

    def __init__(self) -> None:
        self.calls: list[Undo[Any]] = []
        self.fails: dict[str, list[BaseException]] = {}

    def __call__(self, undo: Undo[Any]) -> None:
        self.calls.append(undo)
        errors = self.fails.get(undo.context.name)
        if errors:
            raise errors.pop(0)

    @property
    def names(self) -> list[str]:
        return [undo.context.name for undo in self.calls]


@pytest.fixture
def undone() -> Undone:
    return Undone()


def boom() -> None:
    raise NonRetryableError("no money")


def test_scenario_g(workflows: Harness, undone: Undone) -> None:
    """Reference G: release is called once with output and error; errored, and the outcome is complete."""

    def run(step: Step, log: list[str]) -> None:
        handler = Rollback(undone, retries=Retries(limit=3, delay=10, backoff="linear"), timeout="2 minutes")
        step.do("reserve inventory", lambda: {"reservationId": 7}, rollback=handler)
        step.do("charge card", boom)

    row = workflows.run(workflow(run, []))
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
    assert row.error is not None and row.error["step"] == "charge card-1" and row.error["message"] == "no money"
    (undo,) = undone.calls
    assert (undo.completed, undo.output) == (True, {"reservationId": 7})
    assert isinstance(undo.error, NonRetryableError) and str(undo.error) == "no money"
    assert types_of(row)[-4:] == [
        "rollback_started",
        "rollback_step_completed",
        "rollback_completed",
        "workflow_errored",
    ]
