"""A pause in the testing kit: inside of a test's own transaction, with a clock that jumps (TIM-09, EVT-15)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


class PauseMail(Workflow[Any, str]):
    """Sleeps two days, asks a person, and mails; the first body may pause the instance itself."""

    class Meta:
        name = "lif-pause-mail"

    def run(self, event: WorkflowEvent[Any], step: Step) -> str:
        step.do("pay", lambda: PauseMail.get(event.instance_id).pause() if event.params else None)
        step.sleep("feedback", "2 days")
        decision = step.wait_for_approval("mail?", timeout="1 hour")
        return step.do("mail", lambda: f"mailed {bool(decision)}")


def test_a_pause_in_a_sleep_delays_what_follows(workflows: Harness) -> None:
    """Scenario D: a day's pause, a day later."""
    row = workflows.run(PauseMail)
    workflows.advance("1 day")
    row.pause()
    workflows.advance("1 day")
    assert row.status == S.PAUSED
    row.resume()
    workflows.advance("23 hours")
    assert not row.pending_events.exists()
    workflows.advance("1 hour")
    assert row.status == S.WAITING
    row.pause()
    workflows.advance("2 hours")
    workflows.approve(row)
    assert row.status == S.PAUSED, "a decision has woken it"
    row.resume()
    workflows.run_due()
    assert row.output == "mailed True"


def test_a_body_that_pauses_its_own_instance(workflows: Harness) -> None:
    """It ends, and nothing follows it."""
    row = workflows.run(PauseMail, True)
    assert (row.status, workflows.attempts("pay")) == (S.PAUSED, 1)
    row.resume()
    workflows.run_due()
    assert row.status == S.WAITING
