"""Schedules heal by themselves when a database's clock that was far ahead is right again (cases SCH-03, SCH-04, SCH-09)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from durableflow import Schedule, drain
from durableflow.core import clock, registry
from durableflow.core.cron import slots_between
from durableflow.engine import chores, replanning
from durableflow.models import WorkflowInstance, WorkflowSchedule
from durableflow.operations import regular
from tests.integration.conftest import StoppedClock
from tests.integration.sch_flows import added, at, declared, define, fire, skips, slots
from tests.integration.test_sch_every_slot import _skipped as skipped
from tests.integration.test_sch_every_slot import _started as scheduled
from tests.support.concurrency import held

pytestmark = pytest.mark.django_db(transaction=True)
HOURLY = "0 * * * *"
YEARS = timedelta(days=3650)


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="durableflow.engine")


def alone(*given: Schedule | str, **meta: Any) -> tuple[Any, WorkflowSchedule]:
    """A workflow with these schedules, and no other rows."""
    flow, row = declared(*given, **meta)
    WorkflowSchedule._base_manager.exclude(workflow=row.workflow).delete()
    return flow, row


def jump(stopped: StoppedClock, by: timedelta = YEARS) -> None:
    """The clock is ahead for one look, and right again."""
    stopped.advance(by)
    fire()
    stopped.go_back(by)


def heal() -> None:
    assert replanning.one_batch("default") is False


@pytest.mark.parametrize("catch_up", ["latest", "none", 5])
def test_a_clock_that_was_ten_years_ahead(
    stopped_clock: StoppedClock, caplog: pytest.LogCaptureFixture, catch_up: Any
) -> None:
    """The slots from now on come in their time; what was recorded of them is taken back, and it is said once."""
    _, row = alone(Schedule(HOURLY, catch_up=catch_up, name="hourly"))
    jump(stopped_clock)
    early = slots(row)
    row.refresh_from_db()
    assert row.next_slot is not None and row.next_slot > stopped_clock.now + YEARS
    heal()
    row.refresh_from_db()
    assert (row.next_slot, row.look_at, row.problem) == (at("1 13:00"), at("1 13:00"), "")
    assert skips(row) == []
    (said,) = caplog.messages
    assert "sch-flow: hourly" in said and "2036" in said and "2026-10-01 13:00" in said
    heal()
    assert len(caplog.messages) == 1
    stopped_clock.advance("1 hour")
    fire()
    assert sorted(slots(row)) == sorted([*early, "1 13:00"])


def test_what_was_really_missed_stays_recorded(stopped_clock: StoppedClock) -> None:
    """The clusters were off for three hours when the clock jumped, and nobody looked for two hours after it was right again."""
    _, row = alone(Schedule(HOURLY, catch_up="none"))
    stopped_clock.advance("3 hours")
    jump(stopped_clock, YEARS + timedelta(minutes=30))  # no slot is on time
    stopped_clock.advance("2 hours")  # 17:00
    heal()
    assert skips(row) == [("catch_up", "1 13:00", "1 17:00", 5)]
    row.refresh_from_db()
    assert row.next_slot == at("1 18:00")
    stopped_clock.advance("4 hours")
    fire()
    assert slots(row) == ["1 21:00"]
    assert skips(row) == [("catch_up", "1 13:00", "1 20:00", 8)]


def test_no_slot_starts_twice(stopped_clock: StoppedClock) -> None:
    """SCH-04: the last slot before the wrong moment was started then; when it comes it starts nothing, and the others do."""
    _, row = alone(Schedule("0 2 * * *"))
    jump(stopped_clock, timedelta(days=5))
    assert slots(row) == ["6 02:00"]
    heal()
    for _ in range(6):
        stopped_clock.advance("1 day")
        fire()
    assert slots(row) == ["2 02:00", "3 02:00", "4 02:00", "5 02:00", "6 02:00", "7 02:00"]
    assert skips(row) == []


@settings(deadline=None, max_examples=40)
@given(
    cron=st.sampled_from([HOURLY, "30 2,14 * * *", "0 0 * * MON"]),
    catch_up=st.sampled_from(["latest", "none", 3]),
    happens=st.lists(
        st.tuples(st.integers(0, 40), st.one_of(st.just(0), st.integers(2, 80)), st.booleans()), min_size=1, max_size=8
    ),
)
def test_each_slot_is_accounted_for_once(cron: str, catch_up: Any, happens: list[tuple[int, int, bool]]) -> None:
    """Hours pass, the clock is ahead for some days and is put right, with and without looks: in the end each slot until now was
    started once, or is recorded. Only one that was started too early may be both."""
    with registry.isolated(), clock.stop(datetime(2026, 10, 1, 12, 7, tzinfo=UTC)), transaction.atomic():
        stopped = StoppedClock()
        begin = stopped.now
        _, row = alone(Schedule(cron, catch_up=catch_up))
        early: set[datetime] = set()
        for hours, days, looks in happens:
            stopped.advance(timedelta(hours=hours))
            if looks:
                fire()
            if days:
                jump(stopped, timedelta(days=days))
                early |= {slot for slot in scheduled(row) if slot > stopped.now}
                heal()
        heal()
        fire()
        row.refresh_from_db()
        expected = slots_between(cron, "UTC", begin, stopped.now, limit=10_000)
        started = {slot for slot in scheduled(row) if slot <= stopped.now}
        recorded = [slot for slot in skipped(row) if slot <= stopped.now]
        assert sorted(started.union(recorded)) == expected
        assert started.intersection(recorded) <= early
        for found in (recorded, scheduled(row)):
            assert len(set(found)) == len(found)
        transaction.set_rollback(True)


def test_a_clock_that_was_some_hours_ahead(stopped_clock: StoppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """Design 9: what was started or recorded then does not come again; it is over by itself in a day."""
    _, row = alone(HOURLY)
    _, weekly = define("0 14 * * THU", name="sch-weekly"), added("weekly", cron="0 14 * * THU")
    jump(stopped_clock, timedelta(hours=23))
    found = skips(row)
    heal()
    for one, expected in ((row, at("2 12:00")), (weekly, at("8 14:00"))):
        one.refresh_from_db()
        assert one.next_slot == expected
    assert (skips(row), caplog.messages) == (found, [])


def test_a_clock_that_is_behind_starts_nothing_again(
    stopped_clock: StoppedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Slots were started in their time, and their instances are deleted: now a clock that is three days back must not start them
    again. It is told."""
    _, row = alone(Schedule(HOURLY, name="hourly", catch_up="none"))
    for _ in range(72):
        stopped_clock.advance("1 hour")
        fire()
    WorkflowInstance.objects.all().delete()
    row.refresh_from_db()
    planned = row.next_slot
    stopped_clock.go_back("3 days")
    heal()
    stopped_clock.advance("2 hours")
    fire()
    row.refresh_from_db()
    assert (slots(row), row.next_slot) == ([], planned)
    (said,) = caplog.messages
    assert (
        said.startswith("Schedules (1, among them sch-flow: hourly) look past slots") and "paused and resumed" in said
    )


def test_made_while_the_clock_was_ahead(stopped_clock: StoppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing says that its slots have not been started: it is told, and a pause and a resume cure it."""
    define(HOURLY)
    stopped_clock.advance(YEARS)
    row = added(cron=HOURLY)
    stopped_clock.go_back(YEARS)
    heal()
    assert len(caplog.messages) == 1 and "paused and resumed" in caplog.text
    row.pause()
    row.resume()
    heal()
    assert len(caplog.messages) == 1
    row.refresh_from_db()
    assert row.next_slot == at("1 13:00")


@pytest.mark.parametrize("state", ["paused", "broken", "yearly", "bad line"])
def test_rows_that_are_right(stopped_clock: StoppedClock, caplog: pytest.LogCaptureFixture, state: str) -> None:
    """Those that nobody looks at, those whose next slot is a year ahead, and one that was changed by SQL."""
    _, row = alone("0 0 1 9 *" if state == "yearly" else HOURLY)
    if state == "yearly":
        assert row.next_slot is not None and row.next_slot.year == 2027
    elif state == "paused":
        jump(stopped_clock)
        row.pause()
    elif state == "broken":
        jump(stopped_clock)
        WorkflowSchedule.objects.update(problem="no", look_at=None)
    else:
        jump(stopped_clock)
        WorkflowSchedule.objects.update(cron="no")
    before = WorkflowSchedule.objects.values().get(pk=row.pk)
    heal()
    assert WorkflowSchedule.objects.values().get(pk=row.pk) == before
    assert caplog.messages == []


def test_a_slot_that_waits_is_looked_at_again(stopped_clock: StoppedClock) -> None:
    """SCH-07: it waits for the end of an instance, not for ten years; the row's next slot is healed with it."""
    flow, row = alone(Schedule(HOURLY, overlap="buffer_one"))
    earlier = flow.create()
    stopped_clock.advance("1 hour")
    fire()
    jump(stopped_clock)
    heal()
    row.refresh_from_db()
    assert (row.buffered_slot, row.next_slot, row.look_at) == (at("1 13:00"), at("1 14:00"), stopped_clock.now)
    earlier.terminate()
    fire()
    assert slots(row) == ["1 13:00"]


def test_a_slot_that_waits_where_no_other_has_passed(stopped_clock: StoppedClock) -> None:
    """SCH-07: a monthly line; the clock was a week ahead."""
    flow, row = alone(Schedule("0 13 1 * *", overlap="buffer_one"))
    earlier = flow.create()
    stopped_clock.advance("1 hour")
    fire()
    jump(stopped_clock, timedelta(days=7))
    planned = WorkflowSchedule.objects.get().next_slot
    earlier.terminate()
    heal()
    row.refresh_from_db()
    assert (row.next_slot, row.look_at) == (planned, stopped_clock.now)
    fire()
    assert slots(row) == ["1 13:00"]


def test_a_slot_of_the_wrong_time_waits_no_longer(stopped_clock: StoppedClock) -> None:
    """SCH-07: it comes again when its time has come."""
    flow, row = alone(Schedule("0 2 * * *", overlap="buffer_one", catch_up="latest"))
    earlier = flow.create()
    jump(stopped_clock, timedelta(days=5))
    row.refresh_from_db()
    assert row.buffered_slot == at("6 02:00")
    heal()
    row.refresh_from_db()
    assert (row.buffered_slot, row.next_slot, row.look_at) == (None, at("2 02:00"), at("2 02:00"))
    earlier.terminate()
    for _ in range(6):
        stopped_clock.advance("1 day")
        fire()
        flow.instances().active().get().terminate()
    assert slots(row) == [f"{day} 02:00" for day in range(2, 8)]


def test_somebody_who_holds_the_row(stopped_clock: StoppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """The next pass gets it."""
    _, row = alone(HOURLY)
    jump(stopped_clock)
    if connection.vendor == "postgresql":  # SQLite has no row locks
        with held(row):
            heal()
        row.refresh_from_db()
        assert row.next_slot is not None and row.next_slot.year == 2036
        assert caplog.messages == []
    heal()
    row.refresh_from_db()
    assert row.next_slot == at("1 13:00")


def test_a_drain_heals(stopped_clock: StoppedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a chore: an idle drain does it soon after the clock is right again, since its own row is as far ahead."""
    monkeypatch.setattr(chores, "_silent", False)
    monkeypatch.setattr(chores, "_chores", {})
    monkeypatch.setattr(chores, "_known", {})
    regular.connect()
    _, row = alone(Schedule(HOURLY, catch_up="none"))
    drain()
    stopped_clock.advance(YEARS)
    chores._known.clear()
    drain()
    stopped_clock.go_back(YEARS)
    chores._known.clear()
    drain()
    row.refresh_from_db()
    assert row.next_slot == at("1 13:00")
