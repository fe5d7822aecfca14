"""Slots that fire: once each, for their own time, as catch-up and overlap say (cases SCH-03, SCH-05, SCH-07, SCH-08)."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from durableflow import Schedule, Workflow
from durableflow.core import registry
from durableflow.engine.declaring import declare
from durableflow.engine.firing import slot_id
from durableflow.models import HistoryEntry, SkippedSlots, WorkflowInstance, WorkflowSchedule
from durableflow.testing import Harness
from tests.integration.sch_flows import added, at, declared, define, fire, skips, slots

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status
MINUTELY = "* * * * *"


# One slot ---------------------------------------------------------------------------------------------------------------


def test_a_slot_starts_one_instance_with_all_that_its_class_says(stopped_clock: Any) -> None:
    """SCH-04: derived id, options of the class, trigger, schedule; the next slot is moved on."""
    flow, row = declared(
        Schedule("0 2 * * *", name="nightly", timezone="Europe/Berlin", params={"to": "ada"}),
        priority=2,
        max_duration="1 hour",
        max_concurrency=3,
    )
    fire()
    assert slots(row) == []
    stopped_clock.advance("12 hours")  # 00:00 UTC
    for _ in range(3):
        fire()
    (instance,) = flow.instances()
    assert instance.instance_id == "nightly-20261002T000000Z" == slot_id("nightly", at("2 00:00"))
    assert (instance.scheduled_for, instance.cron, instance.trigger) == (at("2 00:00"), "0 2 * * *", "schedule")
    assert (instance.priority, instance.concurrency_key, instance.params) == (2, "sch-flow", {"to": "ada"})
    assert instance.deadline_at == stopped_clock.now + timedelta(hours=1)
    entry = HistoryEntry.objects.get(instance=instance)
    assert (entry.type, entry.via, entry.actor_name) == ("workflow_queued", "engine", "")
    assert entry.data == {
        "trigger": "schedule",
        "schedule": "nightly",
        "cron": "0 2 * * *",
        "slot": "2026-10-02T00:00:00+00:00",
    }
    row.refresh_from_db()
    assert row.next_slot == row.look_at == at("3 00:00")


def test_an_id_that_is_taken_is_no_error(stopped_clock: Any) -> None:
    """SCH-04: the slot was started by somebody, and is done."""
    flow, row = declared(Schedule("0 2 * * *", name="nightly"))
    flow.create(instance_id=slot_id("nightly", at("2 02:00")))
    stopped_clock.advance("15 hours")
    fire()
    assert flow.instances().count() == 1
    row.refresh_from_db()
    assert (row.next_slot, row.problem) == (at("3 02:00"), "")


def test_a_clock_that_is_set_back_fires_nothing_twice(stopped_clock: Any) -> None:
    """Design 9: ``next_slot`` only moves forward."""
    flow, row = declared(MINUTELY)
    stopped_clock.advance("1 minute")
    fire()
    stopped_clock.go_back("1 hour")
    fire()
    assert flow.instances().count() == 1
    row.refresh_from_db()
    assert row.next_slot == at("1 12:02")


def test_nothing_fires_in_a_transaction_that_is_rolled_back(stopped_clock: Any) -> None:
    """Design 9: instance and ``next_slot`` are one transaction."""
    flow, row = declared(MINUTELY)
    stopped_clock.advance("1 minute")
    with transaction.atomic():
        fire()
        transaction.set_rollback(True)
    assert flow.instances().count() == 0
    fire()
    assert slots(row) == ["1 12:01"]


# Catch-up ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "started", "number"),
    [
        ("latest", ["1 15:00"], 179),
        ("none", ["1 15:00"], 179),
        (2, ["1 14:58", "1 14:59", "1 15:00"], 177),
    ],
)
def test_an_outage_of_three_hours(stopped_clock: Any, catch_up: Any, started: list[str], number: int) -> None:
    """SCH-03: every minute, off for 3 hours: one run by default, the next one in the future, and all others recorded."""
    _, row = declared(Schedule(MINUTELY, catch_up=catch_up))
    stopped_clock.advance("3 hours")
    fire()
    assert slots(row) == started
    ((reason, first, _, count),) = skips(row)
    assert (reason, first, count) == ("catch_up", "1 12:01", number)
    row.refresh_from_db()
    assert row.next_slot is not None and row.next_slot > stopped_clock.now


@pytest.mark.parametrize(
    ("catch_up", "started", "skipped"),
    [
        ("latest", ["5 02:00"], [("catch_up", "2 02:00", "4 02:00", 3)]),
        ("none", [], [("catch_up", "2 02:00", "5 02:00", 4)]),
        (3, ["3 02:00", "4 02:00", "5 02:00"], [("catch_up", "2 02:00", "2 02:00", 1)]),
        (100, ["2 02:00", "3 02:00", "4 02:00", "5 02:00"], []),
    ],
)
def test_an_outage_of_four_days(stopped_clock: Any, catch_up: Any, started: list[str], skipped: list[Any]) -> None:
    """SCH-03: a daily one."""
    _, row = declared(Schedule("0 2 * * *", catch_up=catch_up))
    stopped_clock.advance("4 days")
    fire()
    assert (slots(row), skips(row)) == (started, skipped)


def test_a_slot_that_is_a_minute_late_is_on_time(stopped_clock: Any) -> None:
    """SCH-03: whatever catch_up says."""
    _, row = declared(Schedule("0 2 * * *", catch_up="none"))
    WorkflowSchedule.objects.filter(pk=row.pk).update(next_slot=at("1 02:00"), look_at=at("1 02:00"))
    stopped_clock.go_back(timedelta(hours=9, minutes=59, microseconds=123456))  # 02:01:00
    fire()
    assert slots(row) == ["1 02:00"]


def test_a_late_run_knows_its_slot(workflows: Harness) -> None:
    """SCH-08: the slot and the cron line, and the real time of the start; the same over replays and restart, whatever becomes of the
    schedule."""
    flow, row = declared(Schedule("1 0 * * *", name="report", params={"waits": True}))
    slot = row.upcoming(1)[0] - timedelta(days=1)
    WorkflowSchedule.objects.filter(pk=row.pk).update(next_slot=slot, look_at=slot)
    workflows.advance("1 second")
    (instance,) = flow.instances().filter(scheduled_for=slot)
    assert instance.status == S.WAITING
    WorkflowSchedule.objects.filter(pk=row.pk).update(cron="5 5 * * *")
    instance.send_event("end")
    workflows.run_due()
    instance.refresh_from_db()
    assert (instance.output["slot"], instance.output["cron"]) == (slot, "1 0 * * *")
    assert instance.output["created"] == instance.created
    instance.restart()
    workflows.run_due()
    instance.send_event("end")
    workflows.run_due()
    instance.refresh_from_db()
    assert instance.status == S.COMPLETE
    assert (instance.run_number, instance.output["slot"], instance.output["cron"]) == (2, slot, "1 0 * * *")


# Overlap ----------------------------------------------------------------------------------------------------------------


def minutes(stopped_clock: Any, number: int) -> None:
    for _ in range(number):
        stopped_clock.advance("1 minute")
        fire()


def end(instance: WorkflowInstance) -> None:
    instance.refresh_from_db()
    instance.terminate()


@pytest.mark.parametrize("state", ["queued", "waiting", "paused"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_skip(stopped_clock: Any, state: str, by_hand: bool) -> None:
    """SCH-07: no slot while an earlier instance has not ended, be it started by hand, be it that it waits or is paused; each
    skipped slot is recorded with the reason."""
    flow, row = declared(Schedule(MINUTELY, overlap="skip"))
    if by_hand:
        running = flow.create()
    else:
        minutes(stopped_clock, 1)
        (running,) = flow.instances()
    if state == "paused":
        running.pause()
    elif state == "waiting":
        WorkflowInstance.objects.filter(pk=running.pk).update(status=S.WAITING, wake_at=None)
    first = slots(row)
    minutes(stopped_clock, 3)
    assert slots(row) == first
    ((reason, _, _, number),) = skips(row)
    assert (reason, number) == ("overlap", 3)
    assert running.label in SkippedSlots.objects.get().detail
    end(running)
    minutes(stopped_clock, 1)
    assert len(slots(row)) == len(first) + 1


def test_allow(stopped_clock: Any) -> None:
    """SCH-07: each slot, beside what runs."""
    flow, row = declared(MINUTELY)
    flow.create()
    minutes(stopped_clock, 3)
    assert slots(row) == ["1 12:01", "1 12:02", "1 12:03"]
    assert skips(row) == []


@pytest.mark.parametrize("by_hand", [False, True])
def test_buffer_one(stopped_clock: Any, by_hand: bool) -> None:
    """SCH-07: one slot waits for the end of what runs and starts within a second of it, for its own time; others are recorded."""
    flow, row = declared(Schedule(MINUTELY, overlap="buffer_one"))
    if by_hand:
        running = flow.create()
    else:
        minutes(stopped_clock, 1)
        (running,) = flow.instances()
    first = slots(row)
    minutes(stopped_clock, 3)
    row.refresh_from_db()
    waits = at("1 12:01") if by_hand else at("1 12:02")
    assert (row.buffered_slot, slots(row)) == (waits, first)
    assert row.look_at == stopped_clock.now + timedelta(seconds=1)
    assert [(reason, number) for reason, _, _, number in skips(row)] == [("buffer_full", 2)]
    end(running)
    stopped_clock.advance("1 second")
    fire()
    row.refresh_from_db()
    assert row.buffered_slot is None
    assert slots(row) == [*first, f"{waits:%-d %H:%M}"]
    assert row.look_at == row.next_slot


def test_a_slot_that_is_skipped_again(stopped_clock: Any) -> None:
    """SCH-07, SCH-09: the clock is set back and the schedule edited, so that its next slot is one that was skipped before."""
    flow = define()
    row = added(cron=MINUTELY, overlap="skip")
    flow.create()
    minutes(stopped_clock, 2)
    stopped_clock.go_back("2 minutes")
    row.cron = "0-59 * * * *"
    row.save()
    minutes(stopped_clock, 4)
    row.refresh_from_db()
    assert (row.problem, row.next_slot, slots(row)) == ("", at("1 12:05"), [])
    assert skips(row)[0] == ("overlap", "1 12:01", "1 12:02", 2)
    assert skips(row)[-1][2] == "1 12:04"


def test_a_slot_that_waits_when_the_overlap_is_allowed(stopped_clock: Any) -> None:
    """SCH-07: nothing is left to wait for."""
    flow, row = declared(Schedule(MINUTELY, overlap="buffer_one"))
    flow.create()
    minutes(stopped_clock, 1)
    assert slots(row) == []
    define(Schedule(MINUTELY, overlap="allow"))
    declare("default")
    stopped_clock.advance("1 second")
    fire()
    row.refresh_from_db()
    assert (slots(row), row.buffered_slot, row.look_at) == (["1 12:01"], None, at("1 12:02"))


def test_others_do_not_count(stopped_clock: Any) -> None:
    """SCH-07: instances of another schedule, of another workflow, and children of a parent."""
    flow, row = declared(Schedule(MINUTELY, overlap="skip"), Schedule("0 12 * * *", name="other"))
    other = WorkflowSchedule.objects.get(name="other")
    other.run_now()
    define(name="sch-other").create()
    child = flow.create()
    WorkflowInstance.objects.filter(pk=child.pk).update(trigger="parent")
    minutes(stopped_clock, 1)
    assert slots(row) == ["1 12:01"]


def test_run_now_counts(stopped_clock: Any) -> None:
    """SCH-07: an instance that was started from the schedule by hand is one of its."""
    _, row = declared(Schedule(MINUTELY, overlap="skip"))
    row.run_now()
    minutes(stopped_clock, 1)
    assert slots(row) == []


# Trouble ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"cron": "0 0 30 2 *"}, "never matches"),
        ({"cron": "61 * * * *"}, "bad minute"),
        ({"timezone": "Mars/Olympus"}, "unknown"),
        ({"catch_up": "soon"}, "catch_up must be"),
        ({"name": "not an id"}, "begins the ids"),
    ],
)
def test_a_bad_row_does_not_stop_the_others(
    stopped_clock: Any, caplog: pytest.LogCaptureFixture, wrong: dict[str, str], problem: str
) -> None:
    """SCH-05: put in by SQL; it is told in the row, and it is not looked at again and again."""
    define()
    bad, good = added("bad", cron=MINUTELY), added("good", cron=MINUTELY)
    WorkflowSchedule.objects.filter(pk=bad.pk).update(**wrong)
    with caplog.at_level(logging.CRITICAL, "durableflow.engine"):
        minutes(stopped_clock, 2)
    assert slots(good) == ["1 12:01", "1 12:02"]
    bad.refresh_from_db()
    assert problem in bad.problem
    assert (bad.look_at, bad.upcoming(), slots(bad)) == (None, [], [])


def test_params_that_cannot_be_read(stopped_clock: Any) -> None:
    """SCH-05: told in the row; saving it with others lets it fire again."""
    define()
    row = added(cron=MINUTELY)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {WorkflowSchedule._meta.db_table} SET params = 'no codec'")
    minutes(stopped_clock, 1)
    row.refresh_from_db()
    assert "params cannot be read" in row.problem
    row.params = {"fine": 1}
    row.save()
    minutes(stopped_clock, 1)
    assert slots(row) == ["1 12:02"]


def test_an_unknown_workflow_is_left_to_others(stopped_clock: Any, django_assert_num_queries: Any) -> None:
    """SEC-08: nothing is imported by what is stored; code that knows it fires it, late but for its slot."""
    with registry.isolated():
        define(name="sch-elsewhere")
        row = added(workflow="sch-elsewhere", cron=MINUTELY)
    WorkflowSchedule.objects.filter(pk=row.pk).update(workflow="os.system")
    stopped_clock.advance("1 minute")
    with django_assert_num_queries(1):  # that there is nothing for it
        fire()
    row.refresh_from_db()
    assert (row.problem, row.look_at) == ("", at("1 12:01"))
    WorkflowSchedule.objects.filter(pk=row.pk).update(workflow="sch-elsewhere")
    define(name="sch-elsewhere")
    fire()
    assert slots(row) == ["1 12:01"]


def test_params_that_the_workflow_refuses(stopped_clock: Any) -> None:
    """Design 9: a slot that cannot be started is skipped with what was wrong; the next one is tried."""

    class Picky(Workflow[Any, Any]):
        class Meta:
            name = "sch-flow"
            max_concurrency = 1
            concurrency_key = staticmethod(lambda params: params["key"])

        def run(self, event: Any, step: Any) -> None:
            """Does nothing."""

    row = added(cron=MINUTELY, params={"key": "a"})
    WorkflowSchedule.objects.filter(pk=row.pk).update(params={"other": "a"})
    minutes(stopped_clock, 2)
    assert skips(row) == [("refused", "1 12:01", "1 12:02", 2)]
    assert "KeyError" in SkippedSlots.objects.get().detail
    WorkflowSchedule.objects.filter(pk=row.pk).update(params={"key": "b"})
    minutes(stopped_clock, 1)
    assert slots(row) == ["1 12:03"]


def test_old_skips_are_forgotten(stopped_clock: Any) -> None:
    """Design 9: what is recorded does not grow for ever."""
    flow, row = declared(Schedule("0 2 * * *", overlap="skip"))
    running = flow.create()
    stopped_clock.advance("15 hours")
    fire()
    end(running)
    stopped_clock.advance("1 day")
    fire()
    assert len(skips(row)) == 1
    flow.instances().delete()
    stopped_clock.advance("100 days")
    fire()
    assert [reason for reason, *_ in skips(row)] == ["catch_up"]
