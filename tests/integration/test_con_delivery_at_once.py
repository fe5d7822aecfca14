"""Delivery in one statement (PostgreSQL): it reads the tables as they were when it began, and locks rows after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine import delivery, inbox
from durableflow.engine.delivery import deliver
from durableflow.models import HistoryEntry, SentEvent, WorkflowInstance
from tests.support.concurrency import Task, eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql_only]
KEY = 471_108


class Hearer(Workflow[Any, Any]):
    class Meta:
        name = "con-hearer"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.wait_for_event("note", type="note", timeout=None).payload


def late(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The delivering statement waits between its first read and the locking of the instances, where the returned
    function is put in place of its text."""
    original = inbox._at_once
    lock = "ORDER BY i.id FOR NO KEY UPDATE SKIP LOCKED"

    def text(*args: Any) -> str:
        sql = original(*args)
        assert lock in sql
        return sql.replace(lock, f"AND (SELECT pg_advisory_xact_lock_shared({KEY}) IS NOT NULL) {lock}")

    return text


def execute(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def overtaken(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> Any:
    """What a delivery returns that has read before ``meanwhile`` and locks after it."""
    execute(f"SELECT pg_advisory_lock({KEY}) IS NOT NULL")
    with monkeypatch.context() as patch:
        patch.setattr(inbox, "_at_once", late(monkeypatch))
        task = Task(lambda: deliver("default"))
        sql = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {KEY} AND NOT granted"
        eventually(lambda: execute(sql), "the other look at the advisory lock")
    meanwhile()
    execute(f"SELECT pg_advisory_unlock({KEY})")
    return task.result()


def listening() -> WorkflowInstance:
    row = Hearer.create()
    drain(30)
    row.refresh_from_db()
    assert (row.status, row.wake_at) == ("waiting", None)
    return row


def test_what_another_look_has_delivered_meanwhile_is_not_delivered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-07: the row of the event still looks undelivered to the statement that comes second."""
    row = listening()
    row.send_event("note", 1)
    assert overtaken(monkeypatch, lambda: deliver("default")) is False
    assert HistoryEntry.objects.filter(instance=row, type="event_received").count() == 1


def test_what_was_delivered_and_consumed_meanwhile_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """EVT-02: an instance that goes on to its next wait is not woken by an event that it has had."""
    row = listening()
    row.send_event("note", 1)

    def meanwhile() -> None:
        drain(30)
        WorkflowInstance.objects.filter(pk=row.pk).update(status="waiting", wake_at=None)

    overtaken(monkeypatch, meanwhile)
    row.refresh_from_db()
    assert (row.wake_at, row.woken) == (None, False)


def test_a_restart_meanwhile_takes_the_event_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 2: an undelivered event moves to the run that is current when the instance is locked, and its history
    entry is that run's."""
    row = listening()
    row.send_event("note", 1)
    overtaken(monkeypatch, lambda: WorkflowInstance.objects.filter(pk=row.pk).update(run_number=2))
    sent, entry = SentEvent.objects.get(), HistoryEntry.objects.get(instance=row, type="event_received")
    assert (sent.delivered, sent.run_number, entry.run_number) == (True, 2, 2)


def test_who_runs_it_meanwhile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """EVT-02: the instance was waiting when the statement began, and leased when it was locked."""
    row = listening()
    row.send_event("note", 1)
    claimed = WorkflowInstance.objects.filter(pk=row.pk)
    overtaken(monkeypatch, lambda: claimed.update(status="running", lease_token=1, owner=1))
    row.refresh_from_db()
    assert (row.woken, row.wake_at) == (True, None)


def test_one_statement_delivers_it_all(django_assert_num_queries: Any) -> None:
    """Design 4: a read that finds something, and one statement, whatever there is."""
    rows = [listening() for _ in range(3)]
    for row in rows:
        for number in range(4):
            row.send_event("note", number)
    with django_assert_num_queries(2):
        assert deliver("default") is False
    assert WorkflowInstance.objects.filter(wake_at__isnull=False).count() == 3
    assert list(HistoryEntry.objects.filter(type="event_received").values_list("data", flat=True)) == [
        {"event": pk, "type": "note"} for pk in SentEvent.objects.order_by("pk").values_list("pk", flat=True)
    ]


def test_inside_an_open_block_it_is_delivered_as_a_part_of_it() -> None:
    """Design 10: the testing kit works inside of ``TestCase``."""
    row = listening()
    row.send_event("note", 1)
    with transaction.atomic():
        deliver("default")
        transaction.set_rollback(True)
    row.refresh_from_db()
    assert row.wake_at is None


def test_what_a_full_statement_leaves_is_delivered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would lie there until somebody has reason to look again."""
    monkeypatch.setattr(delivery, "BATCH", 4)
    row = Hearer.create()
    drain(30)
    for number in range(7):
        row.send_event("note", number)
    deliver("default")
    assert not SentEvent.objects.filter(delivered=False).exists()


def test_it_tells_whom_it_has_made_due() -> None:
    """Not one that runs, which only notes that something has come; nor one that is held or paused."""
    rows = [Hearer.create() for _ in range(4)]
    drain()
    kept = WorkflowInstance.objects
    kept.filter(pk=rows[0].pk).update(status="paused")
    kept.filter(pk=rows[1].pk).update(hold="newer_code")
    for row in rows[:2]:
        row.send_event("note", 1)
    assert delivery.delivery("default") == (False, None)
    for row in rows[2:]:
        row.send_event("note", 1)
    assert delivery.delivery("default") == (False, rows[2].pk)
