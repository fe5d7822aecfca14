"""Regular work of the engine's own, which no instance asks for (design 9, "purge").

A chore does one bounded batch at a time. Whoever moves its row's ``due_at`` forward does the batch, so that one process of all
does it; a process that dies in the middle leaves the rest to the next one, after ``GUARD``. A drain does chores when nothing
else is due, and now and then between two executions, so that a busy one does not put them off for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.db import Error

from durableflow.core import clock
from durableflow.core.outages import passes
from durableflow.engine.sql import is_postgres, moment, run
from durableflow.models import Chore

logger = logging.getLogger("durableflow.engine")

GUARD: Final = timedelta(minutes=5)
"""How long a batch is left to the process that has begun it, and how long a chore that has failed rests."""
AGAIN: Final = timedelta(seconds=1)
"""Until the next batch, while more is left: what is due for instances goes first."""
LOOK_EVERY: Final = 30.0
"""Seconds between two looks of a process into the table while the next moment it knows of has not come."""
IDLE_LOOK_EVERY: Final = 1.0
"""The same for a drain that has nothing to do: some other process may know better, and has asked for it."""

_TABLE: Final = Chore._meta.db_table


@dataclass(frozen=True)
class Regular:
    """``run(using)`` does one bounded batch, and says whether more is left. ``every``: from the end of one pass to the next."""

    name: str
    every: timedelta
    run: Callable[[str], bool]


@dataclass
class _Known:
    """What this process knows of a database: when it has looked, and when the first chore is due, by its monotonic clock."""

    looked: float = float("-inf")
    due: float = float("-inf")


_chores: dict[str, Regular] = {}
_known: dict[str, _Known] = {}
_lock = threading.Lock()
_silent = False


def register(name: str, every: timedelta, run: Callable[[str], bool]) -> None:
    """Make a chore known; again under the same name, it takes the other's place. Called when the app is ready; no query."""
    _chores[name] = Regular(name, every, run)
    _known.clear()


def silence() -> None:
    """This process, and what it forks, does no chores from now on (tests: they would come in between at any time)."""
    global _silent
    _silent = True


def seconds_left(using: str) -> float | None:
    """Seconds until a chore is due, 0 if one is; None where there is none. Asks the database only when the next moment that is
    known has come, and each half minute; each second while somebody may be in the middle of one, who tells only then how much is
    left."""
    if not _chores or _silent:
        return None
    known, now = _known.setdefault(using, _Known()), time.monotonic()
    every = IDLE_LOOK_EVERY if known.due - known.looked <= GUARD.total_seconds() else LOOK_EVERY
    if now >= known.due or now - known.looked >= every:
        _look(using, known)
    return max(0.0, known.due - time.monotonic())


def do_one(using: str, *, idle: bool) -> bool:
    """Do one batch of a chore that is due; whether there was one.

    ``idle``: nothing else is to be done here. Two threads of a process never do chores at the same time. What a chore raises is
    logged, and it rests a while; a database that goes away is the caller's trouble.
    """
    if not _chores or _silent or not _lock.acquire(blocking=False):
        return False
    try:
        known, now = _known.setdefault(using, _Known()), time.monotonic()
        if now < known.due and now - known.looked < (IDLE_LOOK_EVERY if idle else LOOK_EVERY):
            return False
        due = _look(using, known)
        chore = next((chore for chore in due if _take(using, chore)), None)
        if chore is None:
            return False
        try:
            _do(using, chore)
        finally:
            known.looked = known.due = float("-inf")  # what was seen in the meantime is over
        return True
    finally:
        _lock.release()


def _do(using: str, chore: Regular) -> None:
    try:
        more = chore.run(using)
    except Exception as error:
        if isinstance(error, Error) and passes(error):
            raise
        logger.exception("The chore %s has failed; it is tried again in %s.", chore.name, GUARD)
        return
    _put_off(using, chore, AGAIN if more else chore.every)


def _look(using: str, known: _Known) -> list[Regular]:
    """The chores that are due, the longest due first. One without a row is due at once."""
    asked = time.monotonic()
    rows = run(using, f"SELECT name, due_at FROM {_TABLE}")
    now = clock.read(using)
    left = dict.fromkeys(_chores, 0.0)
    for name, due_at in rows:
        due = moment(due_at)
        if name in _chores and due is not None:
            seconds = (due - now).total_seconds()
            left[name] = seconds if seconds <= _farthest(_chores[name]).total_seconds() else 0.0
    known.looked, known.due = asked, asked + min(left.values())
    return [_chores[name] for name in sorted(left, key=lambda name: left[name]) if left[name] <= 0]


def _take(using: str, chore: Regular) -> bool:
    """Compare and set: of all who find it due one gets it. Makes the row where there is none."""
    until, to = _after(using, GUARD)
    now, at = _after(using, timedelta())
    far, beyond = _after(using, _farthest(chore))
    sql = f"""INSERT INTO {_TABLE} (name, due_at) VALUES (%s, {until})
        ON CONFLICT (name) DO UPDATE SET due_at = EXCLUDED.due_at
        WHERE {_TABLE}.due_at <= {now} OR {_TABLE}.due_at > {far} RETURNING id"""
    return bool(run(using, sql, [chore.name, *to, *at, *beyond]))


def _farthest(chore: Regular) -> timedelta:
    """Nobody puts a chore off for longer: what is due later was written by a clock that has been set back since."""
    return max(chore.every, GUARD) + GUARD


def _put_off(using: str, chore: Regular, by: timedelta) -> None:
    at, params = _after(using, by)
    run(using, f"UPDATE {_TABLE} SET due_at = {at} WHERE name = %s", [*params, chore.name])


def _after(using: str, plus: timedelta) -> tuple[str, list[object]]:
    """A moment from now on, for writing and comparing: SQL and its parameters."""
    if is_postgres(using):
        return f"{clock.postgres('clock')} + make_interval(secs => %s::float8)", [plus.total_seconds()]
    return "%s", [clock.sqlite_text(clock.host_now() + plus)]


__all__ = ["Regular", "do_one", "register", "seconds_left", "silence"]
