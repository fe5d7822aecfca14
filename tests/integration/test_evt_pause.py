"""EVT-15: events and decisions for a paused instance are accepted, stored and shown, and answer its waits after the resume."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durableflow import EventTimeout, Step, Workflow, WorkflowEvent, drain
from durableflow.core.exceptions import StaleDecision
from durableflow.models import PendingEvent, WorkflowInstance
from durableflow.timeline.waits import views_of, waiting_for
from tests.conftest import UserFactory
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, types_of

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class PauseGate(Workflow[str, str]):
    """Waits half an hour for a person, or for an event."""

    class Meta:
        name = "evt-pause-gate"

    def run(self, event: WorkflowEvent[str], step: Step) -> str:
        try:
            if event.params == "event":
                return str(step.wait_for_event("gate", type="go", timeout="30 minutes").payload)
            return str(step.wait_for_approval("gate", timeout="30 minutes").comment)
        except EventTimeout:
            return "timed out"


@pytest.fixture
def paused(stopped_clock: StoppedClock) -> Any:
    """An instance at its gate, paused for an hour."""

    def make(params: str = "") -> WorkflowInstance:
        row = drained(PauseGate.create(params))
        stopped_clock.advance("1 minute")
        row.pause()
        stopped_clock.advance("1 hour")
        return row

    return make


def everywhere(row: WorkflowInstance) -> set[bool]:
    """Whether the wait of the instance is open: as each place says it."""
    pending = PendingEvent.objects.get(instance=row)
    rows: Any = PendingEvent.objects.filter(instance=row)
    return {
        rows.open().exists(),
        rows.filter(rows.open_q()).exists(),
        not rows.filter(rows.late_q()).exists(),
        pending.current_status == "open",
        row.pending_events.get().current_status == "open",
        [view.is_open for view in views_of(row)] == [True],
        bool(waiting_for(row)),
    }


def test_a_decision_after_the_deadline_of_a_wait_that_stands_still(
    paused: Any, stopped_clock: StoppedClock, user_factory: UserFactory
) -> None:
    """The case itself: approved an hour after the pause, with a timeout of half an hour."""
    row, boss = paused(), user_factory("boss", permissions=["durableflow.decide_pendingevent"])
    assert everywhere(row) == {True}
    pending = PendingEvent.objects.decidable_by(boss).get()
    assert list(WorkflowInstance.objects.waiting_for(boss)) == [row]
    pending.approve(by=boss, comment="fine")
    assert drained(row).status == Status.PAUSED, "a decision has woken a paused instance"
    assert types_of(row)[-1] == "decided", "the history shows it only after the resume"
    stopped_clock.advance("1 hour")
    row.resume()
    assert drained(row).output == "fine"
    with pytest.raises(StaleDecision) as late:
        pending.reject(by=boss)
    assert late.value.code == "already_decided"


def test_an_event_after_the_deadline_of_a_wait_that_stands_still(paused: Any, stopped_clock: StoppedClock) -> None:
    """It is delivered while the instance is paused, and taken after the resume."""
    row = paused("event")
    assert everywhere(row) == {True}
    row.send_event("go", "hello")
    assert drained(row).status == Status.PAUSED
    assert types_of(row)[-1] == "event_received"
    stopped_clock.advance("1 hour")
    row.resume()
    assert drained(row).output == "hello"


@pytest.mark.parametrize("params", ["", "event"])
def test_after_the_resume_the_deadline_is_where_it_was(paused: Any, stopped_clock: StoppedClock, params: str) -> None:
    """Twenty-nine minutes were left, and are left again."""
    row = paused(params)
    row.resume()
    assert everywhere(row) == {True}
    assert drained(row).status == Status.WAITING
    stopped_clock.advance("28 minutes")
    assert everywhere(row) == {True}
    stopped_clock.advance("2 minutes")
    assert everywhere(row) == {False}
    assert drained(row).output == "timed out"


@pytest.mark.parametrize("params", ["", "event"])
def test_a_wait_that_was_over_before_the_pause_stays_over(stopped_clock: StoppedClock, params: str) -> None:
    """No worker was up to say so; what comes while it is paused comes too late."""
    row = drained(PauseGate.create(params))
    stopped_clock.advance("31 minutes")
    row.pause()
    stopped_clock.advance("1 hour")
    assert everywhere(row) == {False}
    if params:
        row.send_event("go", "late")
    else:
        with pytest.raises(StaleDecision) as late:
            row.pending_events.get().approve(by=None)
        assert late.value.code == "timed_out"
    row.resume()
    assert everywhere(row) == {False}
    assert drained(row).output == "timed out"


def test_a_blocked_instance_stands_still_too(stopped_clock: StoppedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is paused with a reason."""
    row = drained(PauseGate.create())
    with monkeypatch.context() as broken:
        broken.setattr(PauseGate, "run", lambda self, event, step: step.sleep("gate", 1))
        stopped_clock.advance("1 minute")
        WorkflowInstance.objects.filter(pk=row.pk).update(wake_at=stopped_clock.now)
        assert drained(row).blocked
    stopped_clock.advance("1 hour")
    assert everywhere(row) == {True}
    row.pending_events.get().approve(by=None, comment="fine")
    row.resume()
    assert drained(row).output == "fine"


def test_what_was_sent_before_the_first_wait(stopped_clock: StoppedClock) -> None:
    """To one that was paused before it had run at all."""
    row = PauseGate.create("event")
    row.pause()
    row.send_event("go", "early")
    assert drain() == 0
    row.resume()
    assert drained(row).output == "early"


class PauseRace(Workflow[str, str]):
    """Waits for a person until a date."""

    class Meta:
        name = "evt-pause-race"

    def run(self, event: WorkflowEvent[str], step: Step) -> str:
        return step.race(
            "first",
            date=lambda: step.sleep_until("one o'clock", event.timestamp + timedelta(hours=1)),
            gate=lambda: step.wait_for_approval("gate", timeout=None),
        ).name


@pytest.mark.parametrize(("approved", "winner"), [(True, "gate"), (False, "date")])
def test_an_answer_that_was_accepted_wins_over_a_date_in_the_pause(
    stopped_clock: StoppedClock, approved: bool, winner: str
) -> None:
    """TIM-09: a date that has passed fires at the resume, so that what came before that came first."""
    row = drained(PauseRace.create())
    row.pause()
    stopped_clock.advance("2 hours")
    if approved:
        assert everywhere(row) == {True}
        row.pending_events.get().approve(by=None)
    stopped_clock.advance("1 hour")
    row.resume()
    assert drained(row).output == winner
