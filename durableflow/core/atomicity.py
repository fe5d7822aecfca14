"""Which transactions are open, counted from a baseline (design 6 "Suspension", 10 "Testing kit")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

_IN_TRANSACTION: Final = (2, 3)  # libpq: in a transaction, in a failed one
_baseline: ContextVar[Mapping[str, int] | None] = ContextVar("durableflow_baseline", default=None)


def depths() -> dict[str, int]:
    """How many ``atomic()`` blocks are open on each used connection of this thread."""
    return {
        connection.alias: len(connection.atomic_blocks)
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block
    }


@contextmanager
def baseline() -> Iterator[None]:
    """Take the blocks that are open now as given: only what is opened above them counts (a ``TestCase`` always has
    some)."""
    token = _baseline.set(depths())
    try:
        yield
    finally:
        _baseline.reset(token)


def opened(wrappers: Iterable[BaseDatabaseWrapper] | None = None) -> str:
    """Name what is open above the baseline: ``atomic() on 'default'`` or ``autocommit off on 'default'``; '' if
    nothing is. ``wrappers``: this thread's ``connections.all()``, for those who ask often (looking them up costs more
    than the question)."""
    for connection in connections.all(initialized_only=True) if wrappers is None else wrappers:
        if connection.in_atomic_block:
            if len(connection.atomic_blocks) > (_baseline.get() or {}).get(connection.alias, 0):
                return f"atomic() on {connection.alias!r}"
        elif connection.connection is not None and not connection.autocommit:
            return f"autocommit off on {connection.alias!r}"
        elif begun_by_hand(connection):
            return f"a transaction begun by hand on {connection.alias!r}"
    return ""


def begun_by_hand(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open of which Django knows nothing (``cursor.execute("BEGIN")``): whatever anybody writes over
    this connection from then on would never be committed."""
    raw: Any = connection.connection
    if raw is None:
        return False
    try:
        if connection.vendor == "postgresql":
            return raw.pgconn.transaction_status in _IN_TRANSACTION
        return connection.vendor == "sqlite" and bool(raw.in_transaction)
    except Exception:  # it was closed behind Django's back
        return False


def abandon_opened() -> None:
    """Roll back what was opened above the baseline. A connection that had no block then is closed; where one lies below,
    only the blocks above it are left."""
    base = _baseline.get() or {}
    for connection in connections.all(initialized_only=True):
        if connection.alias in base:
            while connection.in_atomic_block and len(connection.atomic_blocks) > base[connection.alias]:
                connection.atomic_blocks[-1].__exit__(_Abandoned, _Abandoned(), None)
        elif (
            connection.in_atomic_block
            or (connection.connection is not None and not connection.autocommit)
            or begun_by_hand(connection)
        ):
            drop(connection)


class _Abandoned(Exception):
    """Why a block is left."""


def drop(connection: BaseDatabaseWrapper) -> None:
    """Close a connection whatever state it is in; the next use opens a new one."""
    connection.in_atomic_block = False
    connection.atomic_blocks.clear()
    connection.savepoint_ids.clear()
    connection.run_on_commit.clear()
    connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.close()
