"""``retry`` of an instance that ended while a body was in flight (design 1.2, 9; RET-03)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine.unwind import ProcessDied
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


@pytest.mark.parametrize("retries", [0, 1])
def test_a_body_that_had_begun_is_not_forgotten(stopped_clock: StoppedClock, retries: int) -> None:
    """The worker dies in the body, max_duration is over before the next one looks, and somebody presses retry: without
    retries the body must not begin again unasked; else the lost attempt counts."""
    bodies: list[int] = []

    class Payment(Workflow[Any, Any]):
        class Meta:
            max_duration = "1 hour"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.do("before", lambda: None)
            return step.do("pay", body, retries=retries)

    def body() -> str:
        bodies.append(1)
        if len(bodies) == 1:
            raise ProcessDied
        return "paid"

    row = Payment.create()
    with pytest.raises(ProcessDied):
        drain()
    if retries:  # the mark that the renewal writes beside a long body
        step = row.steps.get(name="before")
        step.pk, step.name, step.status, step.seq, step.attempts = None, "pay", "started", 2, 1
        step.raw_output = step.config = step.finished = None
        step.save(force_insert=True)
    stopped_clock.outlast_leases()
    stopped_clock.advance("2 hours")
    assert drained(row).status == S.ERRORED
    assert steps_of(row) == [("before-1", "complete"), ("pay-1", "cancelled")]
    row.retry()
    drained(row)
    if retries:
        assert (row.status, row.output) == (S.COMPLETE, "paid")
        assert row.steps.get(name="pay").attempts == 2
    else:
        assert row.error is not None
        assert (row.status, row.error["type"], len(bodies)) == (S.ERRORED, "durableflow.WorkerLost", 1)
        row.retry()  # now it is asked for
        assert (drained(row).status, row.output, len(bodies)) == (S.COMPLETE, "paid", 2)
