"""Delivery: what was sent makes its instance due, whoever holds what (design 4, "Senders never lock the instance")."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine import delivery, inbox
from durableflow.engine import drain as drains
from durableflow.engine.claims import claim, look
from durableflow.engine.delivery import deliver
from durableflow.engine.drain import drain_for
from durableflow.models import HistoryEntry, SentEvent, WorkflowInstance
from tests.support.concurrency import Task, eventually, held, together

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class Listener(Workflow[Any, Any]):
    class Meta:
        name = "con-listener"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.wait_for_event("note", type="note", timeout=None).payload


def waiting(count: int = 1) -> list[WorkflowInstance]:
    rows = [Listener.create() for _ in range(count)]
    drain(30)
    for row in rows:
        row.refresh_from_db()
        assert (row.status, row.wake_at) == (Status.WAITING, None)
    return rows


def fresh(row: WorkflowInstance) -> WorkflowInstance:
    row.refresh_from_db()
    return row


def test_nothing_to_deliver_costs_one_read() -> None:
    waiting()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert deliver("default") is False
    assert len(queries) == 1 and not connection.in_atomic_block


@pytest.mark.parametrize("status", ["queued", "waiting", "running", "paused", "complete"])
def test_what_delivery_does_in_each_status(status: str) -> None:
    """Design 4: waiting is made due, a holder is told, paused, finished and queued instances are left as they are."""
    if status in ("queued", "running"):
        row = Listener.create(start_at="1 hour") if status == "queued" else Listener.create()
    else:
        (row,) = waiting()
    if status == "running":
        claim("default")
    before = fresh(row).wake_at
    sent = row.send_event("note", 1)
    if status in ("paused", "complete"):
        WorkflowInstance.objects.update(status=status)
    assert deliver("default") is False
    fresh(row)
    sent.refresh_from_db()
    assert sent.delivered and row.status == status
    assert (row.wake_at == before) is (status != "waiting")
    assert row.woken is (status == "running")
    entry = row.history.get(type="event_received")
    assert entry.data == {"event": sent.pk, "type": "note"}


def test_it_is_delivered_once(django_assert_num_queries: Any) -> None:
    (row,) = waiting()
    row.send_event("note", 1)
    for task in together(*[lambda: deliver("default")] * 4):
        task.result()
    deliver("default")
    assert row.history.filter(type="event_received").count() == 1


def test_orphans_are_dropped() -> None:
    """There is no constraint to the instance: a sender never waits for its row."""
    (row, other) = waiting(2)
    row.send_event("note", 1)
    other.send_event("note", 2)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durableflow_sentevent SET instance_id = 4711 WHERE instance_id = %s", [row.pk])
    assert deliver("default") is False
    assert list(SentEvent.objects.values_list("instance", "delivered")) == [(other.pk, True)]
    assert not HistoryEntry.objects.filter(instance=4711).exists()


@pytest.mark.postgresql_only
def test_a_held_instance_is_looked_at_again() -> None:
    """Skipped, not waited for; the others are delivered, and a look in 20 ms is due."""
    (row, other) = waiting(2)
    with held(row):
        row.send_event("note", 1)
        other.send_event("note", 2)
        assert deliver("default") is True
        assert fresh(other).wake_at is not None and fresh(row).wake_at is None
        drain(0.1)
        assert fresh(other).output == 2
    drain()
    assert fresh(row).output == 1


@pytest.mark.postgresql_only
def test_a_drain_comes_back_for_a_held_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bool] = []
    (row,) = waiting()
    monkeypatch.setattr(drains, "deliver", lambda using: left.append(deliver(using)) or left[-1])
    with held(row):
        row.send_event("note", 1)
        drainer = Task(lambda: drain(30))
        eventually(lambda: left, "its first delivery")
    assert left[0] is True
    assert drainer.result() >= 1
    assert fresh(row).output == 1


@pytest.mark.postgresql_only
def test_a_held_instance_with_many_events_hides_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "BATCH", 5)
    (row, other) = waiting(2)
    with held(row):
        for number in range(20):
            row.send_event("other", number)
        other.send_event("note", 2)
        assert deliver("default") is True
        assert fresh(other).wake_at is not None


@pytest.mark.postgresql_only
def test_thousands_of_events_to_a_held_instance_hide_nobody() -> None:
    """Design 4: the look goes from instance to instance, however many events each of them has."""
    (row, other) = waiting(2)
    with held(row):
        SentEvent.objects.bulk_create(
            SentEvent(instance=row, run_number=1, type="other", sent_at=row.created) for _ in range(5001)
        )
        other.send_event("note", 2)
        assert deliver("default") is True
        assert fresh(other).wake_at is not None


@pytest.mark.postgresql_only
def test_a_batch_of_held_instances_hides_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-07: after a full batch the next look begins behind it, and comes round again."""
    monkeypatch.setattr(delivery, "BATCH", 2)
    rows = waiting(3)
    with held(*rows[:2]):
        for number, row in enumerate(rows):
            row.send_event("note", number)
        assert deliver("default") is True
        assert fresh(rows[2]).wake_at is None
        deliver("default")
        assert fresh(rows[2]).wake_at is not None
    while deliver("default") or SentEvent.objects.filter(delivered=False).exists():
        pass
    drain(30)
    assert [fresh(row).output for row in rows] == [0, 1, 2]


@pytest.mark.postgresql_only
def test_a_batch_of_a_held_senders_events_hides_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit refers to the sender, whose row somebody has locked for long; another one's event is behind a full batch
    of theirs."""
    monkeypatch.setattr(delivery, "BATCH", 3)
    sender = User.objects.create_superuser("sender")
    (first, other) = waiting(2)
    for number in range(5):
        first.send_event("note", number, by=sender)
    other.send_event("note", 2)
    with held(sender):
        assert deliver("default") is True
        assert fresh(other).wake_at is not None and fresh(first).wake_at is None


def test_more_than_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4: at most 500 at a time; the rest at the next look."""
    assert delivery.BATCH == 500
    monkeypatch.setattr(delivery, "BATCH", 5)
    rows = waiting(12)
    for number, row in enumerate(rows):
        row.send_event("note", number)
    drain(30)
    assert [fresh(row).output for row in rows] == list(range(12))


@pytest.mark.postgresql_only
@pytest.mark.parametrize("lock", ["FOR UPDATE", "FOR NO KEY UPDATE"])
def test_somebody_who_holds_the_senders_user_row_stops_nobody(lock: str, settings: Any) -> None:
    """The audit refers to the sender: a transaction that has locked that user (a balance, say) must not stop the looks."""
    sender = User.objects.create_superuser("sender")
    (first, other) = waiting(2)
    first.send_event("note", 1, by=sender)
    other.send_event("note", 2)
    with held(sender, lock=lock):
        drain(0.2)  # it would wait for ever
        assert fresh(other).output == 2, "the other instance went on"
    drain()
    assert fresh(first).output == 1
    assert first.history.get(type="event_received").actor == sender


def test_an_instance_whose_delivery_fails_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """CON-07: per-instance isolation, also here; it is reported, and delivered once it can be."""
    rows = waiting(4)
    for number, row in enumerate(rows):
        row.send_event("note", number)
    original = inbox.hand_over

    def broken(using: str, locked: list[int], *args: Any, **kwargs: Any) -> Any:
        if rows[1].pk in locked:
            raise KeyError("what is this")
        return original(using, locked, *args, **kwargs)

    def broken_at_once(*args: Any) -> Any:
        raise KeyError("what is this")

    monkeypatch.setattr(inbox, "hand_over", broken)
    monkeypatch.setattr(inbox, "deliver_at_once", broken_at_once)
    drain(0.5)
    assert [fresh(row).output for row in rows] == [0, None, 2, 3]
    assert any(record.exc_info and "cannot be delivered" in record.message for record in caplog.records)
    monkeypatch.undo()
    drain()
    assert fresh(rows[1]).output == 1


@pytest.mark.parametrize("via", ["code", "api"])
def test_the_audit_says_who_and_why(via: str) -> None:
    sender = User.objects.create_superuser("sender")
    (row,) = waiting()
    row.send_event("note", 1, by=sender, reason="by hand", via=via)
    drain()
    entry = row.history.get(type="event_received")
    assert (entry.actor, entry.actor_name, entry.via, entry.reason) == (sender, "sender", via, "by hand")
    assert entry.step == ""


def test_an_event_for_an_earlier_run_moves_to_this_one() -> None:
    """Design 2: sent to a run that was started again before anybody saw it; its dedupe key goes with it if it is free."""
    (row,) = waiting()
    WorkflowInstance.objects.update(run_number=2)
    taken = SentEvent.objects.create(
        instance=row, run_number=2, type="x", sent_at=row.created, dedupe_key="k", delivered=True
    )
    make: Callable[..., SentEvent] = SentEvent.objects.create
    moved = make(instance=row, run_number=1, type="note", sent_at=row.created, dedupe_key="free")
    stays = make(instance=row, run_number=1, type="note", sent_at=row.created, dedupe_key="k")
    consumed = make(instance=row, run_number=1, type="note", sent_at=row.created, consumed_by="/x", consumed_run=1)
    deliver("default")
    numbers = {event.pk: event.run_number for event in SentEvent.objects.all()}
    assert numbers == {taken.pk: 2, moved.pk: 2, stays.pk: 1, consumed.pk: 1}
    assert not SentEvent.objects.filter(delivered=False).exists()


def test_of_several_with_one_key_from_earlier_runs_the_first_moves() -> None:
    """Design 2: a key is used once in a run; what cannot move stays with its run, and stops nobody."""
    (row,) = waiting()
    make: Callable[..., SentEvent] = SentEvent.objects.create
    first = make(instance=row, run_number=1, type="note", sent_at=row.created, dedupe_key="k")
    second = make(instance=row, run_number=2, type="note", sent_at=row.created, dedupe_key="k")
    WorkflowInstance.objects.update(run_number=3)
    assert deliver("default") is False
    numbers = {event.pk: (event.run_number, event.delivered) for event in SentEvent.objects.all()}
    assert numbers == {first.pk: (3, True), second.pk: (2, True)}


def test_the_audit_is_what_the_codec_would_write() -> None:
    """The history of a delivery is written by SQL: it reads as if the codec had written it, whatever the type is."""
    (row,) = waiting()
    odd = 'q"\\\n\u00e9\u2028'
    sent = SentEvent.objects.create(instance=row, run_number=1, type=odd, sent_at=row.created)
    deliver("default")
    entry = row.history.get(type="event_received")
    assert entry.data == {"event": sent.pk, "type": odd}
    assert list(entry.data) == ["event", "type"]


def test_a_start_in_the_future_is_not_brought_forward() -> None:
    """Design 2: a delivered event leaves queued as it is."""
    row = Listener.create(start_at=timedelta(hours=1))
    row.send_event("note", 1)
    assert drain() == 0
    assert fresh(row).status == Status.QUEUED and row.sent_events.get().delivered
    WorkflowInstance.objects.update(wake_at=row.created)
    drain()
    assert fresh(row).output == 1


def test_the_look_reads_the_undelivered_alone() -> None:
    """However many delivered events an inbox keeps: the partial index serves the look on both databases. The planner is
    told of some: for an empty table each index serves as well."""
    (row,) = waiting()
    SentEvent.objects.bulk_create(
        SentEvent(instance=row, run_number=1, type="note", sent_at=row.created, delivered=True) for _ in range(3000)
    )
    row.send_event("note", 1)
    with CaptureQueriesContext(connection) as asked:
        deliver(connection.alias)
    look = next(query["sql"] for query in asked if "RECURSIVE" in query["sql"])
    explain = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
    SentEvent.objects.filter(pk=row.sent_events.latest("id").pk).update(delivered=False)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        cursor.execute(f"{explain} {look}")
        plan = str(cursor.fetchall())
    assert "durableflow_undelivered" in plan


@pytest.mark.parametrize("delivered", [True, False])
def test_a_drain_for_which_was_delivered_looks_first(delivered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4: the broker delivers before it hands out a drain; what was sent since is delivered before the drain
    ends."""
    order: list[str] = []
    monkeypatch.setattr(drains, "deliver", lambda using: order.append("deliver") or deliver(using))
    monkeypatch.setattr(drains, "look", lambda *args: order.append("look") or look(*args))
    (row,) = waiting()
    order.clear()
    row.send_event("note", 1)
    drain_for(30, delivered=delivered)
    assert fresh(row).output == 1
    assert order[:2] == (["look", "deliver"] if delivered else ["deliver", "look"])
