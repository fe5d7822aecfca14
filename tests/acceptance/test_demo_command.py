"""``manage.py demo`` as a person runs it: a process of its own, on a database of its own, also when parts of it are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import connection

from project.database import to_url

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")


@pytest.fixture
def database_url(tmp_path: Path, django_db_blocker: Any) -> Iterator[str]:
    """An empty database of this test, of the kind that the other tests use."""
    if connection.vendor == "sqlite":
        yield f"sqlite:///{tmp_path / 'demo.sqlite3'}"
        return
    name = f"demo_{uuid4().hex}"
    with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        yield to_url({**connection.settings_dict, "NAME": name})
        cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def env(tmp_path: Path, database_url: str) -> Mapping[str, str]:
    """Everything the demo writes goes below ``tmp_path``, by which its processes are known too."""
    kept = {name: value for name, value in os.environ.items() if name not in ("AUTO", "BASE_URL", "DEBUG")}
    own = {"DJANGO_SETTINGS_MODULE": "project.settings", "DATABASE_URL": database_url, "VAR_DIR": str(tmp_path / "var")}
    return kept | own


class Running:
    """A demo that runs. Its output is read line by line."""

    def __init__(self, env: Mapping[str, str], *options: str) -> None:
        self._var = env["VAR_DIR"]
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "manage.py", "demo", *options],
            cwd=settings.BASE_DIR,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def until(self, pattern: str) -> re.Match[str]:
        """Read on to the first line that has the pattern."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern!r} never came:\n{self.output}")

    def processes(self, command: str = "") -> list[int]:
        """Its processes, itself included, whose command line holds ``command``."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment, arguments = (process / "environ").read_bytes(), (process / "cmdline").read_text()
            except OSError:
                continue
            if f"VAR_DIR={self._var}".encode() in environment.split(b"\0") and command in arguments:
                found.append(int(process.name))
        return sorted(found)

    def kill(self, command: str) -> None:
        """Kill everything that runs this command."""
        for pid in self.processes(command):
            with suppress(ProcessLookupError):  # it has ended with its parent
                os.kill(pid, signal.SIGKILL)

    def signal(self, signum: int) -> None:
        self._process.send_signal(signum)

    def end(self) -> int:
        """Read the rest and return the exit code, once it is sure that no process is left."""
        assert self._process.stdout is not None
        self.lines += self._process.stdout.readlines()
        code = self._process.wait(timeout=60)
        assert self.processes() == []
        return code

    def abandon(self) -> None:
        """However the test ended: nothing of it lives on."""
        self._process.kill()
        self.kill("")
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


Start = Callable[..., Running]


@pytest.fixture
def start(env: Mapping[str, str]) -> Iterator[Start]:
    """``start("--auto", DEMO_BANK_DELAY="3")``."""
    running: list[Running] = []

    def begin(*options: str, **extra: str) -> Running:
        running.append(Running({**env, **extra}, *options))
        return running[-1]

    yield begin
    for demo in running:
        demo.abandon()


def complete(demo: Running) -> str:
    """Its output, after it has ended well."""
    assert demo.end() == 0, demo.output
    assert "Both workflows are complete" in demo.output
    assert re.search(r"payment    pay_\w+: 31\.90 EUR, paid once", demo.output), demo.output
    return demo.output


def test_auto_completes_also_with_its_servers_killed_and_does_so_again(start: Start, tmp_path: Path) -> None:
    for run in (1, 2):
        demo = start("--auto")
        demo.until(f"image-{run}: started")
        if run == 1:
            demo.kill("runserver")
            demo.kill("durableflow_cluster")
        output = complete(demo)
        assert f"image-tagging image-{run}: complete" in output
        assert f"pay-cart cart-{run}: complete" in output
        for line in (r"tags       \w+ \d+%", r"thumbnail  thumbnails/\S+\.jpg", r"invoice    invoices/\S+\.txt"):
            assert re.search(line, output), line
        for server in ("web server", "cluster"):
            again = f"the {server} has ended (exit code -9): starting it again"
            assert (again in output) == (run == 1), output
        assert len(output.splitlines()) < 60
        assert "\x1b[" not in output
        assert "assword" not in output
    assert len(list((tmp_path / "var" / "mail").iterdir())) == 2
    assert len(list((tmp_path / "var" / "media" / "invoices").iterdir())) == 2


def test_a_failure_names_what_is_not_complete(start: Start) -> None:
    demo = start("--auto", "--seconds", "10", DEMO_BANK_FAILURES="1000")
    assert demo.end() == 1
    assert re.search(r"The demo failed\. Not complete in time: .*pay-cart cart-1 is \w+", demo.output), demo.output


def test_a_database_that_cannot_be_used_is_told(start: Start) -> None:
    demo = start("--auto", DATABASE_URL="postgresql:///nowhere?host=/nonexistent")
    assert demo.end() == 1
    assert "The demo failed. The database cannot be used: " in demo.output
    assert "Traceback" not in demo.output


def test_without_auto_it_shows_where_to_approve_and_stays_until_it_is_stopped(start: Start) -> None:
    demo = start()
    address = demo.until(r"http://\S+/admin/durableflow/pendingevent/\d+/change/").group()
    demo.until(r"user approver, password \S{12,}")
    with urlopen(address) as page:
        assert "/admin/login/" in page.url
    demo.signal(signal.SIGINT)
    assert demo.end() == 0


def test_a_signal_in_the_middle_leaves_no_process(start: Start) -> None:
    demo = start("--auto", DEMO_BANK_FAILURES="1000")  # it does not end by itself meanwhile
    demo.until("image-1: started")
    demo.signal(signal.SIGTERM)
    assert demo.end() == 128 + signal.SIGTERM


def calls_the_web_server(pid: int, port: int) -> bool:
    """Whether the process holds an open connection to ``port``."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if int(row[2].split(":")[1], 16) == port and row[3] == "01"}
    held = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held.add(os.readlink(descriptor))
        except OSError:  # closed meanwhile
            continue
    return bool(sockets & held)


def test_a_worker_killed_inside_the_charge_pays_once_and_repeats_no_finished_step(start: Start) -> None:
    demo = start("--auto", DEMO_BANK_DELAY="2")
    port = int(demo.until(r"Web server +http://\S+:(\d+)/").group(1))
    demo.until("'wait for checkout' complete")
    limit = time.monotonic() + 20
    busy: list[int] = []
    while not busy and time.monotonic() < limit:
        busy = [pid for pid in demo.processes("durableflow_cluster") if calls_the_web_server(pid, port)]
        time.sleep(0.05)
    assert len(busy) == 1
    os.kill(busy[0], signal.SIGKILL)
    output = complete(demo)
    assert re.search(r"'charge' complete, attempt [23]", output), output
    assert not re.search(r"'(save metadata|compute tags|store tags|mail invoice)' complete, attempt", output), output
