"""Giving up a body that does not end: what it does to the database is stopped, its thread is told (design 6, "Timeouts")."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper

from durableflow.engine import replacement
from durableflow.engine.attempts import Attempt
from durableflow.engine.timeouts import interrupt

logger = logging.getLogger("durableflow.engine")
CANCEL_SECONDS: Final = 1.0
Connected = tuple[str, Any]
"""Vendor and driver's connection."""


def abandon(attempt: Attempt) -> bool:
    """Take the right to write from the attempt's thread and stop what its connections do; False if it is writing.

    The thread of a pool or of the caller also gets an exception, which ends a loop in Python; the main thread has had its
    alarm.
    """
    if not attempt.abandon():
        return False
    label = "" if attempt.outcome is None else attempt.outcome.lease.label
    where = where_is(attempt)
    with attempt.in_body() as still:  # later they may be another instance's
        used = in_use(attempt.connections) if still else []
    logger.warning(
        "%s: attempt %d of %s does not end; it is given up as timed out. Its thread is at:\n%s",
        label,
        attempt.number,
        attempt.identity.label,
        where,
    )
    cut_off(used)
    if attempt.main:
        replacement.want(cause(attempt), f"its main thread does not leave step {attempt.identity.label!r} of {label}.")
    else:
        with attempt.in_body() as still:
            if still and attempt.thread.ident is not None:
                interrupt(attempt.thread.ident)
    if keeps_sqlite_locked(used):
        reason = f"step {attempt.identity.label!r} of {label} timed out and keeps SQLite's write lock."
        replacement.want(cause(attempt), reason)
    return True


def cause(attempt: Attempt) -> str:
    """How ``replacement`` knows this attempt."""
    return f"attempt {id(attempt)}"


def where_is(attempt: Attempt) -> str:
    """The last lines of the stack of the attempt's thread: what does not end."""
    return stack_of(attempt.thread)


def stack_of(thread: threading.Thread) -> str:
    """The last lines of a thread's stack."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame, 5)[-5:]).rstrip() if frame is not None else "(it has ended)"


def in_use(wrappers: Iterable[BaseDatabaseWrapper]) -> list[Connected]:
    """The drivers' connections behind a thread's wrappers at this moment."""
    return [(wrapper.vendor, wrapper.connection) for wrapper in wrappers if wrapper.connection is not None]


def cut_off(connected: Iterable[Connected], *, cancel: bool = True) -> None:
    """Stop what a thread's connections do and take them from it, so that its locks go and nothing more is written.
    ``cancel``: have the server stop its query too, which takes up to a second."""
    for vendor, raw in connected:
        with suppress(Exception):  # it may be closed at this moment
            if vendor == "postgresql":
                _cut_postgres(raw, cancel)
            elif vendor == "sqlite":
                raw.interrupt()


def keeps_sqlite_locked(connected: Iterable[Connected]) -> bool:
    """Whether the thread has a transaction of SQLite open, which nobody can end from outside."""
    for vendor, raw in connected:
        with suppress(Exception):
            if vendor == "sqlite" and raw.in_transaction:
                return True
    return False


def _cut_postgres(raw: Any, cancel: bool) -> None:
    """Cancel its query, then break its socket: the server rolls back and lets its locks go.

    Not by ``pg_terminate_backend``: that needs a right, and behind a pooler the number means another's session.
    """
    if raw.closed:
        return
    if cancel:
        with suppress(Exception):
            raw.cancel_safe(timeout=CANCEL_SECONDS)
    descriptor = raw.fileno()
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        if not raw.closed and raw.fileno() == descriptor:  # else it may be somebody else's by now
            copy.shutdown(socket.SHUT_RDWR)
