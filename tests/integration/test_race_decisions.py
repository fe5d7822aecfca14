"""Races under fire: two who answer at once, locked rows, lost workers, children (design 7, cases ENG-07, EVT-10, CHD-04)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from django.db import connection

from durableflow import InvalidTransition, StaleDecision, Step, Workflow, WorkflowEvent, drain
from durableflow.engine import race_writes, racing
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.engine.unwind import ProcessDied
from durableflow.models import PendingEvent, SentEvent, WorkflowInstance
from durableflow.testing import harness
from tests.integration.con_flows import expire_leases
from tests.integration.conftest import StoppedClock
from tests.support.concurrency import Gate, Task, eventually, held, together
from tests.support.engine import drained, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")


class Two(Workflow):
    """An approval and an event race; which of them lost can be waited for afterwards."""

    class Meta:
        name = "race-two"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        first = step.race(
            "first",
            approval=lambda: bool(step.wait_for_approval("ok", timeout=None)),
            event=lambda: step.wait_for_event("paid", type="paid", timeout=None).payload,
        )
        return [first.name, first.value]


def approval() -> PendingEvent:
    return PendingEvent.objects.get(kind="wait_for_approval")


def test_an_answer_at_the_same_moment_as_the_event() -> None:
    """EVT-10: one wins, by the time at which it was accepted; the other is refused, or lies unconsumed. Nobody is lost."""
    for number in range(8):
        instance = drained(Two.create(instance_id=f"race-{number}"))
        pending = PendingEvent.objects.get(instance=instance, kind="wait_for_approval")

        def decide(pending: PendingEvent = pending) -> None:
            try:
                pending.approve(by=None)
            except StaleDecision as error:
                assert error.code == "cancelled"

        def send(instance: WorkflowInstance = instance) -> None:
            with suppress(InvalidTransition):  # it has ended already
                instance.send_event("paid", 5)

        for task in together(decide, send, lambda: drain(0.05)):
            task.result()
        instance = drained(instance)
        assert instance.status == S.COMPLETE, (instance.status, instance.blocked, instance.error)
        consumed = SentEvent.objects.filter(instance=instance).exclude(consumed_by="")
        (taken,) = consumed
        if instance.output == ["event", 5]:
            assert taken.kind == "event"
        else:
            assert instance.output == ["approval", True] and taken.kind == "decision"
        pending.refresh_from_db()
        assert pending.status in ("received", "cancelled")
        with pytest.raises(StaleDecision):
            pending.approve(by=None)


@postgresql
def test_a_decision_that_is_being_made_is_waited_for() -> None:
    """Somebody holds the approval's row: the race is not decided over his head, and not blocked by him either."""
    instance = drained(Two.create())
    with held(approval(), lock="FOR NO KEY UPDATE"):
        instance.send_event("paid", 5)
        instance = drained(instance)
        assert instance.status == S.WAITING and instance.wake_at is not None
        assert not SentEvent.objects.exclude(consumed_by="").exists()
        assert PendingEvent.objects.filter(status="open").count() == 2
    eventually(lambda: drained(instance).status == S.COMPLETE)
    assert instance.output == ["event", 5]
    assert approval().status == "cancelled"


@postgresql
def test_an_earlier_decision_that_commits_during_the_look_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made before the event was sent; the look that sees the event first does not decide without it."""
    instance = drained(Two.create())
    look = race_writes.waits.outlook
    gate, first = Gate(), [True]

    def slowly(*args: Any) -> Any:
        seen = look(*args)
        if first and args[2].identity.kind == "wait_for_approval" and seen.at is None:
            first.clear()
            gate.stop_here()
        return seen

    monkeypatch.setattr(race_writes.waits, "outlook", slowly)
    monkeypatch.setattr(racing, "open_wait", _without_look(racing.open_wait))
    instance.send_event("paid", 5)
    task = Task(lambda: drain(0.2))
    gate.wait_until_reached()
    approval().approve(by=None)
    SentEvent.objects.filter(kind="event").update(
        sent_at=approval().decided_at + (approval().decided_at - approval().opened)
    )
    gate.open()
    task.result()
    eventually(lambda: drained(instance).status == S.COMPLETE)
    assert instance.output == ["approval", True]


def _without_look(open_wait: Any) -> Any:
    """Only the decision itself shall be slow."""

    def opened(lease: Any, claimed: Any, record: Any, call: Any) -> Any:
        found = race_writes.waits.rows.read(lease, claimed, record)
        return race_writes.waits.Outlook(found) if found is not None else open_wait(lease, claimed, record, call)

    return opened


@pytest.mark.parametrize("after", [False, True])
def test_a_worker_that_dies_around_the_decision(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENG-07: before its commit nothing is decided, afterwards all of it is; a second look comes to the same winner."""
    instance = drained(Two.create())
    instance.send_event("paid", 5)
    approval().approve(by=None)
    SentEvent.objects.filter(kind="decision").update(sent_at="2100-01-01T00:00:00Z")
    decide = racing.decide

    def dies(*args: Any) -> Any:
        if after:
            decide(*args)
        raise ProcessDied("here")

    with monkeypatch.context() as patch:
        patch.setattr(racing, "decide", dies)
        drained_once(instance)
    statuses = dict(steps_of(instance))
    assert statuses["first-1"] == ("complete" if after else "pending")
    assert statuses["first-1[event]/paid-1"] == ("complete" if after else "pending")
    assert statuses["first-1[approval]/ok-1"] == ("cancelled" if after else "pending")
    expire_leases()
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, ["event", 5])
    assert types_of(instance).count("race_completed") == types_of(instance).count("wait_completed") == 1


def drained_once(instance: WorkflowInstance) -> None:
    """One execution, that dies."""
    deliver("default")
    (claimed,) = claim("default")
    with pytest.raises(ProcessDied):
        execute(claimed)


def test_a_commit_whose_answer_was_lost_decides_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look is repeated, and finds its own decision."""
    instance = drained(Two.create())
    instance.send_event("paid", 5)
    decide = racing.decide
    calls: list[Any] = []

    def twice(*args: Any) -> Any:
        calls.append(decide(*args))
        return decide(*args)

    monkeypatch.setattr(racing, "decide", twice)
    instance = drained(instance)
    assert (instance.output, calls[-1].decided) == (["event", 5], True)
    assert types_of(instance).count("race_completed") == 1


class Slow(Workflow[str, str]):
    """A child that waits."""

    class Meta:
        name = "race-slow"

    def run(self, event: WorkflowEvent[str], step: Step) -> str:
        if event.params == "fails":
            raise ValueError("of the child")
        return str(step.wait_for_event("go", type="go", timeout=None).payload)


class Parent(Workflow[str, Any]):
    """A child races with a sleep and an event."""

    class Meta:
        name = "race-parent"

    def run(self, event: WorkflowEvent[str], step: Step) -> Any:
        try:
            first = step.race(
                "first",
                child=lambda: step.run_workflow("child", Slow, event.params, instance_id="slow", timeout="1 day"),
                late=lambda: step.sleep("late", "1 hour"),
                event=lambda: step.wait_for_event("stop", type="stop", timeout=None).payload,
            )
        except Exception as error:
            step.sleep("pause", 60)
            return [type(error).__name__, str(error)]
        step.sleep("pause", 60)
        return [first.name, first.value]


def after_a_minute(instance: WorkflowInstance, stopped_clock: StoppedClock) -> Any:
    instance = drained(instance)
    assert instance.status == S.WAITING, (instance.status, instance.blocked, instance.error)
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    assert instance.status == S.COMPLETE, (instance.status, instance.blocked, instance.error)
    return instance.output


def test_a_child_wins(stopped_clock: StoppedClock) -> None:
    instance = drained(Parent.create("x"))
    Slow.get("slow").send_event("go", "ahead")
    drain(1)
    assert after_a_minute(instance, stopped_clock) == ["child", "ahead"]
    assert dict(steps_of(instance))["first-1[late]/late-1"] == "cancelled"
    assert not PendingEvent.objects.filter(instance=instance, status="open").exists()


def test_a_child_that_fails_first_wins_with_its_error(stopped_clock: StoppedClock) -> None:
    name, message = after_a_minute(drained(Parent.create("fails")), stopped_clock)
    assert name == "WorkflowFailed" and "race-slow/slow" in message


def test_a_child_that_loses_is_told_to_end(stopped_clock: StoppedClock) -> None:
    """CHD-04: children that the parent waits for end with the wait."""
    instance = drained(Parent.create("x"))
    instance.send_event("stop", 1)
    assert after_a_minute(instance, stopped_clock) == ["event", 1]
    child = Slow.get("slow")
    assert child.status == S.TERMINATED
    assert dict(steps_of(instance))["first-1[child]/child-1"] == "cancelled"


def test_a_child_that_had_ended_before_the_event_was_sent_wins(stopped_clock: StoppedClock) -> None:
    """Its own end counts, not when the parent hears of it."""
    instance = drained(Parent.create("x"))
    Slow.get("slow").send_event("go", "ahead")
    (claimed,) = _delivered_claim()
    execute(claimed)  # the child ends; nothing is delivered to the parent yet
    assert Slow.get("slow").status == S.COMPLETE
    stopped_clock.advance("1 second")
    instance.send_event("stop", 1)
    assert after_a_minute(instance, stopped_clock) == ["child", "ahead"]


def _delivered_claim() -> Any:
    deliver("default")
    return claim("default")


def test_a_childs_time_is_over(stopped_clock: StoppedClock) -> None:
    class Short(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            try:
                step.race(
                    "first",
                    child=lambda: step.run_workflow("child", Slow, "x", instance_id="slow", timeout="1 minute"),
                    late=lambda: step.sleep("late", "1 hour"),
                )
            except TimeoutError as error:
                step.sleep("pause", 60)
                return str(error)

    instance = drained(Short.create())
    stopped_clock.advance("2 minutes")
    assert "did not finish by" in after_a_minute(instance, stopped_clock)
    assert Slow.get("slow").status == S.TERMINATED


def test_an_id_of_a_child_that_is_taken_fails_the_race(stopped_clock: StoppedClock) -> None:
    Slow.create("x", instance_id="slow")
    name, _message = after_a_minute(drained(Parent.create("x")), stopped_clock)
    assert name == "InstanceAlreadyExists"
    assert not PendingEvent.objects.filter(instance__workflow="race-parent", status="open").exists()


def test_terminate_ends_a_race_with_all_that_it_waits_for(stopped_clock: StoppedClock) -> None:
    instance = drained(Parent.create("x"))
    instance.terminate()
    drain(1)
    assert Slow.get("slow").status == S.TERMINATED
    assert {status for _label, status in steps_of(instance)} == {"cancelled"}


def test_a_race_in_the_testing_kit() -> None:
    with harness() as kit:
        instance = kit.run(Two)
        kit.approve(instance, "ok")
        assert instance.output == ["approval", True]
        late = kit.run(Parent, "x")
        kit.advance("1 hour")
        kit.advance("1 minute")
        assert late.output == ["late", None]


def test_two_who_send_and_a_deadline_under_load() -> None:
    """Many races, settled by several senders and looked at by several workers: each has one winner and one consumption."""
    rows = [Two.create(instance_id=f"many-{number}") for number in range(6)]
    drain(2)
    sends = [lambda row=row: row.send_event("paid", 1) for row in rows]
    decisions = [
        lambda row=row: PendingEvent.objects.get(instance=row, kind="wait_for_approval").approve(by=None)
        for row in rows
    ]
    for task in together(*sends, *decisions, lambda: drain(1), lambda: drain(1)):
        assert task.error is None or isinstance(task.error, StaleDecision | InvalidTransition)
    eventually(lambda: (drain(0.1), not WorkflowInstance.objects.active().exists())[1])
    for row in rows:
        row.refresh_from_db()
        assert row.status == S.COMPLETE
        assert SentEvent.objects.filter(instance=row).exclude(consumed_by="").count() == 1
        assert types_of(row).count("race_completed") == 1
