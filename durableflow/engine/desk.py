"""What the thread of an event loop asks of the instance's thread (design 6, "Suspension, async").

The instance's thread has the database connection, so it answers durable calls, runs plain bodies and whatever user code gives
to ``sync_to_async``: code, ORM and checkpoints agree on one connection and one transaction.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

Work = Callable[[], None]


class Turn(NamedTuple):
    """In which order the instance's thread takes what it is asked. All but jobs wait until the loop rests: so the program has seen
    each answer before it gets the next one, in the first execution as in a replay. What is recorded comes before anything
    new, in the order in which it had ended (``rank``)."""

    stage: int
    rank: tuple[int, int] = (0, 0)


JOB: Final = Turn(0)
"""What user code gives to ``sync_to_async``: at once."""
END: Final = Turn(1)
"""A body has ended."""
NEW: Final = Turn(3)


def recorded(first: int = 0, second: int = 0) -> Turn:
    """The turn of what is recorded."""
    return Turn(2, (first, second))


class Desk:
    """What the instance's thread is asked to do. Any thread may ask; the instance's alone takes."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[tuple[Turn, Work] | None] = SimpleQueue()
        self._jobs: deque[Work] = deque()
        self._waiting: list[tuple[Turn, int, Work]] = []
        self._number = 0
        self.closed = False

    def ask(self, turn: Turn, work: Work) -> None:
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
                    self._sort_in(*item)
                item = self._inbox.get_nowait()
        except Empty:
            pass

    def _sort_in(self, turn: Turn, work: Work) -> None:
        if turn.stage == JOB.stage:
            self._jobs.append(work)
            return
        self._number += 1
        heapq.heappush(self._waiting, (turn, self._number, work))

    def take(self, *, settled: bool) -> Work | None:
        """What to do next. ``settled``: the loop rests."""
        if self._jobs:
            return self._jobs.popleft()
        if self._waiting and settled:
            return heapq.heappop(self._waiting)[2]
        return None

    def take_job(self) -> Work | None:
        """A job, and nothing else."""
        return self._jobs.popleft() if self._jobs else None

    def close(self) -> None:
        """Take nothing more, and keep nothing."""
        self.closed = True
        self.collect()
        self._jobs.clear()
        self._waiting.clear()

    def take_end(self) -> Work | None:
        """A job, or the end of a body."""
        if not self._jobs and self._waiting and self._waiting[0][0].stage == END.stage:
            return heapq.heappop(self._waiting)[2]
        return self.take_job()
