"""The time limit of one attempt (design 6, "Timeouts").

In the main thread a repeating alarm raises in the body; it fires again each second, so a body that catches the first
one is interrupted again. An alarm that somebody else has set (django-q2's own) keeps its remaining time. In other
threads no alarm reaches a body: the watcher abandons it (``engine.abandonment``); where nobody watches it runs to its
end, and then counts as timed out.
"""

from __future__ import annotations

import ctypes
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Final, TypeVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from durableflow.core import atomicity

try:  # the public function turns number and handler into enums and back, which takes longer than the call
    from _signal import signal as _handle  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # another Python
    from signal import signal as _handle

AGAIN: Final = 1.0
SOON: Final = 0.001
T = TypeVar("T")


class DeadlineReached(BaseException):
    """Raised inside a body by the alarm. A BaseException, so that ``except Exception`` cannot swallow it."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__(f"{deadline.seconds:g} seconds are over")
        self.deadline = deadline


class Deadline:
    """Runs a function for at most ``seconds``. ``expired`` tells whether the time was over, also when the function
    swallowed the interruption: then its value must be discarded (case RET-04)."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.expired = False
        self._active = False
        self._alarm = threading.current_thread() is threading.main_thread()

    def run(self, body: Callable[[], T]) -> T | None:
        """The value of ``body()``; None after an interruption. Errors of the body go through."""
        self._due = time.monotonic() + self.seconds
        try:
            self._arm()
            try:
                return body()
            finally:
                self._active = False
        except DeadlineReached as reached:  # also one that hits between the body's return and the line above
            if reached.deadline is not self:
                raise
            self.expired = True
            return None
        finally:
            self._active = False  # first the flag, then the timer: an alarm in between does nothing
            self._restore()

    def _arm(self) -> None:
        if not self._alarm:
            return
        left, self._outer_interval = signal.getitimer(signal.ITIMER_REAL)
        self._outer_due = time.monotonic() + left if left else math.inf
        # An alarm of the other one's that fires from here on does nothing; it is due again at once, by the timer below.
        self._outer = _handle(signal.SIGALRM, self._fire)
        self._active = True
        self._set(min(self._due, self._outer_due), AGAIN)

    def _set(self, due: float, interval: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(due - time.monotonic(), SOON), interval)

    def _fire(self, number: int, frame: FrameType | None) -> None:
        """The alarm: the other one's if that is due, else ours if the time is over."""
        now = time.monotonic() + SOON
        if not self._active:
            return
        if now >= self._outer_due:
            self._outer_due = now + self._outer_interval if self._outer_interval else math.inf
            self._set(min(self._due, self._outer_due), AGAIN)
            if callable(self._outer):
                self._outer(number, frame)
        elif now >= self._due:
            self.expired = True
            # Now, and not in clean_connections(): an ``atomic()`` of the body closes the connection on its way out, and
            # the server would go on with the query and keep its locks.
            cancel_queries()
            raise DeadlineReached(self)

    def _restore(self) -> None:
        if not self._alarm:
            self.expired = time.monotonic() > self._due
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        _handle(signal.SIGALRM, self._outer if self._outer is not None else signal.SIG_DFL)
        if self._outer_due < math.inf:
            self._set(self._outer_due, self._outer_interval)


def clean_connections() -> None:
    """After an interruption: a connection that is in the middle of a query is cancelled and closed, an open block is
    rolled back."""
    drop_active()
    atomicity.abandon_opened()


def fresh(using: str) -> None:
    """Let go of this thread's connection after an error of the database: it may be broken, or in a state in which somebody's
    ``SET`` has left it. Not inside ``atomic()``, which ends with its connection."""
    connection = connections[using]
    if not connection.in_atomic_block:
        connection.close()


def drop_active() -> None:
    """Close the connections that an exception has left in the middle of a query.

    psycopg leaves an interrupted query running and the connection ACTIVE, and the next statement would fail.
    """
    cancel_queries()
    for connection in connections.all(initialized_only=True):
        if _is_active(connection):
            atomicity.drop(connection)


def drop_closed(wrappers: Iterable[BaseDatabaseWrapper]) -> None:
    """Let go of connections of SQLite that a body has closed behind Django's back: Django takes them for usable for ever."""
    for connection in wrappers:
        if connection.vendor == "sqlite" and connection.connection is not None:
            try:
                _ = connection.connection.in_transaction
            except Exception:
                atomicity.drop(connection)


def cancel_queries() -> None:
    """Have the server stop what this thread's connections are waiting for."""
    for connection in connections.all(initialized_only=True):
        if _is_active(connection):
            try:
                connection.connection.cancel_safe(timeout=1)
            except Exception:  # noqa: S110  the connection is closed in any case
                pass


def _is_active(connection: BaseDatabaseWrapper) -> bool:
    raw = connection.connection
    if raw is None or connection.vendor != "postgresql" or raw.closed:
        return False
    return bool(raw.info.transaction_status.name == "ACTIVE")


class AttemptAbandoned(BaseException):
    """Raised in the thread of a body that was given up. A BaseException, so that ``except Exception`` cannot swallow it."""


def interrupt(thread: int) -> None:
    """Raise AttemptAbandoned in another thread, as soon as it runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(AttemptAbandoned))


def forget_interruption() -> None:
    """In that thread: what has not been raised yet comes too late."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)
