"""Time: the database's clock decides what is due, leased or late (design 4, "Time").

PostgreSQL: ``clock_timestamp()`` for what is written, ``statement_timestamp()`` for index comparisons (a volatile
function cannot use an index). SQLite: the host's time, read under the write lock and bound in Django's own format. The
testing kit alone may stop the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connections, models
from django.db.models.expressions import Combinable

_stopped_at: datetime | None = None
_FORMAT: Final = "%Y-%m-%d %H:%M:%S.%f"


class ClockTimestamp(models.Func):
    """The wall clock of PostgreSQL at this very moment, also late in a long transaction."""

    template = "clock_timestamp()"
    arity = 0
    output_field: Any = models.DateTimeField()


class StatementTimestamp(models.Func):
    """When PostgreSQL began the present statement: the same for all its rows, so that an index can be asked for it."""

    template = "statement_timestamp()"
    arity = 0
    output_field: Any = models.DateTimeField()


def stopped() -> datetime | None:
    """The moment at which the testing kit holds the clock, or None while it runs."""
    return _stopped_at


@contextmanager
def stop(at: datetime) -> Iterator[None]:
    """Hold the clock at ``at`` (testing kit only)."""
    global _stopped_at
    before, _stopped_at = _stopped_at, at
    try:
        yield
    finally:
        _stopped_at = before


def move(to: datetime) -> None:
    """Set the stopped clock to ``to`` (testing kit only)."""
    global _stopped_at
    if _stopped_at is None:
        raise RuntimeError("Only a stopped clock can be moved.")
    _stopped_at = to


def host_now() -> datetime:
    """The host's time in UTC, or the stopped clock's."""
    return _stopped_at or datetime.now(UTC)


def running_on(at: datetime | None, paused_at: datetime | None) -> datetime | None:
    """When what would end by itself ``at`` some moment ends, if its instance, whose clock stands still since ``paused_at``, goes on
    now (design 6, "Pause"). What was over before the pause stays over; None for ``paused_at``: the clock runs."""
    if at is None or paused_at is None or at < paused_at:
        return at
    return at + (host_now() - paused_at)


def postgres(kind: str) -> str:
    """SQL for "now" on PostgreSQL. ``kind``: ``clock`` for writing, ``statement`` for comparing with an index."""
    if _stopped_at is not None:
        return f"'{_stopped_at.isoformat()}'::timestamptz"
    return "clock_timestamp()" if kind == "clock" else "statement_timestamp()"


def sqlite_text(moment: datetime) -> str:
    """A moment in the text form in which Django stores it on SQLite (UTC, always with microseconds, so that texts
    compare as times do)."""
    return moment.astimezone(UTC).strftime(_FORMAT)


def read(using: str) -> datetime:
    """Now, asked of the database where it has a clock: for a moment that is stored in more than one place."""
    connection = connections[using]
    if connection.vendor != "postgresql" or _stopped_at is not None:
        return host_now()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment


def expression(vendor: str, plus: timedelta | None = None) -> Combinable:
    """An ORM expression for "now" (plus a duration), for writing: evaluated by the database where it has a clock."""
    return _now(ClockTimestamp(), vendor, plus)


def comparable(vendor: str, plus: timedelta | None = None) -> Combinable:
    """The same for comparing: an index on the other side of the comparison serves."""
    return _now(StatementTimestamp(), vendor, plus)


def _now(asked: models.Func, vendor: str, plus: timedelta | None) -> Combinable:
    if vendor == "postgresql" and _stopped_at is None:
        if plus is None:
            return asked
        return models.ExpressionWrapper(asked + models.Value(plus), output_field=models.DateTimeField())
    return models.Value(host_now() + (plus or timedelta()), output_field=models.DateTimeField())


__all__ = [
    "ClockTimestamp",
    "StatementTimestamp",
    "comparable",
    "expression",
    "host_now",
    "move",
    "postgres",
    "read",
    "sqlite_text",
    "stop",
    "stopped",
]
