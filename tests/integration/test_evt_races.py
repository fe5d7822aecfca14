"""Senders, deciders and executors at the same moment: real threads on a real database (design 4)."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.utils import timezone

from durableflow import EventTimeout, IdempotencyConflict, Step, Workflow, WorkflowEvent, drain
from durableflow.core.exceptions import StaleDecision
from durableflow.engine import endings, executor, waits
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.models import HistoryEntry, PendingEvent, SentEvent, WorkflowInstance
from durableflow.models import decisions as decisions_module
from tests.conftest import UserFactory
from tests.support.concurrency import Gate, Task, eventually, together

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class Listener(Workflow[Any, Any]):
    """Waits for one event without a deadline."""

    class Meta:
        name = "evt-listener"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.wait_for_event("note", type="note", timeout=None).payload


class Approval(Workflow[Any, Any]):
    """Waits for one decision."""

    class Meta:
        name = "evt-approval"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        decision = step.wait_for_approval("ok", title="Ok?", timeout=event.params)
        return step.do("branch", lambda: "approved" if decision else "rejected")


def state(row: WorkflowInstance) -> tuple[str, Any]:
    row.refresh_from_db()
    return row.status, row.output


@pytest.mark.parametrize("place", ["before_suspend", "before_commit"])
def test_an_event_between_the_look_and_the_parking_wakes(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """EVT-02: sent and delivered from another connection exactly between "nothing is there" and "now I wait"."""
    row = Listener.create()
    looked = Gate()
    if place == "before_suspend":
        original = endings.suspend

        def stopped(*args: Any) -> Any:
            looked.stop_here()
            return original(*args)

        monkeypatch.setattr(executor.endings, "suspend", stopped)
    else:  # the look has read the inbox and has not committed yet
        match = waits._match

        def found(*args: Any) -> Any:
            value = match(*args)
            looked.stop_here()
            return value

        monkeypatch.setattr(waits, "_match", found)
    work = Task(drain)
    looked.wait_until_reached()

    def send() -> None:
        row.send_event("note", 1)
        deliver("default")

    if connection.vendor == "sqlite" and place == "before_commit":
        looked.open()  # the write lock keeps every sender out until the commit
    sender = Task(send)
    if connection.vendor != "sqlite" or place == "before_suspend":
        sender.result()
    looked.open()
    work.result()
    sender.result()
    monkeypatch.undo()
    drain()
    assert state(row) == (Status.COMPLETE, 1)


def test_no_wake_is_lost_in_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """EVT-02: sender, deliverer and executor run free, with random pauses at the seams."""
    rounds = 40
    dice = random.Random(20261001)
    original, match = endings.suspend, waits._match

    def pause() -> None:
        for _ in range(dice.choice((0, 0, 1, 3))):
            WorkflowInstance.objects.count()

    def suspend(*args: Any) -> Any:
        pause()
        return original(*args)

    def look(*args: Any) -> Any:
        value = match(*args)
        pause()
        return value

    monkeypatch.setattr(executor.endings, "suspend", suspend)
    monkeypatch.setattr(waits, "_match", look)
    rows = [Listener.create() for _ in range(rounds)]

    def send() -> None:
        for number, row in enumerate(rows):
            row.send_event("note", number)

    def work() -> None:
        while not sender_done or drain(0.2):
            drain(0.2)

    sender_done: list[bool] = []

    def send_all() -> None:
        try:
            send()
        finally:
            sender_done.append(True)

    for task in together(send_all, work, work):
        task.result()
    drain(30)
    left = WorkflowInstance.objects.exclude(status=Status.COMPLETE)
    assert not left.exists(), [(row.status, row.wake_at, row.woken) for row in left]
    assert [state(row)[1] for row in rows] == list(range(rounds))


def test_two_deciders_at_once(user_factory: UserFactory) -> None:
    """EVT-10: one decision, one refusal that names who decided, one audit entry, one branch."""
    ada, bob = (user_factory(name, permissions=["durableflow.decide_pendingevent"]) for name in ("ada", "bob"))
    rounds = 25
    rows = [Approval.create() for _ in range(rounds)]
    drain(30)
    for number, row in enumerate(rows):
        pk = row.pending_events.get().pk

        def decide(approved: bool, by: User, pk: int = pk) -> Any:
            return PendingEvent.objects.get(pk=pk).decide(approved, by=by)

        second = ada if number % 5 == 0 else bob  # a double click of one person as well
        tasks = together(lambda f=decide: f(True, ada), lambda f=decide, who=second: f(False, who))  # type: ignore[misc]
        (winner,) = [task for task in tasks if task.error is None]
        (loser,) = [task for task in tasks if task.error is not None]
        assert isinstance(loser.error, StaleDecision)
        pending = PendingEvent.objects.get(pk=pk)
        assert (loser.error.code, loser.error.by, loser.error.at) == (
            "already_decided",
            pending.decided_by_name,
            pending.decided_at,
        )
        assert pending.approved is winner.result().approved
        assert SentEvent.objects.filter(pending_event=pk).count() == 1
    drain(30)
    for row in rows:
        pending = row.pending_events.get()
        assert state(row) == (Status.COMPLETE, "approved" if pending.approved else "rejected")
        assert row.history.filter(type="decided").count() == 1


def test_a_decision_holds_its_wait_against_the_timeout(user_factory: UserFactory) -> None:
    """Design 4, "Time": made before the deadline, committed after it; the time-out meets the lock and looks again."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer: a decision and a time-out cannot overlap")
    row = Approval.create("1 hour")
    drain()
    pending = row.pending_events.get()
    made = Gate()

    def decide() -> None:
        with transaction.atomic():
            PendingEvent.objects.get(pk=pending.pk).approve(by=None)
            made.stop_here()

    decider = Task(decide)
    made.wait_until_reached()
    # An hour passes: the deadline is over for everybody who looks now. (The decider's row lock keeps this from being an
    # UPDATE of the pending event; the executor is told another time in its place.)
    with pytest.MonkeyPatch.context() as patch:
        original = waits.fenced
        later = timezone.now() + timedelta(hours=2)
        patch.setattr(waits, "fenced", _later(original, later))
        WorkflowInstance.objects.filter(pk=row.pk).update(wake_at=row.created)
        assert drain() == 1
        row.refresh_from_db()
        assert row.status == Status.WAITING
        assert row.wake_at is not None and row.wake_at - later == timedelta(seconds=1)
        assert not row.history.filter(type="wait_timed_out").exists()
        made.open()
        decider.result()
        WorkflowInstance.objects.filter(pk=row.pk).update(wake_at=row.created)
        drain()
    assert state(row) == (Status.COMPLETE, "approved")


def _later(fenced: Any, moment: Any) -> Any:
    from contextlib import contextmanager

    @contextmanager
    def wrapped(lease: Any) -> Any:
        with fenced(lease) as fence:
            yield type(fence)(fence.status, moment)

    return wrapped


def test_decision_and_timeout_at_the_same_moment() -> None:
    """Either the decision counts and was accepted, or it was refused and the wait has timed out; never both, never none."""
    rows = [Approval.create("1 hour") for _ in range(15)]
    drain(30)
    outcomes = set()
    for row in rows:
        pending = row.pending_events.get()
        soon = timezone.now() + timedelta(milliseconds=8)
        PendingEvent.objects.filter(pk=pending.pk).update(deadline=soon)
        WorkflowInstance.objects.filter(pk=row.pk).update(wake_at=soon)

        def run_it(row: Any = row) -> None:
            eventually(lambda: drain(0.5) or WorkflowInstance.objects.get(pk=row.pk).status != Status.WAITING)

        def decide(pk: int = pending.pk) -> Any:
            return PendingEvent.objects.get(pk=pk).approve(by=None)

        decider, worker = together(decide, run_it)
        worker.result()
        drain(1.5)
        _status, output = state(row)
        pending.refresh_from_db()
        if decider.error is None:
            eventually(lambda row=row: drain(0.2) is not None and state(row)[0] == Status.COMPLETE)
            assert (row.output, pending.status) == ("approved", "received")
        else:
            assert isinstance(decider.error, StaleDecision) and decider.error.code == "timed_out"
            eventually(lambda row=row: drain(0.2) is not None and state(row)[0] == Status.ERRORED)
            pending.refresh_from_db()
            assert (output, pending.status) == (None, "timed_out")
        outcomes.add(decider.error is None)
    assert outcomes


def test_a_webhook_that_is_delivered_twice_at_once() -> None:
    """EVT-16: one row, both calls get it, another payload is refused, the loop makes one round."""

    class Loop(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            seen = []
            while True:
                try:
                    seen.append(step.wait_for_event("hook", type="hook", timeout=3600 if not seen else 0).payload)
                except EventTimeout:
                    return seen

    for number in range(15):
        row = Loop.create()
        drain()

        def post(row: Any = row, key: str = f"evt_{number}") -> Any:
            return WorkflowInstance.objects.get(pk=row.pk).send_event("hook", {"b": 1, "a": [2]}, dedupe_key=key)

        tasks = together(post, post, post)
        sent = [task.result() for task in tasks]
        assert len({event.pk for event in sent}) == 1
        assert sorted(event.duplicate for event in sent) == [False, True, True]
        with pytest.raises(IdempotencyConflict):
            row.send_event("hook", {"b": 2, "a": [2]}, dedupe_key=f"evt_{number}")
        with pytest.raises(IdempotencyConflict):
            row.send_event("other", {"b": 1, "a": [2]}, dedupe_key=f"evt_{number}")
        drain()
        assert state(row) == (Status.COMPLETE, [{"b": 1, "a": [2]}])
        assert row.sent_events.count() == 1
        assert post().pk == sent[0].pk, "a second delivery after the end is no error"


def test_the_same_payload_in_another_order_is_the_same() -> None:
    """EVT-16: a sender that writes its JSON anew may order the keys otherwise."""
    row = Listener.create()
    first = row.send_event("note", {"a": 1, "b": {"x": [1, 2], "y": True}}, dedupe_key="k")
    again = row.send_event("note", {"b": {"y": True, "x": [1, 2]}, "a": 1}, dedupe_key="k")
    assert again.pk == first.pk and again.duplicate
    for other in ({"a": 1, "b": {"x": [2, 1], "y": True}}, {"a": 1, "b": {"x": [1, 2], "y": 1}}, None):
        with pytest.raises(IdempotencyConflict):
            row.send_event("note", other, dedupe_key="k")


def test_the_first_sender_rolls_back_and_the_second_is_stored() -> None:
    """EVT-16: the key is free again."""
    row = Listener.create()
    with pytest.raises(ValidationError), transaction.atomic():
        row.send_event("note", 1, dedupe_key="k")
        raise ValidationError("no")
    assert row.send_event("note", 2, dedupe_key="k").duplicate is False
    drain()
    assert state(row) == (Status.COMPLETE, 2)


def test_sending_twice_leaves_the_callers_transaction_usable() -> None:
    row = Listener.create()
    with transaction.atomic():
        first = row.send_event("note", 1, dedupe_key="k")
        assert row.send_event("note", 1, dedupe_key="k").pk == first.pk
        User.objects.create_user("after")
    assert User.objects.filter(username="after").exists()


def test_completion_and_an_event_at_once() -> None:
    """EVT-17: the sender is told the truth: accepted (and visible, unconsumed or consumed), or refused."""

    class Last(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.do("last", lambda: None)
            try:
                return step.wait_for_event("any", type="note", timeout=0).payload
            except EventTimeout:
                return None

    for _ in range(15):
        row = Last.create()
        (claimed,) = claim("default")
        sender, worker = together(
            lambda row=row: row.send_event("note", "x"),  # type: ignore[misc]
            lambda claimed=claimed: execute(claimed, renew=False),  # type: ignore[misc]
        )
        worker.result()
        drain()
        status, output = state(row)
        assert status == Status.COMPLETE
        events = list(row.sent_events.all())
        if sender.error is None:
            (event,) = events
            assert event.delivered and (event.consumed_by != "") == (output == "x")
            assert row.history.filter(type="event_received").count() == 1
        else:
            assert events == [] and output is None


def test_a_senders_open_transaction_blocks_nobody() -> None:
    """Promise 5: the event is invisible until the commit; executor, deliverer and other senders go on."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    row = Listener.create()
    sent = Gate()

    def send() -> None:
        with transaction.atomic():
            row.send_event("note", "late")
            sent.stop_here()

    sender = Task(send)
    sent.wait_until_reached()
    drain()
    assert state(row)[0] == Status.WAITING
    other = WorkflowInstance.objects.get(pk=row.pk)
    other.send_event("other", 1)
    drain()
    assert row.history.filter(type="event_received").count() == 1
    sent.open()
    sender.result()
    drain()
    assert state(row) == (Status.COMPLETE, "late")
    assert HistoryEntry.objects.filter(type="event_received").count() == 2


def test_a_decision_tells_one_time_everywhere() -> None:
    """What run() gets, what decide() returns and what the row says is one and the same moment: the database's."""

    class Moment(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.wait_for_approval("ok", title="Ok?").at

    row = Moment.create()
    drain()
    pending = row.pending_events.get()
    decision = pending.approve(by=None)
    drain()
    assert state(row) == (Status.COMPLETE, pending.decided_at)
    assert decision.at == pending.decided_at == pending.closed
    assert row.sent_events.get().sent_at == pending.decided_at
    assert decisions_module is not None
