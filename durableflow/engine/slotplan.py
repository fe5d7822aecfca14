"""Which slots of a schedule are due, and which of them are not made up for (design 9 "Schedules", cases SCH-03, SCH-08)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from durableflow.core.cron import count_slots, last_slots, next_slot, slots_between
from durableflow.core.schedules import LATEST, NONE, check_catch_up

ON_TIME: Final = timedelta(seconds=60)
"""A slot that is found later than that was missed: nobody was there at its time."""
_BEFORE: Final = timedelta(seconds=1)
ON_TIME_AT_MOST: Final = 2
"""Slots are whole minutes."""


@dataclass(frozen=True)
class Run:
    """Slots in a row: the first, the last, how many."""

    first: datetime
    last: datetime
    number: int


@dataclass(frozen=True)
class Plan:
    """What a look at a schedule finds. ``start``: slots to start, in their order. ``left``: missed ones that are not made up
    for. ``next_slot``: the first one after now."""

    start: list[datetime]
    left: Run | None
    next_slot: datetime


def plan(cron: str, zone: str, catch_up: str, following: datetime | None, now: datetime) -> Plan:
    """The slots from ``following`` on that are due at ``now``. Slots on time are always to start; of those that were missed as
    many as ``catch_up`` says, the newest: "latest" means one, unless a slot on time takes its place.

    ``following=None``: nobody knows what was due, so that nothing is. ``next_slot`` never goes back, also where the clock does.
    Raises ValueError for a bad line, zone or ``catch_up``.
    """
    if following is not None and following > now:
        return Plan([], None, following)
    after = next_slot(cron, zone, now)
    if following is None:
        return Plan([], None, after)
    begin, edge = following - _BEFORE, now - ON_TIME - timedelta.resolution
    on_time = slots_between(cron, zone, max(begin, edge), now, limit=ON_TIME_AT_MOST)
    made_up = last_slots(cron, zone, begin, edge, limit=_wanted(catch_up, bool(on_time))) if begin < edge else []
    return Plan(made_up + on_time, _left(cron, zone, begin, made_up[0] - _BEFORE if made_up else edge), after)


def _wanted(catch_up: str, on_time: bool) -> int:
    asked = check_catch_up(catch_up)
    if asked == NONE:
        return 0
    return int(not on_time) if asked == LATEST else int(asked)


def _left(cron: str, zone: str, begin: datetime, end: datetime) -> Run | None:
    number = count_slots(cron, zone, begin, end) if begin < end else 0
    if not number:
        return None
    (last,) = last_slots(cron, zone, begin, end, limit=1)
    return Run(next_slot(cron, zone, begin), last, number)
