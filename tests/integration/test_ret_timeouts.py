"""Time limits of attempts and of whole instances, on a real database."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from durableflow import (
    Retries,
    drain,
    get_step_context,
)
from durableflow.engine.timeouts import Deadline
from durableflow.models import WorkflowInstance
from tests.integration.ret_flows import catching_timeouts
from tests.support.engine import drained, history_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


LONG = 20.0


def test_a_step_that_only_times_out_is_counted() -> None:
    """RET-02: three timed-out attempts, then a failure of timeout kind that run may catch; not stuck in running."""
    bodies: list[int] = []

    def body() -> None:
        bodies.append(get_step_context().attempt)
        time.sleep(LONG)

    instance = drained(catching_timeouts(body, retries=Retries(limit=2, delay=0), timeout=0.05).create())
    assert (instance.status, bodies) == (S.COMPLETE, [1, 2, 3])
    assert instance.output[0] == "timed out"
    assert "'work-1'" in instance.output[1] and "0.05 seconds" in instance.output[1]
    errors = history_of(instance, "attempt_errored")
    assert [(entry["attempt"], entry["error"]["type"]) for entry in errors] == [
        (number, "durableflow.StepTimeout") for number in (1, 2, 3)
    ]


def test_late_result_of_a_swallowed_interruption_is_dropped() -> None:
    """RET-04: the first attempt swallows its interruption and returns 'A' late; the result is the second one's 'B'."""

    def body() -> str:
        if get_step_context().attempt == 1:
            with suppress(BaseException):
                time.sleep(LONG)
            return "A"
        return "B"

    instance = drained(catching_timeouts(body, retries=Retries(limit=1, delay=0), timeout=0.3).create())
    assert (instance.status, instance.output) == (S.COMPLETE, "B")
    (first,) = history_of(instance, "attempt_errored")
    assert first["attempt"] == 1 and first["error"]["type"].endswith("StepTimeout")
    record = instance.steps.get()
    assert (record.attempts, record.output, record.error) == (2, "B", None)


def test_late_error_after_the_interruption_is_a_timeout() -> None:
    """RET-04: what the body raises after its time is over is the timeout's consequence, kept as its cause."""

    def body() -> None:
        try:
            time.sleep(LONG)
        except BaseException:
            raise ValueError("cleaning up failed") from None

    # So late that the body has entered its ``try``, on a busy machine too.
    instance = drained(catching_timeouts(body, retries=0, timeout=0.5).create())
    assert (instance.status, instance.output[0]) == (S.COMPLETE, "timed out")
    error = instance.steps.get().error
    assert error is not None and "cleaning up failed" in error["traceback"]


def test_late_result_in_a_thread_is_dropped() -> None:
    """RET-04: where no alarm can interrupt, a value that comes too late is dropped all the same."""

    def body() -> str:
        if get_step_context().attempt == 1:
            time.sleep(0.45)
            return "A"
        return "B"

    instance = catching_timeouts(body, retries=Retries(limit=1, delay=0), timeout=0.4).create()

    def work() -> None:
        try:
            drain(seconds=10)
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    instance = drained(instance)  # where the body slept so long that its thread was given up
    assert (instance.status, instance.output) == (S.COMPLETE, "B")


def test_open_block_of_an_interrupted_body_is_rolled_back() -> None:
    """Design 6: the next statement works, and nothing half-done stays."""

    def body() -> str:
        if get_step_context().attempt == 1:
            with transaction.atomic():
                Group.objects.create(name="half")
                time.sleep(LONG)
        return "done"

    instance = drained(catching_timeouts(body, retries=Retries(limit=1, delay=0), timeout=0.2).create())
    assert (instance.status, instance.output, Group.objects.count()) == (S.COMPLETE, "done", 0)


def test_interrupted_body_that_leaves_a_block_open() -> None:
    """Design 6: the open block of an interrupted body is rolled back; it is a timeout, not a refusal."""

    def body() -> str:
        if get_step_context().attempt == 1:
            transaction.atomic().__enter__()
            Group.objects.create(name="half")
            time.sleep(LONG)
        return "done"

    instance = drained(catching_timeouts(body, retries=Retries(limit=1, delay=0), timeout=0.2).create())
    assert (instance.status, instance.output, Group.objects.count()) == (S.COMPLETE, "done", 0)
    assert connection.get_autocommit() and not connection.in_atomic_block


def running_sleeps() -> int:
    """How many bodies' queries the server is still busy with."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
            "AND query LIKE 'SELECT pg_sleep%'"
        )
        return int(cursor.fetchone()[0])


@pytest.mark.postgresql_only
@pytest.mark.parametrize("where", ["plain", "atomic block", "atomic step"])
def test_an_interrupted_query_leaves_a_working_connection(where: str) -> None:
    """Design 6, spike 4: psycopg leaves the connection ACTIVE: it is cancelled and closed, the next statement works."""

    def sleep() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(20)")

    def body() -> str:
        if get_step_context().attempt == 1:
            if where == "atomic block":
                with transaction.atomic():
                    sleep()
            sleep()
        return f"{Group.objects.count()} groups"

    began = time.monotonic()
    # On a busy machine the next attempt's query may take longer than its time too.
    cls = catching_timeouts(body, retries=Retries(limit=9, delay=0), timeout=0.2, atomic=where == "atomic step")
    instance = drained(cls.create())
    assert (instance.status, instance.output) == (S.COMPLETE, "0 groups")
    assert time.monotonic() - began < LONG / 2
    while running_sleeps():  # a cancelled one needs a moment to go
        assert time.monotonic() - began < LONG / 2
        time.sleep(0.01)


@pytest.mark.sqlite_only
def test_atomic_timeout_on_sqlite_is_bounded_by_the_lease(settings: Any) -> None:
    """Design 6: a longer one is refused by name; an inherited one is cut."""
    settings.DURABLEFLOW = {"LEASE": 9}
    instance = drained(catching_timeouts(lambda: 1, atomic=True, timeout=4).create())
    assert instance.status == S.ERRORED
    assert instance.error is not None
    assert "'work-1': timeout" in instance.error["message"] and "3 seconds" in instance.error["message"]
    seen: list[float] = []
    drained(catching_timeouts(lambda: seen.append(get_step_context().config["timeout"]), atomic=True).create())
    assert seen == [3.0]


def test_atomic_step_that_times_out_writes_nothing() -> None:
    """Design 6: body and checkpoint are one transaction; the failed attempt is recorded after the rollback."""

    def body() -> str:
        Group.objects.create(name=f"attempt {get_step_context().attempt}")
        if get_step_context().attempt == 1:
            time.sleep(LONG)
        return "done"

    instance = drained(catching_timeouts(body, retries=Retries(limit=9, delay=0), timeout=0.3, atomic=True).create())
    assert (instance.status, instance.output) == (S.COMPLETE, "done")
    attempts = instance.steps.get().attempts
    assert attempts > 1
    assert list(Group.objects.values_list("name", flat=True)) == [f"attempt {attempts}"]
    assert types_of(instance).count("attempt_errored") == attempts - 1


def test_step_timeout_is_bounded() -> None:
    """RET-09: a time that no calendar has is refused by name."""
    instance = drained(catching_timeouts(lambda: 1, timeout="11 years").create())
    assert instance.status == S.ERRORED
    assert instance.error is not None and "'work': timeout" in instance.error["message"]


@pytest.mark.postgresql_only
def test_somebody_else_s_alarm_in_the_middle_of_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 6: django-q2's own timeout raises in a query: the attempt is recorded, the server stops."""

    class Theirs(Exception):
        pass

    def handle(number: int, frame: Any) -> None:
        raise Theirs

    def body() -> str:
        if get_step_context().attempt == 1:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(20)")
        return "done"

    arm, armed = Deadline._arm, list[Deadline]()

    def arm_after_theirs(self: Deadline) -> None:
        """Theirs is set just before ours, so that it goes off in the body."""
        if not armed:
            armed.append(self)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
        arm(self)

    monkeypatch.setattr(Deadline, "_arm", arm_after_theirs)
    before = signal.signal(signal.SIGALRM, handle)
    began = time.monotonic()
    try:
        instance = drained(catching_timeouts(body, retries=Retries(limit=1, delay=0)).create())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (instance.status, instance.output) == (S.COMPLETE, "done")
    (entry,) = history_of(instance, "attempt_errored")
    assert entry["error"]["type"].endswith("Theirs")
    while running_sleeps():
        assert time.monotonic() - began < LONG / 2
        time.sleep(0.01)
