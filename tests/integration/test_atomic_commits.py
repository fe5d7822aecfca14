"""The COMMIT of an atomic step whose answer is lost: what the body has written is there exactly once (design 1.2, OPS-07)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection

from durableflow import drain
from durableflow.engine import atomic
from durableflow.models import WorkflowInstance
from tests.integration.test_atomic_steps import atomic_flow, state
from tests.support.concurrency import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status
LOST = "server closed the connection unexpectedly"


def booking(bodies: list[str]) -> Callable[[], str]:
    """A body whose rows tell the calls apart."""

    def body() -> str:
        bodies.append(f"booked {len(bodies) + 1}")
        return Group.objects.create(name=bodies[-1]).name

    return body


@pytest.mark.parametrize("retries", [0, 2])
def test_the_database_is_away_when_the_record_is_asked(monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
    """Nothing is known then, so nothing is made again before the record has told."""
    write_transaction, run = atomic.write_transaction, atomic.run
    bodies: list[str] = []
    trouble: list[str] = []

    @contextmanager
    def lost(using: str) -> Iterator[None]:
        with write_transaction(using):
            yield
        if not trouble:
            trouble.append("commit")
            raise OperationalError(LOST)

    def away(using: str, sql: str, params: Any = ()) -> Any:
        if trouble == ["commit"]:
            trouble.append("record")
            raise OperationalError("connection refused")
        return run(using, sql, params)

    monkeypatch.setattr(atomic, "write_transaction", lost)
    monkeypatch.setattr(atomic, "run", away)
    row = atomic_flow(booking(bodies), retries=retries).create()
    drain()
    assert trouble == ["commit", "record"]
    assert bodies == ["booked 1"] == [group.name for group in Group.objects.all()]
    assert state(row) == (Status.COMPLETE, "booked 1")


@pytest.mark.postgresql_only
@pytest.mark.parametrize("retries", [0, 2])
def test_the_commit_is_still_on_its_way_when_the_record_is_asked(monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
    """That transaction holds the instance's row until it is done: the record is asked behind it."""
    write_transaction, run = atomic.write_transaction, atomic.run
    bodies: list[str] = []
    first: list[Any] = []
    committed = threading.Event()

    def commit() -> None:
        first[0].commit()
        first[0].close()
        committed.set()

    late = threading.Timer(0.3, commit)

    @contextmanager
    def lost(using: str) -> Iterator[None]:
        with write_transaction(using):
            yield
            if not first:
                first.append(connection.connection)
                connection.connection = None
                late.start()
                raise OperationalError(LOST)

    seen: list[bool] = []

    def asked(using: str, sql: str, params: Any = ()) -> Any:
        rows = run(using, sql, params)
        if sql.startswith("SELECT output"):
            seen.append(bool(rows))
        return rows

    monkeypatch.setattr(atomic, "write_transaction", lost)
    monkeypatch.setattr(atomic, "run", asked)
    row = atomic_flow(booking(bodies), retries=retries).create()
    drain()
    assert committed.wait(PATIENCE)
    assert seen == [True]
    assert bodies == ["booked 1"] == [group.name for group in Group.objects.all()]
    assert state(row) == (Status.COMPLETE, "booked 1")
