"""What the main process does with the leases of workers that died with their cluster."""

from __future__ import annotations

import threading
import time

import pytest
from django.db import OperationalError

from durableflow.cluster import run
from durableflow.cluster.run import Cluster
from durableflow.cluster.table import Table


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
