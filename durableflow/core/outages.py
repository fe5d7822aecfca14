"""Which database errors pass by themselves.

Only those are waited out. Anything else, a missing table or an error in a statement, must be seen: whoever retried it
would sit there for ever without a word.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import Error, InterfaceError, OperationalError

_LOCKED: Final = "55P03"
_BESIDE: Final = ("40P01", "40001")
"""A deadlock, a serialization failure."""
_READ_ONLY: Final = ("25006", "42501")
_SQLITE_BUSY: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")
_SQLITE: Final = (*_SQLITE_BUSY, "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_FULL")
# Classes of SQLSTATE: connection, insufficient resources, rollback of a transaction (deadlock, serialization), errors of
# the server's system; then a lock that was not to be had, a statement that the project's statement_timeout or an
# administrator has cancelled, a server that shuts down or starts, a session that was idle for too long, and a
# server that is a standby until its failover is over.
_POSTGRESQL: Final = ("08", "53", "40", "58", _LOCKED, "57014", "57P01", "57P02", "57P03", "57P05", "25006")


def passes(error: Error) -> bool:
    """Whether ``error`` says that the database is away or busy, so that the same work may succeed later."""
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    cause = error.__cause__
    code = getattr(cause, "sqlite_errorname", None)
    if code is not None:
        return str(code).startswith(_SQLITE)
    state = getattr(cause, "sqlstate", None)
    # Without a state it does not come from the server: there was no connection, or it broke.
    return state is None or str(state).startswith(_POSTGRESQL)


def locked(error: Error) -> bool:
    """Whether somebody holds a row for longer than a statement was to wait (PostgreSQL)."""
    return getattr(error.__cause__, "sqlstate", None) == _LOCKED


def read_only(error: Error) -> bool:
    """Whether it may not be written here: a session that only reads, or a role without the right to (PostgreSQL)."""
    return getattr(error.__cause__, "sqlstate", None) in _READ_ONLY


def contended(error: Error) -> bool:
    """Whether somebody else was in the way, and not the database away: then the next row may do. A row that is held, two who waited
    for each other, or on SQLite whoever writes."""
    cause: Any = error.__cause__
    code = getattr(cause, "sqlite_errorname", None) or ""
    return getattr(cause, "sqlstate", None) in (_LOCKED, *_BESIDE) or str(code).startswith(_SQLITE_BUSY)
