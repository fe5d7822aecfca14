"""An attempt in this process: who may still write its outcome (design 6, "Attempts")."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Protocol

from django.db.backends.base.base import BaseDatabaseWrapper

from durableflow.engine.journal import Identity
from durableflow.engine.lease import Lease

STUCK_AFTER = 30.0
"""Seconds past its deadline after which a body in the main thread, which its alarm should have ended, is abandoned."""


class AttemptState(Enum):
    """running -> committing -> done, or running -> abandoned."""

    RUNNING = "running"
    COMMITTING = "committing"
    DONE = "done"
    ABANDONED = "abandoned"


class Outcome(Protocol):
    """Writes what becomes of an attempt that its own thread cannot write."""

    lease: Lease

    @property
    def detached(self) -> bool:
        """Whether other threads go on with the instance when this attempt is given up."""
        ...

    def mark_running(self) -> None:
        """Record that the body has started, unless somebody holds the row."""

    def time_out(self) -> None:
        """Record the attempt as timed out and let the instance go. Raises a database error if that must be tried again."""


class Attempt:
    """One try of a body, in the thread that makes it. Only the one that is committing may write, so a late result of an
    abandoned body is dropped (case RET-04).

    ``outcome``: writes it in the thread's place, None where nobody watches (the testing kit). ``due``: its deadline by the
    monotonic clock. ``grace``: seconds for which something else than the watcher ends the body first.
    """

    def __init__(self, identity: Identity, number: int, outcome: Outcome | None = None) -> None:
        self.identity = identity
        self.number = number
        self.outcome = outcome
        self.state = AttemptState.RUNNING
        self.due = math.inf
        self.began = math.inf
        self.markable = False
        self.thread = threading.current_thread()
        self.connections: list[BaseDatabaseWrapper] = []
        self.grace = 0.0
        self._in_body = False
        self._holds = 0
        self._held_at = self._held_due = math.inf
        self._lock = threading.Lock()

    @property
    def main(self) -> bool:
        """Whether it runs in the main thread, where an alarm interrupts it."""
        return self.thread is threading.main_thread()

    @property
    def abandon_at(self) -> float:
        """When it is given up, by the monotonic clock."""
        return self.due + (STUCK_AFTER if self.main else self.grace)

    def start(self, seconds: float, *, markable: bool) -> None:
        """Its time begins. ``markable``: whether a start mark may be written meanwhile."""
        self.began = time.monotonic()
        self.due = self.began + seconds
        self.markable = markable
        self._in_body = True

    def hold_clock(self) -> None:
        """Its time stands still from here on: it waits for something that others of its instance keep busy."""
        with self._lock:
            self._holds += 1
            if self._holds == 1:
                self._held_at, self._held_due = time.monotonic(), self.due
                self.due = math.inf

    def go_on(self) -> None:
        """Its time goes on, once for each time that it was held."""
        with self._lock:
            self._holds -= 1
            if not self._holds:
                self.due = self._held_due + time.monotonic() - self._held_at

    @property
    def budget(self) -> float:
        """Seconds that are left of its time."""
        with self._lock:
            return self._held_due - self._held_at if self._holds else self.due - time.monotonic()

    def left(self) -> None:
        """The body has ended: nothing may interrupt its thread any more."""
        with self._lock:
            self._in_body = False

    def move(self, thread: threading.Thread, wrappers: list[BaseDatabaseWrapper]) -> None:
        """From here on the body goes on in ``thread``, with its connections."""
        with self._lock:
            self.thread, self.connections = thread, wrappers
            self._in_body = True

    @contextmanager
    def moved(self, thread: threading.Thread, wrappers: list[BaseDatabaseWrapper]) -> Iterator[None]:
        """The same for as long as the block runs."""
        before = self.thread, self.connections
        self.move(thread, wrappers)
        try:
            yield
        finally:
            self.move(*before)

    @contextmanager
    def in_body(self) -> Iterator[bool]:
        """Whether its thread is in the body; that stays so as long as the block runs."""
        with self._lock:
            yield self._in_body

    def begin_commit(self) -> bool:
        """Claim the right to write the outcome; False if the attempt was abandoned meanwhile."""
        return self._move(AttemptState.RUNNING, AttemptState.COMMITTING)

    def finish(self) -> None:
        """The outcome is written."""
        self._move(AttemptState.COMMITTING, AttemptState.DONE)

    def fail(self) -> bool:
        """Claim the right to write a failure, also one of the writing itself; False if it was abandoned."""
        with self._lock:
            if self.state is AttemptState.ABANDONED:
                return False
            self.state = AttemptState.COMMITTING
            return True

    def abandon(self) -> bool:
        """Give up on a body that does not end; False if it is already writing."""
        return self._move(AttemptState.RUNNING, AttemptState.ABANDONED)

    @property
    def abandoned(self) -> bool:
        """Whether only the watcher may write its outcome."""
        return self.state is AttemptState.ABANDONED

    @contextmanager
    def running(self) -> Iterator[bool]:
        """Whether it is running; its thread cannot begin to write as long as the block runs."""
        with self._lock:
            yield self.state is AttemptState.RUNNING

    def _move(self, before: AttemptState, after: AttemptState) -> bool:
        with self._lock:
            if self.state is not before:
                return False
            self.state = after
            return True
