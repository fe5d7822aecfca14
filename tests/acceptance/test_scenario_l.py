"""A run that is followed from its start: a retry, a sleep, a wait (reference 26, scenario L)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.models import HistoryEntry, WorkflowInstance
from durableflow.testing import Harness
from tests.support.concurrency import Task, eventually

STORED = [
    "workflow_queued",
    "workflow_started",
    "attempt_errored",
    "step_completed",
    "sleep_started",
    "sleep_completed",
    "wait_started",
    "event_received",
    "wait_completed",
    "step_completed",
    "workflow_completed",
]
EXPANDED = [
    "workflow_queued",
    "workflow_started",
    "step_started",
    "attempt_started",
    "attempt_errored",
    "attempt_started",
    "attempt_completed",
    "step_completed",
    "sleep_started",
    "sleep_completed",
    "wait_started",
    "event_received",
    "wait_completed",
    "step_started",
    "attempt_started",
    "attempt_completed",
    "step_completed",
    "workflow_completed",
]


class ScenarioL(Workflow):
    """Fails once, sleeps, waits."""

    class Meta:
        name = "scenario-l"

    failures = 0

    def run(self, event: WorkflowEvent, step: Step) -> str:
        step.do("flaky", self.flaky, retries=Retries(limit=1, delay=event.params["delay"]))
        step.sleep("rest", event.params["sleep"])
        got = step.wait_for_event("go", type="go")
        return str(step.do("secret", lambda: f"s3cr3t {got.payload}", sensitive=True))

    @classmethod
    def flaky(cls) -> str:
        cls.failures += 1
        if cls.failures == 1:
            raise OSError("the line is busy")
        return "done"


@pytest.fixture(autouse=True)
def _first_attempt_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScenarioL, "failures", 0)


@pytest.mark.django_db
def test_scenario_l_with_a_clock_that_jumps(workflows: Harness) -> None:
    """The whole history, from any place on, filtered, after completion."""
    row = workflows.run(ScenarioL, {"delay": "1 hour", "sleep": "2 days"})
    workflows.advance("1 hour")
    workflows.advance("2 days")
    row.send_event("go", 1)
    workflows.run_due()
    assert row.status == "complete"

    whole = list(row.follow())
    assert [entry.type for entry in whole] == STORED
    assert [type for entry in whole for type in entry.types] == EXPANDED
    ids = [entry.pk for entry in whole]
    assert ids == sorted(set(ids))
    for number, entry in enumerate(whole, start=1):
        assert list(row.follow(after=entry.pk)) == whole[number:]
    assert [entry.type for entry in row.follow(types=["workflow_completed"])] == ["workflow_completed"]
    assert [entry.step for entry in row.follow(types=["sleep_started", "wait_started"])] == ["rest-1", "go-1"]
    assert list(row.follow(types=["workflow_terminated"])) == []
    assert "s3cr3t" not in str([(entry.type, entry.data) for entry in whole])
    for wrong in (-1, 1.5, "1", True):
        with pytest.raises(ValueError, match="after must be"):
            row.follow(after=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Unknown history types: nonsense"):
        row.follow(types=["nonsense"])


@pytest.mark.django_db(transaction=True)
def test_scenario_l_live() -> None:
    """Subscribed right after create; broken off after each event and taken up again with its id: the same list."""
    row = ScenarioL.create({"delay": 0, "sleep": 0.05})
    whole: list[HistoryEntry] = []
    piecewise: list[HistoryEntry] = []

    def at_once() -> None:
        whole.extend(ScenarioL.get(row.instance_id).follow())

    def in_pieces() -> None:
        own: Any = ScenarioL.get(row.instance_id)
        while not piecewise or piecewise[-1].type != "workflow_completed":
            for entry in own.follow(after=piecewise[-1].pk if piecewise else 0):
                piecewise.append(entry)
                break

    followers = [Task(at_once), Task(in_pieces)]

    def waits() -> bool:
        drain(seconds=0.1)
        return bool(WorkflowInstance.objects.get(pk=row.pk).history.filter(type="wait_started").exists())

    eventually(waits, "the wait")
    row.send_event("go", 2)
    eventually(lambda: drain(seconds=0.1) or ScenarioL.get(row.instance_id).is_finished, "the end")
    for follower in followers:
        follower.result()
    assert [entry.type for entry in whole] == STORED
    assert [entry.pk for entry in piecewise] == [entry.pk for entry in whole]
