"""Things that a look does at times only."""

from __future__ import annotations

import os
import time
from typing import Any


class Pulse:
    """Says True at once and then each ``every`` seconds, in each process and for each database; also as soon as ``state``
    changes."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._last: dict[tuple[int, str], tuple[float, Any]] = {}

    def due(self, using: str, state: Any = None) -> bool:
        """Whether it is time again."""
        key, now = (os.getpid(), using), time.monotonic()
        last = self._last.get(key)
        if last is not None and now - last[0] < self._every and last[1] == state:
            return False
        self._last[key] = (now, state)
        return True

    def again(self, using: str) -> None:
        """Be due at the next question."""
        self._last.pop((os.getpid(), using), None)
