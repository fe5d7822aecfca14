"""How the pusher and the workers of one cluster agree on drains: by a few numbers in shared memory.

A row that is due stays due until it is claimed, so the pusher would hand out drains until django-q2's queue is full and
it is stuck in ``put``. Therefore at most one drain exists that no worker has begun (design 4, "django-q2").
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Final

STALE_AFTER: Final = 30.0
"""Seconds after which an unbegun drain is taken for lost: its worker may have died between taking and beginning it.
While all workers are simply busy it doubles, up to ``STALE_AT_MOST``: they shall not find a heap of drains later."""
STALE_AT_MOST: Final = 3600.0
FIRST_DELAY: Final = 0.02
LONGEST_DELAY: Final = 1.0


class Drains:
    """The drains of one cluster. The object must be made before the cluster forks: its memory is shared by
    inheritance."""

    def __init__(self) -> None:
        # Where processes are spawned, not forked, the pusher would wait for ever for a sign that it cannot see: there
        # the pace alone limits.
        self._shared = "fork" in multiprocessing.get_all_start_methods()
        self._handed_out = multiprocessing.RawValue("d", 0.0)
        self._fruitful = multiprocessing.RawValue("d", 0.0)
        self._stopping = multiprocessing.RawValue("b", 0)
        self._patience = STALE_AFTER

    # In the pusher

    def hand_out(self) -> None:
        """Note that a drain goes into the queue now."""
        lost = self._handed_out.value > 0
        self._patience = min(self._patience * 2, STALE_AT_MOST) if lost else STALE_AFTER
        self._handed_out.value = time.monotonic() if self._shared else 0.0

    def unbegun(self) -> bool:
        """Whether a drain is in the queue that no worker has begun."""
        at: float = self._handed_out.value
        return at > 0 and time.monotonic() - at < self._patience

    def age(self) -> float:
        """Seconds since the drain that nobody has begun was handed out."""
        at: float = self._handed_out.value
        return time.monotonic() - at if at else 0.0

    def fruitful_since(self, moment: float) -> bool:
        """Whether a drain that ended after ``moment`` (monotonic clock) had executed something."""
        return bool(self._fruitful.value >= moment)

    def executed_ago(self) -> float | None:
        """Seconds since a drain that had executed something ended; None: there was none."""
        at: float = self._fruitful.value
        return time.monotonic() - at if at else None

    def forget(self) -> None:
        """A new pusher knows of no drain; and one that a dead worker had taken is lost."""
        self._handed_out.value = 0.0

    # In a worker

    def begun(self) -> None:
        """The first thing a drain does: from now on the next one may be handed out."""
        self._handed_out.value = 0.0

    def fruitful(self) -> None:
        """A drain has executed something."""
        self._fruitful.value = time.monotonic()

    def stopping(self) -> bool:
        """Whether the cluster stops: a drain that is begun now would only prolong it."""
        return bool(self._stopping.value)

    # In the main process

    def stop(self) -> None:
        """The cluster stops."""
        self._stopping.value = 1


DRAINS: Final = Drains()


class Pace:
    """When the next drain may follow for a row that stays first due: 20 ms, doubling to 1 s, as long as drains find
    nothing to claim.

    Somebody else's transaction may hold that row; handing out drains all the time would not help.
    """

    def __init__(self, drains: Drains) -> None:
        self._drains = drains
        self.reset()

    def reset(self) -> None:
        """Nothing is due: whatever comes next may have its drain at once."""
        self._row: int | None = None
        self._sent_at = 0.0
        self._delay = FIRST_DELAY

    def heard(self) -> None:
        """Something has changed: a long delay is no longer justified."""
        self._delay = FIRST_DELAY

    def left(self, row: int) -> float:
        """Seconds until a drain may be handed out while ``row`` is first due; 0: now."""
        if row != self._row:
            return 0.0
        return max(0.0, self._sent_at + self._delay - time.monotonic())

    def next_look(self, row: int) -> float:
        """Seconds until it is worth looking again: soon at first (a worker is just claiming the row), then ever
        later."""
        left = self.left(row)
        return min(left, max(0.002, time.monotonic() - self._sent_at)) if left else 0.0

    def sent(self, row: int) -> None:
        """A drain is handed out while ``row`` is first due."""
        again = row == self._row and not self._drains.fruitful_since(self._sent_at)
        self._delay = min(self._delay * 2, LONGEST_DELAY) if again else FIRST_DELAY
        self._row, self._sent_at = row, time.monotonic()
