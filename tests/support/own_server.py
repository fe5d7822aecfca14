"""A PostgreSQL server of one test alone, which may go away and come back."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.core.management import call_command
from django.db import connections

from project.database import from_url
from tests.support.postgres import DATABASE, Postgres

ANSWER_SECONDS = 60.0
APP = "app"
"""The role of the cluster: unlike the superuser's, its number of connections can be limited."""


class OwnServer:
    """``url``: for the superuser, whom nothing locks out; ``app_url``: for the cluster."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self.url = server.start()
        self.app_url = self.url.replace("//postgres@", f"//{APP}@")

    def run(self, sql: str) -> None:
        """Execute a statement as superuser, on a connection of its own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql)

    def leave(self) -> None:
        """Stop at once: every session ends, and what was not on the disk is gone."""
        assert self._server.process is not None
        self._server.process.send_signal(signal.SIGQUIT)
        self._server.process.wait(ANSWER_SECONDS)

    def come_back(self) -> None:
        """Start, and wait until it answers."""
        self._server.serve()
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                self.run("SELECT 1")
                break
            except psycopg.OperationalError:
                assert time.monotonic() < end, "the server does not start"
                time.sleep(0.02)
        connections.close_all()  # those of the test were lost too

    def fill(self) -> None:
        """No connection is left for the cluster, and those that it has are ended."""
        self.run(f"ALTER ROLE {APP} CONNECTION LIMIT 0")
        self.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{APP}'")

    def empty(self) -> None:
        """There are connections again."""
        self.run(f"ALTER ROLE {APP} CONNECTION LIMIT -1")


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """A server with the project's tables, to which Django's default connection leads in this block."""
    before = connections["default"]
    with tempfile.TemporaryDirectory(prefix="durableflow-own-", dir="/tmp") as home:
        server = Postgres(Path(home))
        try:
            own = OwnServer(server)
            connections["default"] = before.copy()
            connections["default"].settings_dict.update(from_url(own.url))
            call_command("migrate", verbosity=0)
            own.run(f"CREATE ROLE {APP} LOGIN")
            own.run(f"ALTER DATABASE {DATABASE} OWNER TO {APP}")
            own.run(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {APP}")
            own.run(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {APP}")
            yield own
        finally:
            connections["default"].close()
            connections["default"] = before
            server.stop()
