"""The fence: every executor write first takes the instance's row by its lease token (design 4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from durableflow.core import clock
from durableflow.core.transactions import write_transaction
from durableflow.engine.lease import Lease, elapsed, flags_of
from durableflow.engine.sql import INSTANCE, is_postgres, moment, run
from durableflow.engine.unwind import LeaseLost

# A lock that somebody holds for long must not hold the executor for ever. set_config() in the statement itself saves a round trip; the
# condition on its value makes sure that it is evaluated before the row is locked.
TIMEOUT: Final = "t AS MATERIALIZED (SELECT set_config('lock_timeout', '5s', true) AS v)"
_SHORT_TIMEOUT: Final = TIMEOUT.replace("'5s'", "'50ms'")
# A plain condition would be no fence: a zombie's insert could commit after the next claimer has read the journal. NO KEY, so that business
# transactions may check foreign keys to the row meanwhile.
LOCKED: Final = (
    f"f AS (SELECT i.id, i.status, i.followed_until, i.run_number, i.lease_token FROM {INSTANCE} AS i, t "
    "WHERE i.id = %s AND i.lease_token = %s AND t.v IS NOT NULL FOR NO KEY UPDATE OF i)"
)

_short: ContextVar[bool] = ContextVar("durableflow_short_waits", default=False)


def timeout() -> str:
    """The CTE ``t`` that bounds the waits for locks of an ending: ``TIMEOUT``, or 50 ms inside ``short_waits()``."""
    return _SHORT_TIMEOUT if _short.get() else TIMEOUT


@contextmanager
def short_waits() -> Iterator[None]:
    """Inside the block an ending that meets a locked row fails at once (PostgreSQL): whoever makes it has something better
    to do than to wait."""
    token = _short.set(True)
    try:
        yield
    finally:
        _short.reset(token)


def waits_short() -> bool:
    """Whether this is inside ``short_waits()``."""
    return _short.get()


@dataclass(frozen=True)
class Fence:
    """What the locked row says: its status, and the database's clock under the lock."""

    status: str
    now: datetime


@contextmanager
def fenced(lease: Lease) -> Iterator[Fence]:
    """A transaction that holds the instance's row as long as the lease is ours; the lease learns what the row says of a pause.
    Raises LeaseLost, then nothing is written."""
    sent = elapsed()
    with write_transaction(lease.using):
        if is_postgres(lease.using):
            sql = f"WITH {timeout()}, {LOCKED} SELECT status, {clock.postgres('clock')}, {flags_of()} FROM f"
            rows = run(lease.using, sql, [lease.pk, lease.token])
        else:
            sql = f"SELECT status, %s, {flags_of()} FROM {INSTANCE} WHERE id = %s AND lease_token = %s"
            rows = run(lease.using, sql, [clock.sqlite_text(clock.host_now()), lease.pk, lease.token])
        if not rows:
            raise LeaseLost(lease.label)
        now = moment(rows[0][1])
        if now is None:
            raise RuntimeError("the database has no clock")
        lease.note(rows[0][2], sent)
        yield Fence(rows[0][0], now)


@contextmanager
def locked_row(lease: Lease, *, wait: bool = False) -> Iterator[bool]:
    """A transaction that has the instance's row if it is to be had: whether it has. ``wait``: raise a database error
    where somebody holds it, and LeaseLost where it is not ours any more."""
    with write_transaction(lease.using):
        sql = f"SELECT id FROM {INSTANCE} WHERE id = %s AND lease_token = %s"
        if is_postgres(lease.using):
            sql += f" FOR NO KEY UPDATE {'NOWAIT' if wait else 'SKIP LOCKED'}"
        rows = run(lease.using, sql, [lease.pk, lease.token])
        if wait and not rows:
            raise LeaseLost(lease.label)
        yield bool(rows)
