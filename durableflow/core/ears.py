"""What hears of commits in one database, on a connection of its own: LISTEN on PostgreSQL, ``PRAGMA data_version`` on
SQLite. Each belongs to the one thread that opens it."""

from __future__ import annotations

import select
import time
from typing import Any, Final, Protocol

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from durableflow.core.notices import CHANNEL

SQLITE_TICK: Final = 0.02
EVERYBODY: Final = ""
"""The payload that means every instance."""


class Ear(Protocol):
    """Hears notices. All but ``close`` raise what the database raises. ``tested``: whether marks give notices, by which it
    shows that it hears."""

    tested: bool

    def open(self) -> None:
        """Connect: what is committed after this call is heard."""

    def hear(self, seconds: float) -> list[str]:
        """The payloads of notices that are here, or that come within ``seconds``."""

    def close(self) -> None:
        """Close the connection, if there is one."""


class PostgresEar:
    """LISTEN over the connection settings of ``listen_on`` (the database itself, perhaps past a pooler)."""

    tested = True

    def __init__(self, listen_on: str) -> None:
        self._listen_on = listen_on
        self._wrapper: BaseDatabaseWrapper | None = None

    def open(self) -> None:
        """LISTEN."""
        self.close()
        wrapper = connections[self._listen_on].copy()
        wrapper.settings_dict["OPTIONS"].pop("pool", None)
        wrapper.settings_dict["OPTIONS"].setdefault("application_name", "durableflow follow")
        wrapper.settings_dict["OPTIONS"].setdefault("connect_timeout", 5)
        wrapper.settings_dict["AUTOCOMMIT"] = True
        self._wrapper = wrapper
        with wrapper.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")

    def hear(self, seconds: float) -> list[str]:
        """Wait for the socket alone: the driver's own wait is many short ones."""
        if self._wrapper is None:
            return []
        raw: Any = self._wrapper.connection
        with self._wrapper.wrap_database_errors:
            found = _arrived(raw)
            if not found and _readable(raw, seconds):
                found = _arrived(raw)
        return found

    def close(self) -> None:
        """Close it."""
        if self._wrapper is not None:
            self._wrapper.close()
            self._wrapper = None


def _arrived(raw: Any) -> list[str]:
    # Until one call gives nothing: the driver may keep back what it has read along with the first.
    found: list[str] = []
    while payloads := [note.payload for note in raw.notifies(timeout=0, stop_after=1)]:
        found += payloads
    return found


def _readable(raw: Any, seconds: float) -> bool:
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(1000 * seconds))


class SqliteEar:
    """Looks at ``data_version``, which changes when another connection has committed; reading it takes no lock."""

    tested = False

    def __init__(self, using: str) -> None:
        self._using = using
        self._wrapper: BaseDatabaseWrapper | None = None
        self._version = 0

    def open(self) -> None:
        """Connect."""
        self.close()
        self._wrapper = connections[self._using].copy()
        self._wrapper.ensure_connection()
        self._version = self._read()

    def hear(self, seconds: float) -> list[str]:
        """Wait for a commit of anybody."""
        end = time.monotonic() + seconds
        while (version := self._read()) == self._version:
            left = end - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(SQLITE_TICK, left))
        self._version = version
        return [EVERYBODY]

    def close(self) -> None:
        """Close it."""
        if self._wrapper is not None:
            self._wrapper.close()
            self._wrapper = None

    def _read(self) -> int:
        wrapper: Any = self._wrapper
        with wrapper.wrap_database_errors:
            return int(wrapper.connection.execute("PRAGMA data_version").fetchone()[0])
