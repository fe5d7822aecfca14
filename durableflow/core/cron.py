"""Cron lines: five fields, read as the local time of a zone (design 9; cases SCH-01, SCH-02, SCH-05).

cronsim reads a line and finds the next reading of a wall clock that fits it; what a wall clock does where it is set forward or
back is decided here:

- A line that names minutes and hours means a time of day, and fires once per local day that it names: where that time is
  skipped, at the first moment after the gap; where it comes twice, at the first.
- A line that leaves the minute or the hour open (the field begins with ``*``, or the hour field means all 24) means an interval
  and follows real time: what is skipped is skipped, and what comes twice fires twice.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final, cast
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field

MAX_CRON: Final = 256
"""Characters of a cron line."""
_FIELDS: Final = (
    (Field.MINUTE, "minute", "0 to 59"),
    (Field.HOUR, "hour", "0 to 23"),
    (Field.DAY, "day of the month", "1 to 31, L (the last day)"),
    (Field.MONTH, "month", "1 to 12, JAN to DEC"),
    (Field.DOW, "day of the week", "0 to 7 (0 and 7 are Sunday), SUN to SAT"),
)
_FORM: Final = "five fields: minute, hour, day of the month, month, day of the week, as in '30 2 * * MON-FRI'"
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_TRANSITIONS_APART: Final = timedelta(hours=12)
"""No zone sets its clock twice within that."""
_FIRST_WINDOW: Final = timedelta(hours=1)


def check_cron(line: object) -> str:
    """The line itself, with one space between its fields. Raises ValueError that says what is wrong with it: not five fields,
    a field that cannot be read, or a line that never matches (case SCH-05)."""
    if not isinstance(line, str):
        raise ValueError(f"cron must be a text of {_FORM}, not {line!r}.")
    if len(line) > MAX_CRON:
        raise ValueError(f"cron has {len(line)} characters; at most {MAX_CRON} are allowed.")
    _line(text := " ".join(line.split()))
    return text


def check_zone(name: object) -> str:
    """The name itself. Raises ValueError unless it is a time zone of the IANA database, as ``zoneinfo`` knows it."""
    if not isinstance(name, str):
        raise ValueError(f"timezone must be the name of a time zone, as 'Europe/Berlin', not {name!r}.")
    _zone(name)
    return name


def next_slot(cron: str, zone: str, after: datetime) -> datetime:
    """The first moment after ``after`` (strictly; an aware datetime) that the line means in the zone, in UTC.

    Raises ValueError for a bad line or zone, also for a line that has nothing left before the year 9999.
    """
    line, where, start = _line(cron), _zone(zone), after.astimezone(UTC)
    found = line.of_day(where, start) if line.means_times else line.in_real_time(where, start)
    if found is None:
        raise ValueError(f"The cron line {cron!r} does not match after {after:%Y-%m-%d}.")
    return found


def slots_between(cron: str, zone: str, after: datetime, until: datetime, *, limit: int) -> list[datetime]:
    """The slots after ``after`` up to and including ``until``: the first ``limit`` of them. Raises ValueError."""
    return list(_slots(cron, zone, after, until, limit))


def last_slots(cron: str, zone: str, after: datetime, until: datetime, *, limit: int) -> list[datetime]:
    """The same, but the last ``limit`` of them, in their order; quick also where there are half a million."""
    if limit <= 0:
        return []
    window = _FIRST_WINDOW
    while True:
        start = max(after, until - window)
        # All of the window are wanted: its last ones are the last of all.
        found = list(_slots(cron, zone, start, until, None))
        if start == after or len(found) >= limit:
            return found[-limit:]
        window *= 2


def count_slots(cron: str, zone: str, after: datetime, until: datetime) -> int:
    """How many slots there are after ``after`` up to and including ``until``. Days on which the clock is not set are counted
    without looking at their slots. Raises ValueError."""
    line, where = _line(cron), _zone(zone)
    day, last = after.astimezone(where).date() + _DAY, until.astimezone(where).date()
    if day >= last:
        return _count(cron, zone, after, until)
    # Slots are whole minutes: a second before midnight is between those of two days.
    begin, end = _start_of(day, where) - _SECOND, _start_of(last, where) - _SECOND
    number = _count(cron, zone, after, begin) + _count(cron, zone, end, until)
    while day < last:
        if not _even(day, where):
            number += _count(cron, zone, _start_of(day, where) - _SECOND, _start_of(day + _DAY, where) - _SECOND)
        elif line.matches(day):
            number += line.slots_a_day
        day += _DAY
    return number


def _count(cron: str, zone: str, after: datetime, until: datetime) -> int:
    return sum(1 for _ in _slots(cron, zone, after, until, None))


def _slots(cron: str, zone: str, after: datetime, until: datetime, limit: int | None) -> Iterator[datetime]:
    number, at = 0, after
    while limit is None or number < limit:
        at = next_slot(cron, zone, at)
        if at > until:
            return
        number += 1
        yield at


class _Line:
    """A line that was read. Wall clock readings are naive datetimes."""

    def __init__(self, text: str) -> None:
        self._sim = _read(text)
        minute, hour = text.split()[:2]
        hours = self._sim.hours
        self.slots_a_day = len(self._sim.minutes) * len(hours)
        self.means_times = not (minute.startswith("*") or hour.startswith("*") or len(hours) == 24)

    def matches(self, day: date) -> bool:
        """Whether the line has slots on this day."""
        return day.month in self._sim.months and self._sim.match_day(day)

    def reading(self, after: datetime) -> datetime | None:
        """The first reading after ``after`` that fits, in a world whose clocks are never set."""
        sim = copy.copy(self._sim)
        sim.dt = after.replace(microsecond=0)
        try:
            return next(sim, None)
        except (ValueError, OverflowError):  # the year 10,000
            return None

    def of_day(self, where: tzinfo, after: datetime) -> datetime | None:
        """The next slot of a line that names times of day."""
        reading = after.astimezone(where).replace(tzinfo=None)
        while (found := self.reading(reading)) is not None:
            slot = _moment(found, where)
            if slot > after:
                return slot
            reading = found
        return None

    def in_real_time(self, where: tzinfo, after: datetime) -> datetime | None:
        """The next slot of a line that follows real time: between two changes of the clock, wall and real time are the same."""
        start = after
        while True:
            offset = _offset(start, where)
            found = self.reading((start + offset).replace(tzinfo=None))
            if found is None:
                return None
            slot = found.replace(tzinfo=UTC) - offset
            change = _change(start, slot, where)
            if change is None:
                return slot
            # Go on at the change itself, by the clock as it is then.
            offset = _offset(change, where)
            found = self.reading((change + offset).replace(tzinfo=None) - _SECOND)
            if found is None:
                return None
            slot = found.replace(tzinfo=UTC) - offset
            if _change(change, slot, where) is None:
                return slot
            start = change


@lru_cache(maxsize=1024)
def _line(text: str) -> _Line:
    line = _Line(text)
    if line.reading(datetime(2000, 1, 1)) is None:
        raise ValueError(f"The cron line {text!r} never matches: its days do not exist.")
    return line


def _read(text: str) -> CronSim:
    parts = text.upper().split()
    if len(parts) != len(_FIELDS):
        raise ValueError(
            f"The cron line {text!r} has {len(parts)} field{'s' if len(parts) != 1 else ''}. It needs {_FORM}."
        )
    for part, (field, name, allowed) in zip(parts, _FIELDS, strict=True):
        try:
            field.parse(part)
        except (CronSimError, AssertionError, ValueError) as error:
            raise ValueError(
                f"The cron line {text!r} has a bad {name}: {part!r}. Allowed are {allowed}, *, lists (1,2), ranges that go "
                "upwards (1-5) and steps (*/2)."
            ) from error
    try:
        return CronSim(" ".join(parts), datetime(2000, 1, 1))
    except CronSimError as error:  # each field is right by itself
        raise ValueError(f"The cron line {text!r} never matches: no month that it names has such a day.") from error


NO_PLACES: Final = frozenset({"localtime", "Factory", "posixrules"})
"""Names of the system's files that are no zones: what is local differs from machine to machine."""


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones()) - NO_PLACES


def known_zones() -> list[str]:
    """The names that a schedule may have as its zone, in order."""
    return sorted({"UTC", *_zones()})


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    if name not in _zones():
        _zones.cache_clear()  # the system's time zones may have been brought up to date
        if name not in _zones():
            hint = "" if _zones() else " This system has no time zones: install the package tzdata."
            raise ValueError(f"The time zone {name!r} is unknown. Give a name as 'Europe/Berlin'.{hint}")
    return ZoneInfo(name)


def _offset(moment: datetime, where: tzinfo) -> timedelta:
    return cast(timedelta, moment.astimezone(where).utcoffset())


def _moment(reading: datetime, where: tzinfo) -> datetime:
    """When a clock of the zone shows this for the first time; the end of the gap where it never does."""
    local = reading.replace(tzinfo=where)
    moment = local.astimezone(UTC)
    if moment.astimezone(where).replace(tzinfo=None) == reading:
        return moment
    # In a gap: by the offset after the change it would lie before it, by the one before the change behind it.
    end = _change(local.replace(fold=1).astimezone(UTC), moment, where)
    return moment if end is None else end


def _change(after: datetime, until: datetime, where: tzinfo) -> datetime | None:
    """The first moment after ``after`` up to ``until`` at which the zone's clock is set, to the second."""
    start, offset = after, _offset(after, where)
    while start < until:
        end = min(start + _TRANSITIONS_APART, until)
        if _offset(end, where) != offset:
            break
        start = end
    else:
        return None
    start = start.replace(microsecond=0)
    while end - start > _SECOND:
        middle = start + timedelta(seconds=int((end - start).total_seconds()) // 2)
        if _offset(middle, where) == offset:
            start = middle
        else:
            end = middle
    return end.replace(microsecond=0)


def _start_of(day: date, where: tzinfo) -> datetime:
    return _moment(datetime.combine(day, time()), where)


def _even(day: date, where: tzinfo) -> bool:
    """Whether no clock is set on this day or at one of its ends."""
    noon = datetime.combine(day, time(12), where)
    return (noon - _DAY).utcoffset() == (noon + _DAY).utcoffset()


__all__ = ["MAX_CRON", "check_cron", "check_zone", "count_slots", "last_slots", "next_slot", "slots_between"]
