"""How the pusher waits: until something is committed, a drain has begun, or the time is over (design 4, "Hint")."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

TICK: Final = 0.01
"""Seconds between two glances at what gives no sign of itself."""


class Listener(Protocol):
    """What tells the pusher of commits in one database. It belongs to one process, and opens its connection when it is
    first armed."""

    def arm(self) -> None:
        """Called before each look: whatever is committed after this call ends the next ``wait``."""

    def wait(self, seconds: float, until: Callable[[], bool] | None = None, every: float = TICK) -> bool:
        """Wait for ``seconds`` at most; True if something was committed. Returns False early once ``until()`` is
        true, which is asked ``every`` so many seconds."""

    def close(self) -> None:
        """Close the connection; the next ``arm`` opens it again."""


class Poller:
    """Hears nothing: for an SQLite database in memory, which no other process can change."""

    def arm(self) -> None:
        """Nothing to note."""

    def wait(self, seconds: float, until: Callable[[], bool] | None = None, every: float = TICK) -> bool:
        """Wait for the time, or for ``until``."""
        pause(seconds, until, every)
        return False

    def close(self) -> None:
        """Nothing to close."""


def pause(seconds: float, until: Callable[[], bool] | None = None, every: float = TICK) -> None:
    """Sleep for ``seconds``, or until ``until()`` is true."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not (until and until()):
        time.sleep(min(every, left) if until else left)
