"""What the main process does with the leases of workers that died with their cluster, and with django-q2's log."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from django.db import OperationalError

from durableflow.cluster import run
from durableflow.cluster.run import Cluster
from durableflow.cluster.table import Table


def test_a_database_that_is_away_fills_no_log_with_tracebacks() -> None:
    """django-q2's scheduler and monitor write one for each of their tries."""
    for error, kept in ((OperationalError("the connection is closed"), False), (ValueError("no such hook"), True)):
        record = logging.LogRecord(
            "django-q", logging.ERROR, "", 0, "Could not %s", ("save",), (type(error), error, None)
        )
        assert run._QLog().filter(record)
        assert bool(record.exc_info) == kept
        assert record.getMessage() == ("Could not save" if kept else f"Could not save: {error}")


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A main process whose only worker is dead, without its signal handlers."""
    table = Table(1)
    table.leave(table.seat(11))
    monkeypatch.setattr(run, "TABLE", table)
    monkeypatch.setattr(run, "BURIAL", 0.3)
    return Cluster.__new__(Cluster)


def test_the_leases_are_expired(main: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the database answers only at the second try."""
    asked: list[list[int]] = []

    def expire(using: str, owners: list[int]) -> int:
        asked.append(owners)
        if len(asked) == 1:
            raise OperationalError("the database system is starting up")
        return 1

    monkeypatch.setattr(run, "expire", expire)
    main._bury()
    assert asked == [[11], [11]]


def test_a_database_that_never_answers_keeps_nobody(
    main: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection may hang for minutes, where packets are dropped."""
    over = threading.Event()
    monkeypatch.setattr(run, "expire", lambda using, owners: over.wait(60))
    began = time.monotonic()
    main._bury()
    over.set()
    assert time.monotonic() - began < 30
    assert "end by themselves" in caplog.text
