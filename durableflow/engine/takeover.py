"""Leases of owners that are known to be dead (design 4, "Takeover")."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from durableflow.core import clock, dispatch
from durableflow.core.transactions import write_transaction
from durableflow.engine.lease import Lease
from durableflow.engine.sql import INSTANCE, is_postgres, now_of, run

PATIENCE: Final = 1.0
"""Seconds for rows that somebody holds: the dead process's own connection may take a moment to end."""
PAUSE: Final = 0.02


def expire(using: str, owners: Iterable[int]) -> int:
    """Make every lease of these owners due for takeover at once, and say how many there were.

    For a supervisor that has reaped its own dead children, whose names it has chosen (``lease.be``): nobody can doubt
    their death, so there is no second look. A row that a transaction holds for longer than a second is left to the end
    of its lease. One short transaction of its own per try.
    """
    names = sorted({sign * name for name in owners for sign in (1, -1)})  # with a minus: ``lease.told_of_stop``
    if not names:
        return 0
    expired, end = 0, time.monotonic() + PATIENCE
    while True:
        expired += _expire(using, names)
        marks = ", ".join(["%s"] * len(names))
        left = f"SELECT 1 FROM {INSTANCE} WHERE owner IN ({marks}) AND lease_token IS NOT NULL AND NOT suspect LIMIT 1"
        if not is_postgres(using) or time.monotonic() >= end or not run(using, left, names):
            break
        time.sleep(PAUSE)
    if expired:
        dispatch.hint(using)
    return expired


def let_expire(lease: Lease) -> None:
    """Make a lease of this process due for takeover at once: whatever it was in the midst of is charged as a lost attempt.
    Raises a database error; nothing happens to a lease that is over."""
    now, params = now_of(lease.using)
    with write_transaction(lease.using):
        sql = f"UPDATE {INSTANCE} SET suspect = true, wake_at = {now} WHERE id = %s AND lease_token = %s"
        run(lease.using, sql, [*params, lease.pk, lease.token])
    dispatch.hint(lease.using)


def _expire(using: str, names: list[int]) -> int:
    marks = ", ".join(["%s"] * len(names))
    where = f"owner IN ({marks}) AND lease_token IS NOT NULL"
    if is_postgres(using):
        sql = f"""UPDATE {INSTANCE} AS i SET suspect = true, wake_at = {clock.postgres("clock")} FROM (
                SELECT id FROM {INSTANCE} WHERE {where} AND (NOT suspect OR wake_at > {clock.postgres("statement")})
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS x WHERE i.id = x.id RETURNING i.id"""
        return len(run(using, sql, names))
    with write_transaction(using):
        now = clock.sqlite_text(clock.host_now())
        sql = f"UPDATE {INSTANCE} SET suspect = 1, wake_at = %s WHERE {where} AND (NOT suspect OR wake_at > %s) RETURNING id"
        return len(run(using, sql, [now, *names, now]))
