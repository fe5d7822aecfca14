"""The COMMIT of an atomic step whose answer is lost, or that a timeout meets: what the body has written is there exactly once
(design 1.2, OPS-07)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper

from durableflow import drain
from durableflow.engine import atomic
from durableflow.models import WorkflowInstance
from tests.integration.test_atomic_steps import atomic_flow, state, time_is_over
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


def spin(seconds: float) -> None:
    """Pass the time in Python code, where an alarm can raise."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


# Where the alarm hits a finalizer, Python tells of it and goes on: the attempt has timed out all the same.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("late", [-0.004, -0.002, -0.001, -0.0005, -0.0002, 0, 0.0002, 0.0005, 0.001, 0.002])
def test_a_timeout_that_meets_the_end_of_the_body(late: float) -> None:
    """The alarm hits anywhere between the body's last line and the COMMIT, or just not: either the attempt has timed out and
    has written nothing, or it counts. Never both, never neither."""
    timeout, names = 0.03, iter(range(100))

    def body() -> str:
        name = f"booked {next(names)}"
        Group.objects.create(name=name)
        spin(timeout + late - (time.monotonic() - began[-1]))
        return name

    began: list[float] = []
    flow = atomic_flow(lambda: (began.append(time.monotonic()), body())[1], retries=0, timeout=timeout)
    outcomes: list[str] = []
    for _ in range(4):
        row = flow.create()
        drain()
        status, output = state(row)
        outcomes.append(str(status))
        step = row.steps.get()
        assert step.attempts == 1
        if status == Status.COMPLETE:
            assert [group.name for group in Group.objects.all()] == [output]
            assert (step.status, row.history.filter(type="step_completed").count()) == ("complete", 1)
        else:
            assert status == Status.ERRORED and row.error is not None and row.error["type"] == "durableflow.StepTimeout"
            assert not Group.objects.exists() and step.status == "failed"
        Group.objects.all().delete()
    assert len(outcomes) == 4 >= len(began)  # a busy machine's alarm may come before the body


def test_a_slow_commit_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of an attempt is over while the COMMIT itself is on its way: no alarm reaches it, and what it says counts."""
    commits: list[float] = []
    commit = BaseDatabaseWrapper._commit  # type: ignore[attr-defined]

    def slow(self: Any) -> None:
        if bodies and not commits:
            commits.append(time.monotonic())
            time_is_over(monkeypatch)
        commit(self)

    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", slow)
    bodies: list[str] = []
    row = atomic_flow(booking(bodies), timeout=5).create()
    drain()
    assert len(commits) == 1
    assert bodies == ["booked 1"] == [group.name for group in Group.objects.all()]
    assert state(row) == (Status.COMPLETE, "booked 1")
    assert row.steps.get().attempts == 1 and not row.history.filter(type="attempt_errored").exists()


@pytest.mark.postgresql_only
def test_a_commit_that_the_server_takes_long_for_counts() -> None:
    """The same with the server's own work at the COMMIT: a deferred trigger."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(2.1); RETURN NULL; END $$"
        )
        cursor.execute(
            "CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON auth_group DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION slow_commit()"
        )
    try:
        bodies: list[str] = []
        row = atomic_flow(booking(bodies), timeout=2).create()
        drain()
        assert bodies == ["booked 1"] == [group.name for group in Group.objects.all()]
        assert state(row) == (Status.COMPLETE, "booked 1")
        assert row.steps.get().attempts == 1
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION slow_commit CASCADE")
