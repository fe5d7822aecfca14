"""Threads that help with the branches of gathers and maps (design 7; ``DURABLEFLOW["BRANCH_THREADS"]``).

They only help: whoever gathers works on its own branches, so that nothing waits for a free thread, however deep groups are
nested. They start when there is something to do, and end with their connections after a rest.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Final, Protocol

from django.db import connections

from durableflow.core.conf import get_settings
from durableflow.engine import replacement

logger = logging.getLogger("durableflow.engine")
WARM: Final = 10.0
"""Seconds for which a thread without work keeps its connections."""
AFTERGLOW: Final = 0.25
"""The same once its process executes nothing."""
FRESH: Final = 1.0
"""Seconds of rest after which a connection is tried before it is used again."""


class Helpable(Protocol):
    """Something that several threads can work on."""

    def help(self) -> None:
        """Do what is to be done now, and return when there is nothing more for this thread."""


class Branches:
    """The threads of a process, and what they are asked to help with."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._state = threading.Condition()
        self._asked: deque[Helpable] = deque()
        self._threads: set[threading.Thread] = set()
        self._lost: set[threading.Thread] = set()
        self._idle = 0
        self._until = math.inf

    def ask(self, group: Helpable, count: int) -> None:
        """Have up to ``count`` threads help; never waits."""
        most = get_settings().BRANCH_THREADS
        with self._state:
            self._until = math.inf
            count = min(count, most - self._asked.count(group))  # others that ask a lot must not keep it from asking
            for _ in range(count):
                self._asked.append(group)
            while self._idle < len(self._asked) and len(self._threads) < most and self._start():
                self._idle += 1  # it counts as idle until it has taken something
            self._state.notify(max(count, 0))

    def rest(self) -> None:
        """The process executes nothing now: threads without work end soon."""
        with self._state:
            if self._threads:
                self._until = time.monotonic() + AFTERGLOW
                self._state.notify_all()

    def end(self, seconds: float) -> None:
        """Wait until all threads that have nothing to do have ended, at most so long (for test runners, which delete the
        database then)."""
        with self._state:
            self._until = 0.0
            self._state.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(seconds)

    def lose(self, thread: threading.Thread) -> None:
        """A thread is in a body that was given up: another one may start in its place."""
        with self._state:
            if thread not in self._threads:
                return
            self._threads.discard(thread)
            self._lost.add(thread)
            lost = len(self._lost)
        if lost > get_settings().BRANCH_THREADS:
            replacement.want("branches", f"{lost} of its threads are in step bodies that timed out and do not end.")

    def _start(self) -> bool:
        thread = threading.Thread(target=self._work, name="durableflow-branch", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("A thread for branches could not be started: %s", error)
            return False
        self._threads.add(thread)
        return True

    def _work(self) -> None:
        me = threading.current_thread()
        began = False
        try:
            while (group := self._next(began)) is not None:
                began = True
                group.help()
                with self._state:
                    if me in self._lost:
                        return  # another one has taken its place
                del group
        except BaseException:
            logger.exception("A thread for branches ends by an error of the engine")
        finally:
            with self._state:
                self._threads.discard(me)
                self._lost.discard(me)
                few = len(self._lost) <= get_settings().BRANCH_THREADS
            if few:
                replacement.over("branches")
            connections.close_all()

    def _next(self, began: bool) -> Helpable | None:
        """What to help with next; None after a rest."""
        since = time.monotonic()
        with self._state:
            if began:
                self._idle += 1
            try:
                while not self._asked:
                    left = min(since + WARM, self._until) - time.monotonic()
                    if left <= 0:
                        return None
                    self._state.wait(left)
                group = self._asked.popleft()
            finally:
                self._idle -= 1
        if time.monotonic() - since > FRESH:
            try_connections()
        return group


def try_connections() -> None:
    """After a rest: the database may have been restarted, and a body must not find that out (case OPS-07)."""
    for connection in connections.all(initialized_only=True):
        with suppress(Exception):
            if connection.connection is not None and not connection.is_usable():
                connection.close()


def rest() -> None:
    """See ``Branches.rest``."""
    if _branches is not None and _branches.pid == os.getpid():
        _branches.rest()


_branches: Branches | None = None
_making = threading.Lock()


def branches() -> Branches:
    """This process's threads; new ones after a fork, because threads do not survive it."""
    global _branches
    with _making:
        if _branches is None or _branches.pid != os.getpid():
            _branches = Branches()
        return _branches
