"""Threads that do for the watcher what may take long or hang: statements, and delay functions, which are the author's code.

The watcher itself only decides and never waits, so that nothing keeps it from the next renewal.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from durableflow.engine.abandonment import cut_off, in_use
from durableflow.engine.patience import impatient
from durableflow.engine.sql import is_postgres, run

logger = logging.getLogger("durableflow.engine")
MOST_STUCK: Final = 4
SQLITE_PATIENCE: Final = 1000
"""Milliseconds for which such a thread waits for SQLite's write lock before something else has its turn."""


class _Runner:
    """One thread of a hand, and what it does now."""

    def __init__(self, work: Callable[[_Runner], None], name: str) -> None:
        self.key: Hashable | None = None
        self.since = 0.0
        self.wrappers: Sequence[BaseDatabaseWrapper] = ()
        self.thread = threading.Thread(target=work, args=(self,), name=name, daemon=True)


class Hand:
    """Does one thing after the other in a thread with connections of its own, which starts when there is something to do.

    A thread that hangs is relieved: its connections are cut off, and a fresh thread does the rest; with ``afresh`` also
    what the other one hangs at, if it is asked for again.
    """

    def __init__(self, name: str, *, afresh: bool = False) -> None:
        self.name = name
        self._afresh = afresh
        self._state = threading.Condition()
        self._todo: dict[Hashable, Callable[[], None]] = {}
        self._runner: _Runner | None = None
        self._stuck: list[_Runner] = []
        self._failing: set[Hashable | None] = set()
        self._dismissed = False

    def ask(self, key: Hashable, work: Callable[[], None]) -> None:
        """Have ``work`` done, unless what has the same ``key`` waits or is being done. Never waits; errors of it are
        logged."""
        with self._state:
            if key in self._todo or any(key == runner.key for runner in self._at_work()):
                return
            self._todo[key] = work
            self._dismissed = False
            self._start()
            self._state.notify_all()

    def dismiss(self) -> None:
        """Nothing more will come for long: the thread ends, with its connections, when it has done what is left."""
        with self._state:
            self._dismissed = True
            self._state.notify_all()

    def relieve(self, seconds: float) -> int:
        """Leave a thread behind that is at one thing for longer than ``seconds``; how many hang."""
        with self._state:
            runner = self._runner
            if runner is not None and runner.key is not None and time.monotonic() - runner.since > seconds:
                logger.warning("%s hangs for %g seconds; another thread takes its place", self.name, seconds)
                self._runner = None
                self._stuck.append(runner)
                cut_off(in_use(runner.wrappers), cancel=False)
                self._start()
            return len(self._stuck)

    def stuck_at(self, seconds: float) -> list[Hashable]:
        """What threads that were left behind are at, for longer than ``seconds``."""
        with self._state:
            end = time.monotonic() - seconds
            return [runner.key for runner in self._stuck if runner.key is not None and runner.since < end]

    def _at_work(self) -> list[_Runner]:
        return [*([] if self._runner is None else [self._runner]), *([] if self._afresh else self._stuck)]

    def _start(self) -> None:
        """The caller has the lock."""
        if self._runner is None and self._todo and len(self._stuck) <= MOST_STUCK:
            self._runner = runner = _Runner(self._work, self.name)
            try:
                runner.thread.start()
            except RuntimeError as error:  # the next ``ask`` tries again
                self._runner = None
                logger.warning("%s could not be started: %s", self.name, error)

    def _work(self, me: _Runner) -> None:
        impatient()
        me.wrappers = connections.all()  # what they connect to later can be seen through them
        try:
            while (work := self._next(me)) is not None:
                try:
                    work()
                    self._failing.discard(me.key)
                except BaseException as error:  # anything: without this thread every lease of the process would end
                    level = logging.DEBUG if me.key in self._failing else logging.WARNING  # once for a whole outage
                    self._failing.add(me.key)
                    logger.log(level, "%s: %s failed and is tried again: %r", self.name, me.key, error)
                    connections.close_all()
        finally:
            # Also where waiting itself has failed, for want of memory: whoever asks next starts a thread.
            with self._state:
                me.key = None
                if self._runner is me:
                    self._runner = None
                elif me in self._stuck:
                    self._stuck.remove(me)
                    self._start()
            connections.close_all()

    def _next(self, me: _Runner) -> Callable[[], None] | None:
        """The next thing to do; None: this thread ends."""
        with self._state:
            me.key = None
            while self._runner is me and not self._todo and not self._dismissed:
                self._state.wait()
            if self._runner is not me or not self._todo:
                if self._runner is me:
                    self._runner = None  # at once: what is asked for from now on needs another thread
                return None
            me.key = next(iter(self._todo))
            me.since = time.monotonic()
            return self._todo.pop(me.key)


def hurry(using: str) -> None:
    """This thread does not wait long for SQLite's write lock: it has more than one thing to do."""
    if not is_postgres(using):
        run(using, f"PRAGMA busy_timeout = {SQLITE_PATIENCE}")
