"""Hearing of commits on SQLite: ``PRAGMA data_version`` changes when another connection has committed, and reading it
takes no lock."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import connections

from durableflow.cluster.listening import TICK


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
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if until and until():
                return False
            time.sleep(min(TICK, left))
            if self._read() != self._version:
                return True
        return False

    def close(self) -> None:
        """Close the connection."""
        self._wrapper.close()

    def _read(self) -> int:
        self._wrapper.ensure_connection()
        with self._wrapper.wrap_database_errors:
            row = self._wrapper.connection.execute("PRAGMA data_version").fetchone()
        return int(row[0])
