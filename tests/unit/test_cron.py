"""Cron lines by local time (cases SCH-01, SCH-02, SCH-05)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durableflow.core.cron import (
    MAX_CRON,
    check_cron,
    check_zone,
    count_slots,
    last_slots,
    next_slot,
    slots_between,
)

BERLIN = "Europe/Berlin"


def local(cron: str, zone: str, start: str, end: str) -> list[str]:
    """The slots between two local moments (the last one included), as local time with its offset."""
    where = ZoneInfo(zone)
    after, until = (datetime.fromisoformat(text).replace(tzinfo=where) for text in (start, end))
    return [f"{slot.astimezone(where):%d %H:%M %z}" for slot in slots_between(cron, zone, after, until, limit=1000)]


def test_a_daily_job_in_the_gap_fires_at_its_end() -> None:
    """SCH-01: once per local day, in the gap at the first valid moment."""
    assert local("30 2 * * *", BERLIN, "2027-03-27", "2027-03-30") == [
        "27 02:30 +0100",
        "28 03:00 +0200",
        "29 02:30 +0200",
    ]


def test_a_daily_job_in_the_repeated_hour_fires_once() -> None:
    """SCH-01: once per local day, in the repeat at its first time; also for who asks in the middle of it."""
    assert local("30 2 * * *", BERLIN, "2027-10-30", "2027-11-02") == [
        "30 02:30 +0200",
        "31 02:30 +0200",
        "01 02:30 +0100",
    ]
    second = datetime(2027, 10, 31, 1, 10, tzinfo=UTC)  # 02:10, the second time
    assert next_slot("30 2 * * *", BERLIN, second) == datetime(2027, 11, 1, 1, 30, tzinfo=UTC)


def test_several_times_in_one_gap_are_one_slot() -> None:
    """SCH-01: all of them would be at its end."""
    assert local("0,30 2 * * *", BERLIN, "2027-03-28", "2027-03-28T23:00") == ["28 03:00 +0200"]
    assert local("0 2,3 * * *", BERLIN, "2027-03-28", "2027-03-28T23:00") == ["28 03:00 +0200"]


def test_a_weekly_job_after_the_change() -> None:
    """SCH-01: on the Monday after, at 08:00 local, with no 07:00 extra."""
    assert local("0 8 * * 1", BERLIN, "2027-03-27", "2027-03-30") == ["29 08:00 +0200"]
    assert local("0 8 * * 1", BERLIN, "2027-10-30", "2027-11-02") == ["01 08:00 +0100"]


@pytest.mark.parametrize("line", ["*/30 * * * *", "0,30 * * * *", "0,30 0-23 * * *"])
def test_a_half_hour_job_follows_real_time(line: str) -> None:
    """SCH-01: across both nights, however it is written."""
    for night in (datetime(2027, 3, 27, 22, tzinfo=UTC), datetime(2027, 10, 30, 22, tzinfo=UTC)):
        slots = slots_between(line, BERLIN, night, night + timedelta(hours=6), limit=100)
        assert len(slots) == 12
        assert {second - first for first, second in pairwise(slots)} == {timedelta(minutes=30)}


@pytest.mark.parametrize(
    ("zone", "day", "slot"),
    [("America/Santiago", "2027-09-05", "05 01:00 -0300"), ("Africa/Cairo", "2027-04-30", "30 01:00 +0300")],
)
def test_a_day_without_midnight(zone: str, day: str, slot: str) -> None:
    """SCH-01: its first moment stands for it, and every day has one."""
    start = datetime.fromisoformat(day) - timedelta(days=2)
    found = local("0 0 * * *", zone, f"{start:%Y-%m-%d}T12:00", f"{start + timedelta(days=4):%Y-%m-%d}T12:00")
    assert len(found) == 4
    assert slot in found


def test_half_an_hour_of_summer() -> None:
    """SCH-01: Lord Howe sets its clock by thirty minutes; every even hour is met."""
    start, end = "2027-04-03T21:00", "2027-04-04T05:00"
    hours = ["03 22:00 +1100", "04 00:00 +1100", "04 02:00 +1030", "04 04:00 +1030"]
    assert local("0 */2 * * *", "Australia/Lord_Howe", start, end) == hours


def test_the_zone_counts() -> None:
    """SCH-02: 09:00 in New York is 14:00 UTC in January and 13:00 in July."""
    for month, hour in ((1, 14), (7, 13)):
        after = datetime(2027, month, 10, tzinfo=UTC)
        assert next_slot("0 9 * * *", "America/New_York", after) == datetime(2027, month, 10, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    "zone",
    ["Europe/Atlantis", "", "../etc/passwd", "Europe", "europe/berlin", "GMT+25", "a\0b", "localtime", "Factory"],
)
def test_unknown_zones(zone: str) -> None:
    """SCH-02: refused with its name."""
    with pytest.raises(ValueError, match="is unknown"):
        check_zone(zone)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("0 0 30 2 *", "never matches"),
        ("0 0 31 4,6 *", "never matches"),
        ("0 0 LW * */7", "never matches"),
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("0 * * * * *", "6 fields"),
        ("@foo", "1 field\\."),
        ("@daily", "1 field\\."),
        ("61 * * * *", "bad minute: '61'"),
        ("* 24 * * *", "bad hour: '24'"),
        ("* * 0 * *", "bad day of the month: '0'"),
        ("* * * 13 *", "bad month: '13'"),
        ("* * * * FRI-MON", "bad day of the week: 'FRI-MON'"),
        ("*/0 * * * *", "bad minute"),
        ("٣ * * * *", "bad minute"),
        ("-1 * * * *", "bad minute"),
        ("1,,2 * * * *", "bad minute"),
        (" ".join(["*"] * 4 + ["1," * 200 + "1"]), "characters"),
    ],
)
def test_lines_that_are_refused(line: str, why: str) -> None:
    """SCH-05: with a reason, in under a second of processor time."""
    began = time.process_time()
    with pytest.raises(ValueError, match=why):
        check_cron(line)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("line", [None, 5, b"* * * * *"])
def test_no_text(line: object) -> None:
    """SCH-05."""
    with pytest.raises(ValueError, match="must be a text"):
        check_cron(line)


def test_what_is_allowed() -> None:
    """Reference 13: names in any case, lists, ranges, steps, the last day; superfluous blanks are dropped."""
    assert check_cron("  */15  8-18 * jan-MAR,12 mon-fri ") == "*/15 8-18 * jan-MAR,12 mon-fri"
    assert local("0 0 29 2 *", "UTC", "2026-01-01", "2033-01-01") == ["29 00:00 +0000"] * 2
    assert local("0 12 L * *", "UTC", "2027-02-01", "2027-03-01") == ["28 12:00 +0000"]
    assert local("0 9 * * 7", "UTC", "2027-02-01", "2027-02-08") == local(
        "0 9 * * SUN", "UTC", "2027-02-01", "2027-02-08"
    )
    assert len(check_cron("0 0 * * " + ",".join(["1"] * 124))) == MAX_CRON - 1


def test_strictly_after() -> None:
    """Reference 13: a slot is never its own successor."""
    at = datetime(2027, 1, 1, 9, tzinfo=UTC)
    assert next_slot("0 9 * * *", "UTC", at) == at + timedelta(days=1)
    assert next_slot("0 9 * * *", "UTC", at - timedelta(microseconds=1)) == at


def test_half_a_million_slots_are_cheap() -> None:
    """SCH-03: a year's outage of an every-minute line is counted in under a second of processor time."""
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    began = time.process_time()
    assert count_slots("* * * * *", BERLIN, start, end) == 365 * 24 * 60
    assert last_slots("* * * * *", BERLIN, start, end, limit=2) == [end - timedelta(minutes=1), end]
    assert time.process_time() - began < 1


LINES = [
    "*/30 * * * *",
    "30 2 * * *",
    "0 0 * * *",
    "0,30 1-3 * * 0",
    "15 */2 * * *",
    "* 2 * * *",
    "0 12 L * *",
    "5 4 * * 1",
]
ZONES = [
    BERLIN,
    "America/Santiago",
    "Africa/Cairo",
    "Australia/Lord_Howe",
    "America/Havana",
    "Africa/Casablanca",
    "UTC",
]


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(LINES),
    st.sampled_from(ZONES),
    st.datetimes(datetime(2024, 1, 1), datetime(2026, 12, 1), timezones=st.just(UTC)),
    st.timedeltas(timedelta(0), timedelta(days=60)),
    st.integers(1, 5),
)
def test_all_answers_agree(line: str, zone: str, after: datetime, length: timedelta, number: int) -> None:
    """SCH-01, SCH-03: slots rise strictly, counting is looking at each, and the last ones are the last ones."""
    until = after + length
    slots = slots_between(line, zone, after, until, limit=100_000)
    assert all(first < second for first, second in pairwise([after, *slots]))
    assert count_slots(line, zone, after, until) == len(slots)
    assert last_slots(line, zone, after, until, limit=number) == slots[-number:]


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(ZONES), st.datetimes(datetime(2024, 1, 1), datetime(2026, 12, 1), timezones=st.just(UTC)))
def test_real_time_is_every_minute_that_fits(zone: str, after: datetime) -> None:
    """SCH-01: minute by minute over three days, no slot more and none less."""
    until, where = after + timedelta(days=3), ZoneInfo(zone)
    minute = after.replace(second=0, microsecond=0)
    fitting = []
    while (minute := minute + timedelta(minutes=1)) <= until:
        shown = minute.astimezone(where)
        if shown.minute % 20 == 0 and shown.hour in range(0, 24, 3):
            fitting.append(minute)
    assert slots_between("*/20 */3 * * *", zone, after, until, limit=1000) == fitting


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(ZONES), st.datetimes(datetime(2024, 1, 1), datetime(2026, 12, 1), timezones=st.just(UTC)))
def test_a_time_of_day_is_once_per_local_day(zone: str, after: datetime) -> None:
    """SCH-01: whatever the clock does in that zone."""
    where = ZoneInfo(zone)
    slots = slots_between("30 2 * * *", zone, after, after + timedelta(days=30), limit=100)
    days = [slot.astimezone(where).date() for slot in slots]
    assert all(second - first == timedelta(days=1) for first, second in pairwise(days))


@settings(deadline=None, max_examples=300)
@given(st.text("0123456789*/,-#LW AFRIMON", max_size=30))
def test_whatever_is_typed(line: str) -> None:
    """SCH-05: it is a line that fires, or a ValueError."""
    try:
        checked = check_cron(line)
    except ValueError:
        return
    assert next_slot(checked, BERLIN, datetime(2026, 1, 1, tzinfo=UTC)) > datetime(2026, 1, 1, tzinfo=UTC)
