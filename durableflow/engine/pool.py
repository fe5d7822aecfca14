"""The helper threads of a process (design 4, "A drain"; ``DURABLEFLOW["THREADS"]``).

They start inside a drain, never before a fork, and live as long as the process, with warm connections. The thread that
drains claims for all of them and runs the first instance itself; they are woken by a second successful claim. While a
drain is open they look by themselves: after each execution at once; besides, one of those that have nothing to do looks
again and again, ever more slowly, because the thread that drains may be in a long body.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from django.db import connections

from durableflow.core.conf import get_settings
from durableflow.engine import replacement, shutdown
from durableflow.engine.attempts import Attempt
from durableflow.engine.claims import look
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.engine.isolation import hand_back, room
from durableflow.engine.lease import Claim
from durableflow.engine.unwind import LeaseLost, WriteFailed
from durableflow.engine.watcher import watcher

logger = logging.getLogger("durableflow.engine")
LONGEST: Final = 600.0
"""Seconds after which a drain claims no more."""
FIRST_PAUSE: Final = 0.02
LAST_PAUSE: Final = 0.5
WARM: Final = 60.0
"""Seconds for which a thread without work keeps its connections."""
FRESH: Final = 1.0
"""Seconds of rest after which a connection is tried before it is used again."""
LEAST_LIMIT: Final = 4


class Pool:
    """The threads, what they shall run, and the drains that are open."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._state = threading.Condition()
        self._looking = threading.Lock()
        self._queue: deque[Claim] = deque()
        self._threads: set[threading.Thread] = set()
        self._lost: set[threading.Thread] = set()
        self._running: dict[threading.Thread, int] = {}  # busy helpers, and the token of the lease that each executes
        self._idle = self._reserved = 0
        self._open: dict[object, float] = {}
        self._until = 0.0
        self._using = ""
        self._wanted: Callable[[], bool] | None = None
        self._scout: threading.Thread | None = None
        self._closed = False
        self._empty_at = self._found_at = 0.0
        watcher().lost_thread = self._lose
        threading.Thread(target=self._close_at_exit, name="durableflow-exit", daemon=True).start()

    # For the thread that drains -----------------------------------------------------------------------------------------

    @contextmanager
    def draining(self, using: str, end: float, wanted: Callable[[], bool] | None) -> Iterator[None]:
        """Helpers may claim as long as the block runs, and until ``end``."""
        key = object()
        with self._state:
            self._using, self._wanted = using, wanted or self._wanted
            self._until = max(self._until, end)
            self._open[key] = time.monotonic() + LONGEST
        try:
            yield
        finally:
            with self._state:
                self._open.pop(key, None)

    def look(self, using: str) -> tuple[Claim | None, int, bool]:
        """Claim for the calling thread and for those that are free; its claim, how many there were, whether to look again
        at once."""
        with self._state:
            extra = self._free()
            self._reserved += extra
        began = time.monotonic()
        try:
            found = look(using, 1 + extra)
        finally:
            with self._state:
                self._reserved -= extra
        if not found.taken:
            self._empty_at = began
            return None, 0, found.again
        self._found_at = began
        claims = sorted(found.taken, key=lambda claimed: not claimed.interruptions)
        self._hand_out(claims[1:])
        return claims[0], len(claims), False

    def scout(self) -> None:
        """The calling thread goes into an execution: see that somebody looks meanwhile."""
        with self._state:
            self._need_scout()

    def busy(self) -> int:
        """How many helpers run something."""
        return len(self._running)

    def idle(self) -> bool:
        """Whether no helper runs anything or is about to."""
        with self._state:
            return not (self._running or self._queue)

    def wait_until_idle(self, seconds: float) -> None:
        """Wait until no helper runs anything, at most so long."""
        end = time.monotonic() + seconds
        with self._state:
            while (self._running or self._queue) and (left := end - time.monotonic()) > 0:
                self._state.wait(left)

    # Bookkeeping; the caller has the lock -------------------------------------------------------------------------------

    def _free(self) -> int:
        return max(0, get_settings().THREADS - 1 - len(self._running) - len(self._queue) - self._reserved)

    def _may_claim(self) -> bool:
        now = time.monotonic()
        if not (now < self._until or any(now < end for end in self._open.values())):
            return False
        return not (self._closed or room().occupied() or replacement.wanted() or shutdown.requested())

    def _need_scout(self) -> None:
        if self._scout is not None or not self._free():
            return
        if self._idle:
            self._state.notify()
        else:
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._help, name="durableflow-helper", daemon=False)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._threads.discard(thread)
            logger.warning("A helper thread could not be started: %s", error)

    def _hand_out(self, claims: list[Claim]) -> None:
        if not claims:
            return
        with self._state:
            self._queue.extend(claims)
            self._start_for_queue()
            over = [self._queue.pop() for _ in range(len(self._queue) - self._takers())]
            self._state.notify(len(claims))
        for claimed in over:  # no thread could be started, and nobody renews what waits here
            with suppress(Exception, LeaseLost, WriteFailed):
                hand_back(claimed)

    def _takers(self) -> int:
        """How many threads will take something out of the queue without an execution in between."""
        return len(self._threads - self._running.keys())

    def _start_for_queue(self) -> None:
        for _ in range(min(len(self._queue) - self._takers(), get_settings().THREADS - 1 - len(self._threads))):
            self._start()

    # In the helpers -----------------------------------------------------------------------------------------------------

    def _help(self) -> None:
        me = threading.current_thread()
        try:
            claimed = self._next(rested=True)
            while claimed is not None:
                contextvars.Context().run(self._execute, claimed)
                with self._state:
                    if me not in self._threads:
                        return  # it was given up; another one has taken its place
                    del self._running[me]
                    self._state.notify_all()
                claimed = self._again() or self._next(rested=False)
        except BaseException:
            logger.exception("A helper thread ends by an error of the engine")
        finally:
            self._leave(me)
            connections.close_all()

    def _leave(self, me: threading.Thread) -> None:
        """The thread ends, by whatever: others do what it would have done."""
        with self._state:
            self._threads.discard(me)
            self._lost.discard(me)
            self._running.pop(me, None)
            if self._scout is me:
                self._scout = None
            if not self._closed:
                self._start_for_queue()
            self._state.notify_all()
            few = len(self._lost) <= _limit()
        if few:
            replacement.over("threads")

    def _execute(self, claimed: Claim) -> None:
        try:
            execute(claimed)
        except BaseException as error:  # a stop, which the thread that drains obeys; or what run() raised
            logger.info("%s left its thread by %s", claimed.label, type(error).__name__)

    def _again(self) -> Claim | None:
        """After an execution: look at once, one thread at a time."""
        finished = time.monotonic()
        with self._looking:
            with self._state:
                if self._queue or self._empty_at > finished or not self._may_claim():
                    return None
            return self._claim()

    def _claim(self) -> Claim | None:
        """Look as a free thread; a claim makes it a busy one."""
        me = threading.current_thread()
        with self._state:
            self._running[me] = 0
        claimed = None
        try:
            deliver(self._using)
            claimed, *_ = self.look(self._using)
        except Exception as error:
            logger.warning("A look for due work failed and is tried again: %r", error)
            connections.close_all()
        finally:
            with self._state:
                if claimed is None:
                    del self._running[me]
                    self._state.notify_all()
                else:
                    self._running[me] = claimed.lease.token
        return claimed

    def _next(self, *, rested: bool) -> Claim | None:
        """Wait for something to run; None: the process ends."""
        me = threading.current_thread()
        since, pause, warm = time.monotonic(), FIRST_PAUSE, not rested
        while True:
            with self._state:
                self._idle += 1
                try:
                    while not self._queue:
                        if self._closed:
                            return None
                        may = self._may_claim()
                        if self._scout is me and not may:
                            self._scout = None
                        if self._scout is None and may:
                            self._scout = me
                        if self._scout is me:
                            break
                        self._state.wait(max(WARM - (time.monotonic() - since), 0.01) if warm else None)
                        if warm and time.monotonic() - since >= WARM and not self._queue:
                            connections.close_all()
                            warm = False
                    if self._queue:
                        claimed = self._queue.popleft()
                        self._running[me] = claimed.lease.token
                        self._hand_over(me)
                        break
                finally:
                    self._idle -= 1
            pause = self._rest(pause)
            if self._due_to_look():
                found = self._claim()
                since, warm = time.monotonic(), True
                if found is not None:
                    with self._state:
                        self._hand_over(me)
                    return found
        if time.monotonic() - since > FRESH:
            _try_connections()
        return claimed

    def _hand_over(self, me: threading.Thread) -> None:
        """Who has looked goes into an execution; somebody else looks."""
        if self._scout is me:
            self._scout = None
            self._need_scout()

    def _due_to_look(self) -> bool:
        with self._state:
            return not self._queue and self._may_claim()

    def _rest(self, pause: float) -> float:
        """The pause between two looks; how long the next one shall be."""
        began = time.monotonic()
        end = began + pause
        with self._state:
            self._idle += 1
            try:
                while (left := end - time.monotonic()) > 0 and not self._queue and self._may_claim():
                    if self._wanted is not None and self._wanted():
                        break
                    self._state.wait(min(left, FIRST_PAUSE) if self._wanted is not None else left)
            finally:
                self._idle -= 1
        return FIRST_PAUSE if self._found_at >= began else min(2 * pause, LAST_PAUSE)

    # Lost threads and the end -------------------------------------------------------------------------------------------

    def _lose(self, attempt: Attempt) -> None:
        """The watcher has given up a body: its thread counts no longer, but not too many of them may hang around."""
        token = attempt.outcome.lease.token if attempt.outcome is not None else 0
        with self._state:
            if self._running.get(attempt.thread) != token:
                return  # it is no helper, or has come back meanwhile
            self._threads.discard(attempt.thread)
            self._lost.add(attempt.thread)
            del self._running[attempt.thread]
            self._state.notify_all()
            lost = len(self._lost)
        if lost > _limit():
            replacement.want("threads", f"{lost} of its threads are in step bodies that timed out and do not end.")

    def _close_at_exit(self) -> None:
        """Python waits for the helpers before it exits, and has by then ended the main thread."""
        threading.main_thread().join()
        shutdown.heed(lambda: True)  # what they execute is given back
        with self._state:
            self._closed = True
            self._state.notify_all()


def _limit() -> int:
    """How many threads may be lost before the process is replaced."""
    return max(get_settings().THREADS, LEAST_LIMIT)


def _try_connections() -> None:
    """After a rest: the database may have been restarted, and a body must not find that out (case OPS-07)."""
    for connection in connections.all(initialized_only=True):
        with suppress(Exception):  # else an instance that is claimed already would be lost with the thread
            if connection.connection is not None and not connection.is_usable():
                connection.close()


_pool: Pool | None = None
_making = threading.Lock()


def pool() -> Pool:
    """This process's pool; a new one after a fork, because threads do not survive it."""
    global _pool
    with _making:
        if _pool is None or _pool.pid != os.getpid():
            _pool = Pool()
        return _pool
