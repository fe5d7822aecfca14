"""``race``: branches that only wait; who settled first wins, once and for all (design 7, case ENG-07)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durableflow import EventTimeout, Step, Workflow, WorkflowEvent
from durableflow.models import PendingEvent, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Paid(Workflow):
    """An event, a decision and a deadline race; an event that lost is there for the next wait."""

    class Meta:
        name = "race-paid"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        first = step.race(
            "outcome",
            paid=lambda: step.wait_for_event("payment", type="paid", timeout=None).payload,
            waived=lambda: self.waived(step),
            late=lambda: step.sleep("patience", "1 day"),
        )
        step.sleep("pause", "1 hour")
        return [first.name, first.value]

    def waived(self, step: Step) -> str:
        return "waived" if step.wait_for_approval("waiver", timeout=None) else "refused"


def open_waits(instance: WorkflowInstance) -> list[str]:
    return [wait.name for wait in PendingEvent.objects.filter(instance=instance, status="open").order_by("id")]


def after_an_hour(instance: WorkflowInstance, clock: StoppedClock) -> Any:
    """The race is over; the rest of run comes after a replay."""
    instance = drained(instance)
    assert (instance.status, open_waits(instance)) == (S.WAITING, [])
    clock.advance("1 hour")
    instance = drained(instance)
    assert instance.status == S.COMPLETE, instance.error
    return instance.output


def test_all_waits_are_open_at_once_and_nothing_is_decided(stopped_clock: StoppedClock) -> None:
    instance = drained(Paid.create())
    assert (instance.status, open_waits(instance)) == (S.WAITING, ["payment", "waiver"])
    assert instance.wake_at == stopped_clock.now + timedelta(days=1)
    assert steps_of(instance) == [
        ("outcome-1", "pending"),
        ("outcome-1[paid]/payment-1", "pending"),
        ("outcome-1[waived]/waiver-1", "pending"),
        ("outcome-1[late]/patience-1", "pending"),
    ]


def test_an_event_wins_and_the_others_are_cancelled(stopped_clock: StoppedClock) -> None:
    instance = drained(Paid.create())
    instance.send_event("paid", 5)
    assert after_an_hour(instance, stopped_clock) == ["paid", 5]
    assert dict(steps_of(instance)) == {
        "outcome-1": "complete",
        "outcome-1[paid]/payment-1": "complete",
        "outcome-1[waived]/waiver-1": "cancelled",
        "outcome-1[late]/patience-1": "cancelled",
        "pause-1": "complete",
    }
    statuses = dict(PendingEvent.objects.values_list("name", "status"))
    assert statuses == {"payment": "received", "waiver": "cancelled"}
    assert history_of(instance, "race_completed") == [{"winner": "paid"}]


def test_a_decision_wins(stopped_clock: StoppedClock) -> None:
    instance = drained(Paid.create())
    PendingEvent.objects.get(name="waiver").reject(by=None)
    assert after_an_hour(instance, stopped_clock) == ["waived", "refused"]


def test_a_sleep_wins(stopped_clock: StoppedClock) -> None:
    instance = drained(Paid.create())
    stopped_clock.advance("1 day")
    assert after_an_hour(instance, stopped_clock) == ["late", None]


@pytest.mark.parametrize("first", ["paid", "waived"])
def test_what_was_sent_first_wins_whenever_it_is_looked_at(first: str, stopped_clock: StoppedClock) -> None:
    """ENG-07: the time at which it was sent decides, not the order of the branches, nor who is looked at first."""
    instance = drained(Paid.create())
    waiver = PendingEvent.objects.get(name="waiver")
    sends: dict[str, Any] = {"paid": lambda: instance.send_event("paid", 5), "waived": lambda: waiver.approve(by=None)}
    winner = sends.pop(first)
    (other,) = sends.values()
    stopped_clock.advance("2 seconds")
    other()  # accepted by the database first, by a host whose clock is ahead
    stopped_clock.go_back("1 second")
    winner()
    stopped_clock.advance("5 seconds")
    assert after_an_hour(instance, stopped_clock)[0] == first


def test_what_was_sent_before_the_deadline_wins_over_it(stopped_clock: StoppedClock) -> None:
    """The worker comes a day late: the event had been there in time."""
    instance = drained(Paid.create())
    stopped_clock.advance("23 hours")
    instance.send_event("paid", 5)
    stopped_clock.advance("23 hours")
    assert after_an_hour(instance, stopped_clock) == ["paid", 5]


def test_what_was_sent_after_the_sleep_loses_and_stays(stopped_clock: StoppedClock) -> None:
    """Nobody loses an event: what lost stays unconsumed, for a later wait."""

    class Later(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            first = step.race(
                "first",
                paid=lambda: step.wait_for_event("payment", type="paid", timeout=None).payload,
                late=lambda: step.sleep("patience", "1 day"),
            )
            return [first.name, step.wait_for_event("after all", type="paid").payload]

    instance = drained(Later.create())
    stopped_clock.advance("25 hours")
    instance.send_event("paid", 5)
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, ["late", 5])


def test_ties_go_to_the_earlier_branch(stopped_clock: StoppedClock) -> None:
    class Tie(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.race("tie", b=lambda: step.sleep("b", 60), a=lambda: step.sleep("a", 60)).name

    instance = drained(Tie.create())
    stopped_clock.advance("2 minutes")
    assert drained(instance).output == "b"


def test_a_deadline_that_wins_is_raised_from_the_race(stopped_clock: StoppedClock) -> None:
    class Patient(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            try:
                step.race(
                    "first",
                    answer=lambda: step.wait_for_event("answer", type="answer", timeout="1 hour"),
                    other=lambda: step.wait_for_approval("other", timeout="2 hours"),
                )
            except EventTimeout as error:
                step.sleep("pause", 60)
                return str(error)

    instance = drained(Patient.create())
    stopped_clock.advance("3 hours")
    instance = drained(instance)
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    assert instance.status == S.COMPLETE
    assert "answer-1" in instance.output and "before its deadline" in instance.output
    assert dict(PendingEvent.objects.values_list("name", "status")) == {"answer": "timed_out", "other": "cancelled"}


def test_the_winner_runs_on_alone_and_what_it_computes_is_the_value(stopped_clock: StoppedClock) -> None:
    entered: list[str] = []

    class Computes(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            first = step.race("first", a=lambda: self.branch(step, "a", 60), b=lambda: self.branch(step, "b", 30))
            step.sleep("pause", 60)
            return [first.name, first.value]

        def branch(self, step: Step, name: str, seconds: int) -> str:
            step.sleep(name, seconds)
            entered.append(name)
            return name.upper()

    instance = drained(Computes.create())
    stopped_clock.advance("5 minutes")
    instance = drained(instance)
    stopped_clock.advance("5 minutes")
    assert (drained(instance).output, set(entered)) == (["b", "B"], {"b"})


def test_an_error_of_the_winners_own_code_is_raised(stopped_clock: StoppedClock) -> None:
    class Broken(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.race("first", a=lambda: 1 // (0 if step.sleep("a", 0) is None else 1))

    instance = drained(Broken.create())
    assert instance.status == S.ERRORED and instance.error is not None
    assert instance.error["type"] == "ZeroDivisionError"


def test_a_sleep_until_the_past_has_won_at_its_moment(stopped_clock: StoppedClock) -> None:
    """A deadline that had passed before the event was sent wins, even if both are there at the first look."""
    noon = stopped_clock.now

    class Noon(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.race(
                "first",
                paid=lambda: step.wait_for_event("payment", type="paid"),
                noon=lambda: step.sleep_until("noon", noon),
            ).name

    stopped_clock.advance("1 minute")
    instance = Noon.create()
    instance.send_event("paid")
    assert drained(instance).output == "noon"


def test_a_race_in_a_branch_of_a_gather(stopped_clock: StoppedClock) -> None:
    class Both(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("both", lambda: self.one(step, "x"), lambda: self.one(step, "y"))

        def one(self, step: Step, type: str) -> Any:
            first = step.race(
                "first",
                event=lambda: step.wait_for_event("event", type=type, timeout=None).payload,
                late=lambda: step.sleep("late", "1 hour"),
            )
            return [first.name, step.do("after", str, first.value)]

    instance = drained(Both.create())
    instance.send_event("y", 1)
    instance = drained(instance)
    assert instance.status == S.WAITING
    stopped_clock.advance("1 hour")
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, (["late", "None"], ["event", "1"]))
    assert PendingEvent.objects.filter(status="open").count() == 0


def test_the_recorded_winner_stays_the_winner_in_changed_code(stopped_clock: StoppedClock) -> None:
    """ENG-07: a branch that was taken out of the code while it had won blocks the instance; branches may come and go otherwise."""
    names = ["a", "b"]

    class Changed(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            branches = {name: (lambda name=name: step.sleep(name, 60)) for name in names}
            first = step.race("first", **branches)
            step.sleep("pause", 60)
            return first.name

    instance = drained(Changed.create())
    names[:] = ["b", "a"]
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    assert instance.status == S.PAUSED and "began with the branches a, b" in instance.blocked
    names[:] = ["a", "b"]
    instance.resume()
    instance = drained(instance)
    names[:] = ["c", "b"]
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    assert instance.status == S.PAUSED and "'a' has won" in instance.blocked
    names[:] = ["c", "a"]
    instance.resume()
    assert drained(instance).output == "a"
