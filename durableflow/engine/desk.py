"""What the thread of an event loop asks of the instance's thread (design 6, "Suspension, async").

The instance's thread has the database connection, so it answers durable calls, runs plain bodies and whatever user code gives
to ``sync_to_async``: code, ORM and checkpoints agree on one connection and one transaction.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from queue import Empty, SimpleQueue
from typing import Final

UNSETTLED: Final = 0.05
"""Seconds for which a loop that never rests can hold up what waits for its rest."""


class Turn(IntEnum):
    """In which order the instance's thread takes what it is asked. All but ``NOW`` wait until the loop rests: a replay hands out
    recorded values first, then recorded errors, and only then begins something new, so that it comes to the same place as
    the execution before it whatever the timing."""

    NOW = 0
    VALUE = 1
    ERROR = 2
    NEW = 3


class Desk:
    """What the instance's thread is asked to do. Any thread may ask; the instance's alone takes."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[tuple[Turn, Callable[[], None]] | None] = SimpleQueue()
        self._turns: tuple[deque[Callable[[], None]], ...] = tuple(deque() for _turn in Turn)
        self._since = 0.0
        self.closed = False

    def ask(self, turn: Turn, work: Callable[[], None]) -> None:
        """Have ``work`` done."""
        self._inbox.put((turn, work))

    def ring(self) -> None:
        """Have the instance's thread look around."""
        self._inbox.put(None)

    def collect(self, wait: float = 0.0) -> None:
        """Take in what was asked meanwhile; waits for something for up to ``wait`` seconds."""
        try:
            item = self._inbox.get(timeout=wait) if wait else self._inbox.get_nowait()
            while True:
                if item is not None:
                    if not self._pending():
                        self._since = time.monotonic()
                    self._turns[item[0]].append(item[1])
                item = self._inbox.get_nowait()
        except Empty:
            pass

    def take(self, *, settled: bool) -> Callable[[], None] | None:
        """What to do next. ``settled``: the loop rests."""
        if self._turns[Turn.NOW]:
            return self._turns[Turn.NOW].popleft()
        if settled or (self._pending() and time.monotonic() - self._since > UNSETTLED):
            for waiting in self._turns:
                if waiting:
                    return waiting.popleft()
        return None

    def take_now(self) -> Callable[[], None] | None:
        """What cannot wait, and nothing else."""
        return self._turns[Turn.NOW].popleft() if self._turns[Turn.NOW] else None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not any(self._turns)

    def _pending(self) -> bool:
        return any(self._turns[turn] for turn in (Turn.VALUE, Turn.ERROR, Turn.NEW))
