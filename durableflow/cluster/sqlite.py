"""Hearing of commits on SQLite: ``PRAGMA data_version`` changes when another connection has committed, and reading it
takes no lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from django.db import connections

from durableflow.cluster.listening import TICK

_VERSION: Final = "PRAGMA data_version"


class SqliteListener:
    """Looks at ``data_version`` every 10 ms, on a connection of its own (its own commits would not show)."""

    def __init__(self, using: str) -> None:
        self._wrapper = connections[using].copy()
        self._version = 0

    def arm(self) -> None:
        """Remember the version; the connection is opened at the first call."""
        self._version = self._read()

    def wait(self, seconds: float, until: Callable[[], bool] | None = None, every: float = TICK) -> bool:
        """Wait until the version differs from the one at ``arm``."""
        now = time.monotonic()
        end, ask_at = now + seconds, now
        # The bare loop: an idle cluster does little else.
        with self._wrapper.wrap_database_errors:
            read = self._raw().execute
            while now < end:
                if until and now >= ask_at:
                    if until():
                        return False
                    ask_at = now + every
                time.sleep(min(TICK, end - now))
                if read(_VERSION).fetchone()[0] != self._version:
                    return True
                now = time.monotonic()
        return False

    def close(self) -> None:
        """Close the connection."""
        self._wrapper.close()

    def _raw(self) -> Any:
        self._wrapper.ensure_connection()
        return self._wrapper.connection

    def _read(self) -> int:
        with self._wrapper.wrap_database_errors:
            return int(self._raw().execute(_VERSION).fetchone()[0])
