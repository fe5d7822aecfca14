"""What the cluster says is said once, and stands alone on its line."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest

from durableflow.cluster import run, status
from durableflow.cluster.status import shows_on, wipe_behind


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """A logger without handlers, in place of the cluster's."""
    made = logging.Logger("cluster")
    monkeypatch.setattr(run, "logger", made)
    yield made
    for handler in made.handlers:
        handler.close()


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TextIO]:
    """Standard error goes to this file."""
    with (tmp_path / "stderr").open("w+") as file:
        monkeypatch.setattr(run, "sys", SimpleNamespace(stderr=file))
        yield file


def text(file: TextIO) -> str:
    file.flush()
    return Path(file.name).read_text()


def test_a_log_that_goes_to_stderr_says_it_once(log: logging.Logger, stderr: TextIO) -> None:
    log.addHandler(logging.StreamHandler(stderr))
    run._say("It stood still.")
    assert text(stderr) == "It stood still.\n"


def test_a_log_of_the_same_file_says_it_once(log: logging.Logger, stderr: TextIO) -> None:
    """As with ``2>> cluster.log`` and a handler for cluster.log, or stdout and stderr of one terminal."""
    log.addHandler(logging.FileHandler(stderr.name))
    run._say("It stood still.")
    assert text(stderr) == "It stood still.\n"


def test_a_log_that_goes_elsewhere_is_not_all(log: logging.Logger, stderr: TextIO, tmp_path: Path) -> None:
    log.addHandler(logging.FileHandler(tmp_path / "log"))
    run._say("It stood still.")
    assert text(stderr) == (tmp_path / "log").read_text() == "It stood still.\n"


def test_a_log_that_drops_it_is_not_all(log: logging.Logger, stderr: TextIO) -> None:
    handler = logging.StreamHandler(stderr)
    handler.setLevel(logging.CRITICAL + 1)
    log.addHandler(handler)
    run._say("It stood still.")
    assert text(stderr) == "It stood still.\n"


def test_a_log_without_a_handler_goes_to_stderr(log: logging.Logger) -> None:
    """Python's last resort."""
    assert shows_on(sys.stderr, log, logging.CRITICAL)
    assert not shows_on(sys.stderr, logging.Logger("silent", logging.CRITICAL + 1), logging.CRITICAL)


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_nothing_of_the_live_line_stands_behind_a_line_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's line is the shorter one."""
    terminal = Terminal()
    handler, other = logging.StreamHandler(terminal), logging.StreamHandler(io.StringIO())
    monkeypatch.setattr(status, "_handlers", lambda _log: [handler, other])
    wipe_behind(terminal)
    assert (handler.terminator, other.terminator) == ("\x1b[K\n", "\n")


def test_where_no_live_line_is_nothing_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.StreamHandler(Terminal())
    monkeypatch.setattr(status, "_handlers", lambda _log: [handler])
    wipe_behind(io.StringIO())
    assert handler.terminator == "\n"
