"""The database of the chaos test, and what happens to it: restarts, ended sessions, a held write lock."""

from __future__ import annotations

import random
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Protocol

import psycopg

from tests.support.postgres import Postgres

HELD_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 60.0


class Database(Protocol):
    """A database that can be disturbed. ``done`` counts what was done to it."""

    url: str
    done: Counter[str]

    def shake(self) -> None:
        """A small disturbance, now and then."""

    def restart(self) -> None:
        """The large one: some times in a run."""


class PostgresDatabase:
    """A throwaway server: sessions are ended, and the server is stopped at once (a crash to it) and started again."""

    def __init__(self, server: Postgres, url: str, dice: random.Random) -> None:
        self.url, self.done = url, Counter[str]()
        self._server, self._random = server, dice

    def shake(self) -> None:
        """End a random session of somebody else."""
        try:
            with psycopg.connect(self.url, autocommit=True) as connection:
                rows = connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY pid"
                ).fetchall()
                if rows:
                    connection.execute("SELECT pg_terminate_backend(%s)", self._random.choice(rows))
                    self.done["sessions"] += 1
        except psycopg.OperationalError:
            return  # it is starting

    def restart(self) -> None:
        """An immediate shutdown, a moment without a server, and a start."""
        process = self._server.process
        assert process is not None
        process.send_signal(signal.SIGQUIT)
        process.wait(ANSWER_SECONDS)
        time.sleep(self._random.uniform(0, 1))
        self._server.serve()
        self.done["restarts"] += 1


class SQLiteDatabase:
    """A file: somebody else holds its write lock for a second."""

    def __init__(self, path: Path) -> None:
        self.url, self.done = f"sqlite:///{path}", Counter[str]()
        self._path = path

    def shake(self) -> None:
        """Nothing small can happen to a file."""

    def restart(self) -> None:
        """Hold the write lock."""
        with closing(sqlite3.connect(self._path, timeout=ANSWER_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(HELD_SECONDS)
            connection.execute("ROLLBACK")
            self.done["held"] += 1


@contextmanager
def database(vendor: str, dice: random.Random) -> Iterator[Database]:
    """An empty database that lives as long as the block."""
    with tempfile.TemporaryDirectory(prefix="durableflow-chaos-", dir="/tmp") as home:
        if vendor == "sqlite":
            yield SQLiteDatabase(Path(home) / "chaos.sqlite3")
            return
        server = Postgres(Path(home))
        try:
            yield PostgresDatabase(server, server.start(), dice)
        finally:
            server.stop()
