"""Schedules between processes: one instance per slot, one row per declaration, no statement more per claim (case SCH-04)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durableflow import drain
from durableflow.cluster import Broker, broker
from durableflow.cluster.drains import Drains
from durableflow.core import clock
from durableflow.engine import declaring, schedules
from durableflow.engine.declaring import declare, declare_if_new
from durableflow.engine.firing import fire
from durableflow.engine.look import SCHEDULE, next_due
from durableflow.models import WorkflowInstance, WorkflowSchedule
from tests.integration.sch_flows import added, define
from tests.support.concurrency import Task, held, together
from tests.workflows.schedule_samples import ScheduledNote

pytestmark = pytest.mark.django_db(transaction=True)
SLOTS = 200


@pytest.fixture(autouse=True)
def anew() -> None:
    """What this process has seen of schedules in another test's tables."""
    schedules._seen.clear()


def due(number: int, **fields: Any) -> list[WorkflowSchedule]:
    """Rows whose slot is the present minute of this day of the year: no other comes while the test runs."""
    slot = clock.read("default").replace(second=0, microsecond=0)
    cron = f"{slot.minute} {slot.hour} {slot.day} {slot.month} *"
    rows = [
        WorkflowSchedule(workflow="scheduled-note", name=f"n{n}", cron=cron, next_slot=slot, look_at=slot, **fields)
        for n in range(number)
    ]
    return WorkflowSchedule.objects.bulk_create(rows)


def look_at_all() -> int:
    """What the looks of one process fire."""
    fired = 0
    while found := [pk for pk, seconds in schedules.upcoming("default") if seconds <= 0]:
        fired += sum([fire("default", pk) for pk in found])
    return fired


def test_two_lookers_and_two_hundred_slots() -> None:
    """SCH-04: each slot once; the loser is silent. (With two clusters: tests/acceptance/test_cluster_schedules.py.)"""
    due(SLOTS)
    fired = [task.result() for task in together(look_at_all, look_at_all)]
    assert sum(fired) == SLOTS
    pairs = list(ScheduledNote.instances().values_list("schedule", "scheduled_for"))
    assert len(pairs) == SLOTS == len({schedule for schedule, _ in pairs})


def test_a_row_that_somebody_holds_hides_nobody() -> None:
    """Design 1.5: a user's transaction that has locked one schedule."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no row locks")
    mine, other = due(2)
    with held(mine):
        schedules.look("default")
        assert [row.schedule_id for row in ScheduledNote.instances()] == [other.pk]
    schedules._seen.clear()
    schedules.look("default")
    assert ScheduledNote.instances().count() == 2


def test_an_id_that_an_open_transaction_has_taken() -> None:
    """Design 1.5: the slot waits for its end, the others do not."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no row locks")
    mine, other = due(2)
    assert mine.next_slot is not None
    name = f"n0-{mine.next_slot:%Y%m%dT%H%M%SZ}"
    inside, end = threading.Event(), threading.Event()

    def take() -> None:
        with transaction.atomic():
            ScheduledNote.create(instance_id=name)
            inside.set()
            end.wait(60)

    task = Task(take)
    assert inside.wait(60)
    try:
        assert not fire("default", mine.pk)
        assert fire("default", other.pk)
    finally:
        end.set()
    task.result()
    assert fire("default", mine.pk)
    assert ScheduledNote.instances().count() == 2
    mine.refresh_from_db()
    assert mine.next_slot is not None and mine.next_slot > clock.read("default")


def test_paused_while_it_fires() -> None:
    """SCH-09: the two are one after the other, whichever is first; after the pause nothing fires."""
    (row,) = due(1)
    for task in together(lambda: fire("default", row.pk), row.pause):
        task.result()
    number = ScheduledNote.instances().count()
    row.refresh_from_db()
    assert (row.enabled, row.look_at, row.next_slot) == (False, None, None)
    assert not fire("default", row.pk)
    assert ScheduledNote.instances().count() == number <= 1


def test_two_processes_declare_at_once() -> None:
    """Design 9: one row."""
    define("0 2 * * *", "0 3 * * *")
    for task in together(*[lambda: declare("default")] * 4):
        task.result()
    assert WorkflowSchedule.objects.filter(workflow="sch-flow", declared=True).count() == 2


def test_once_per_process_and_change_of_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 9: not at each look."""
    monkeypatch.setattr(declaring, "_silent", False)
    monkeypatch.setattr(declaring, "_done", {})
    define("0 2 * * *")
    declare_if_new("default")
    rows = WorkflowSchedule._base_manager.filter(workflow="sch-flow")
    assert rows.count() == 1
    rows.delete()
    declare_if_new("default")
    assert rows.count() == 0
    define("0 3 * * *")
    declare_if_new("default")
    assert [row.cron for row in rows] == ["0 3 * * *"]


def test_no_statement_per_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 9, 11: a drain asks for schedules once, however much it executes, until it is time again."""
    monkeypatch.setattr(schedules, "ASK_EVERY", 1e9)
    added("later", workflow="scheduled-note", cron="0 0 1 1 *")
    for _ in range(20):
        ScheduledNote.create()
    with CaptureQueriesContext(
        connection,
    ) as caught:
        assert drain(60) == 20
    asked = [query["sql"] for query in caught if WorkflowSchedule._meta.db_table in query["sql"]]
    assert len(asked) == 1


def test_a_drain_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    """Api.md: drain() fires schedules; a row that was saved in this process is seen at once, another's within a second."""
    assert drain() == 0
    row = added(workflow="scheduled-note", cron="* * * * *")
    with clock.stop(timezone.now() + timedelta(minutes=1)):
        assert drain(60) == 1
    (instance,) = ScheduledNote.instances()
    assert (instance.status, instance.output) == ("complete", [instance.scheduled_for, row.cron])


def test_an_idle_broker_wakes_for_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4, 9: what it waits for includes the next slot, which is never late work that a worker has left."""
    (row,) = due(1)
    now = clock.read("default")
    WorkflowSchedule.objects.filter(pk=row.pk).update(look_at=now + timedelta(seconds=300))
    schedules.look("default")
    due_next = next_due("default")
    assert due_next is not None
    assert (due_next.instance, 0 < due_next.seconds <= 300) == (SCHEDULE, True)


def test_a_broker_fires_and_hands_out_a_drain_in_one_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4, 9."""
    monkeypatch.setattr(broker, "DRAINS", Drains())
    due(1)
    made = Broker("durableflow")
    try:
        assert made.dequeue()
    finally:
        made._listener.close()
    assert WorkflowInstance.objects.get().trigger == "schedule"
