"""The event loop of one execution of an ``async def run``: it sees when nothing in it can go on by itself (design 6, "Suspension,
async")."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from django.db import connections

from durableflow.engine.timeouts import AttemptAbandoned

T = TypeVar("T")
OWN_DESCRIPTORS: Final = 1
"""The loop registers one end of a socket pair of its own, by which other threads wake it."""


class Rest(NamedTuple):
    """The loop waits. ``seen``: how many answers it had taken by then. ``quiet``: whether only an answer can wake it: no timer, no
    descriptor, no executor and no body (which has a timer) is under way."""

    seen: int
    quiet: bool


class Loop(asyncio.SelectorEventLoop):
    """An event loop that tells when it is about to wait. ``ring``: called then, in the loop's thread. ``turns``: how often it has
    looked for something to do."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.seen = 0
        self.turns = 0
        self.rest: Rest | None = None
        self._jobs = 0
        self._ring = ring
        self._polling = _Selector(self._begin_turn, self._begin_rest, self._end_rest)
        super().__init__(self._polling)
        self.set_default_executor(_ClosingPool(thread_name_prefix="durableflow-async"))

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """As asyncio's; counted until it is done."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._jobs += 1
        future.add_done_callback(self._job_done)
        return future

    def kept_by(self) -> str:
        """What keeps it awake, for people."""
        found = []
        if self._jobs:
            found.append("work in an executor")
        if self._descriptors() > OWN_DESCRIPTORS:
            found.append("an open connection")
        return " and ".join(found) or "a timer (asyncio.sleep, a timeout)"

    def _descriptors(self) -> int:
        return len(self._polling.get_map())

    def _job_done(self, _future: asyncio.Future[Any]) -> None:
        self._jobs -= 1

    def _begin_turn(self) -> None:
        self.turns += 1

    def _begin_rest(self, alone: bool) -> None:
        self.rest = Rest(self.seen, alone and not self._jobs)
        self._ring()

    def _end_rest(self) -> None:
        self.rest = None


class _Selector(selectors.DefaultSelector):
    """Tells when it is about to block, and whether only the loop's own descriptor can end that."""

    def __init__(self, turn: Callable[[], None], before: Callable[[bool], None], after: Callable[[], None]) -> None:
        super().__init__()
        self._turn, self._before, self._after = turn, before, after

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turn()
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self._before(timeout is None and len(self.get_map()) <= OWN_DESCRIPTORS)
        try:
            return super().select(timeout)
        finally:
            self._after()


class _ClosingPool(ThreadPoolExecutor):
    """For ``asyncio.to_thread``: its threads leave no connection behind."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        def job() -> T:
            try:
                return fn(*args, **kwargs)
            finally:
                connections.close_all()

        return super().submit(job)


class LoopThread(threading.Thread):
    """Runs a loop until it is stopped, and closes it. ``over``: called at the end, in this thread."""

    def __init__(self, loop: Loop, over: Callable[[], None]) -> None:
        super().__init__(name="durableflow-loop", daemon=True)
        self.loop = loop
        self._over = over

    def run(self) -> None:
        """See the class."""
        try:
            while not self._ran():
                pass
        finally:
            try:
                self.loop.close()
            finally:
                self._over()

    def _ran(self) -> bool:
        try:
            self.loop.run_forever()
        except (KeyboardInterrupt, SystemExit, AttemptAbandoned):
            return False  # of one task, which has it as its error: whoever awaits that task gets it
        return True
