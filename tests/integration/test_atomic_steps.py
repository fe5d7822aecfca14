"""``atomic=True``: what the body writes in the app's database and the checkpoint commit together (design 1.2, 6)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, OperationalError, connection, transaction

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.engine import atomic, steprun, steps, timeouts
from durableflow.models import StepRecord, WorkflowInstance
from tests.integration import con_flows
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import Gate, Task, child, eventually
from tests.support.ledger import Ledger

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


def atomic_flow(body: Any, **options: Any) -> type[Workflow[Any, Any]]:
    class AtomicFlow(Workflow[Any, Any]):
        class Meta:
            step_retries = Retries(limit=2, delay=0)

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.do("book", body, atomic=True, **options)

    return AtomicFlow


def state(row: WorkflowInstance) -> tuple[str, Any]:
    row.refresh_from_db()
    return row.status, row.output


def test_effect_and_checkpoint_are_one() -> None:
    seen: list[bool] = []

    def body() -> str:
        seen.append(connection.in_atomic_block)
        return Group.objects.create(name="booked").name

    row = atomic_flow(body).create()
    drain()
    assert state(row) == (Status.COMPLETE, "booked")
    assert seen == [True] and Group.objects.count() == 1


@pytest.mark.parametrize("moment", ["before_checkpoint", "before_commit", "after_commit"])
def test_a_killed_process_leaves_effect_and_checkpoint_or_neither(tmp_path: Path, moment: str) -> None:
    """Exactly once in the app's database, whenever the process dies; a real process, a real kill."""
    ledger = Ledger(tmp_path / "bodies")
    row = con_flows.Booking.create({"ledger": str(ledger.path)})
    with child("tests.integration.con_flows:run_and_die", moment) as process:
        process.wait(60)
        assert process.returncode == -9, process.communicate()[1]
    done = moment == "after_commit"
    assert Group.objects.filter(name="booked").count() == int(done)
    assert StepRecord.objects.filter(status="complete").count() == int(done)
    expire_leases()
    drain()
    assert state(row) == (Status.COMPLETE, "booked")
    assert Group.objects.filter(name="booked").count() == 1
    assert len(ledger.lines) == (1 if done else 2)
    assert len({line.split()[-1] for line in ledger.lines}) == 1, "one idempotency key"
    assert row.history.filter(type="attempt_lost").count() == int(not done)


def test_an_error_after_the_effect_rolls_it_back() -> None:
    def body() -> str:
        Group.objects.create(name="booked")
        if get_step_context().attempt == 1:
            raise ValueError("after the effect")
        return "ok"

    row = atomic_flow(body).create()
    drain()
    assert state(row) == (Status.COMPLETE, "ok")
    assert Group.objects.count() == 1
    failed = row.history.get(type="attempt_errored")
    assert failed.data["error"]["type"] == "ValueError", "recorded after the rollback, in a transaction of its own"


@pytest.mark.parametrize("caught", [False, True])
def test_an_integrity_error_in_the_body_fails_the_attempt(caught: bool) -> None:
    """Also one that the body swallows: what it broke cannot be committed."""
    Group.objects.create(name="taken")

    def body() -> str:
        if get_step_context().attempt > 1:
            return "second"
        Group.objects.create(name="booked")
        if not caught:
            Group.objects.create(name="taken")
        try:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO auth_group (name) VALUES ('taken')")
        except IntegrityError:
            transaction.set_rollback(True)
        return "first"

    row = atomic_flow(body).create()
    drain()
    assert state(row) == (Status.COMPLETE, "second")
    assert not Group.objects.filter(name="booked").exists()
    assert row.steps.get().attempts == 2


def test_a_constraint_that_fails_at_the_commit_fails_the_attempt() -> None:
    """Deferred constraints are checked at COMMIT, after body and checkpoint: neither may stay."""

    def body() -> str:
        if get_step_context().attempt == 1:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO auth_user_groups (user_id, group_id) VALUES (4711, 4711)")
            return "first"
        return "second"

    row = atomic_flow(body).create()
    drain()
    assert state(row) == (Status.COMPLETE, "second")
    assert row.history.get(type="attempt_errored").data["error"]["type"] == "django.db.utils.IntegrityError"
    assert row.steps.get().attempts == 2
    assert row.history.filter(type="step_completed").count() == 1


@pytest.mark.parametrize("swallow", [False, True])
def test_a_timeout_rolls_the_effect_back(swallow: bool) -> None:
    def body() -> str:
        if get_step_context().attempt > 1:
            return "second"
        Group.objects.create(name="booked")
        end = time.monotonic() + 30
        try:
            while time.monotonic() < end:
                Group.objects.count()
        except BaseException:
            if not swallow:
                raise
        return "first"

    row = atomic_flow(body, timeout=0.2).create()
    drain()
    assert state(row) == (Status.COMPLETE, "second")
    assert not Group.objects.exists()
    error = row.history.get(type="attempt_errored").data["error"]
    assert error["type"] == "durableflow.StepTimeout"


def time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the time of every attempt is over by the clock of deadlines; an alarm that is still set goes off."""
    late = SimpleNamespace(monotonic=lambda: time.monotonic() + 60)
    monkeypatch.setattr(timeouts, "time", late)
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.raise_signal(signal.SIGALRM)


def test_the_timeout_never_hits_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is the body's: a slow COMMIT after it is not cut off, and counts."""
    original = atomic._renew

    def slow(lease: Any) -> float:
        time_is_over(monkeypatch)
        return original(lease)

    monkeypatch.setattr(atomic, "_renew", slow)
    row = atomic_flow(lambda: Group.objects.create(name="booked").name, timeout=5).create()
    drain()
    assert state(row) == (Status.COMPLETE, "booked")
    assert row.steps.get().attempts == 1 and Group.objects.count() == 1


@pytest.mark.sqlite_only
def test_a_long_timeout_is_refused_on_sqlite() -> None:
    """Design 6: it keeps everybody else from writing, the renewal too."""
    row = atomic_flow(lambda: "x", timeout=30).create()
    drain()
    assert state(row)[0] == Status.ERRORED
    assert row.error is not None and row.error["type"] == "durableflow.InvalidConfig"
    assert "'book" in row.error["message"] and "timeout" in row.error["message"]
    row = atomic_flow(lambda: get_step_context().config["timeout"]).create()
    drain()
    assert state(row) == (Status.COMPLETE, 5.0), "the default is shortened silently"


def test_it_renews_the_lease_with_its_commit() -> None:
    """The renewal cannot write on SQLite meanwhile; the next body must not find its lease too old."""
    ends: list[Any] = []
    ages: list[float] = []

    class Twice(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            lease = step._runtime.lease  # type: ignore[attr-defined]
            lease.renewed -= 10
            ends.append(WorkflowInstance.objects.get().wake_at)
            step.do("one", lambda: None, atomic=True)
            ends.append(WorkflowInstance.objects.get().wake_at)
            ages.append(time.monotonic() - lease.renewed)

    Twice.create()
    drain()
    assert ends[1] > ends[0]
    assert ages[0] < 9


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, *, after: bool) -> Iterator[list[str]]:
    """Let the first call of a function of the engine fail as a lost connection does, before or after its work."""
    original, calls = getattr(module, name), []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        value = original(*args, **kwargs) if after or len(calls) > 1 else None
        if len(calls) == 1:
            raise OperationalError("server closed the connection unexpectedly")
        return value

    with monkeypatch.context() as patch:
        patch.setattr(module, name, wrapped)
        yield calls


@pytest.mark.parametrize(
    ("module", "name"), [(steprun, "write_step"), (atomic, "_renew"), (atomic, "write_transaction")]
)
def test_a_database_error_in_our_own_statements_is_no_failed_attempt(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    """Design 4: infrastructure errors never count as attempts; everything was rolled back, so it is made again."""
    bodies_run: list[int] = []

    def body() -> str:
        bodies_run.append(get_step_context().attempt)
        return Group.objects.create(name="booked").name

    row = atomic_flow(body).create()
    with failing(monkeypatch, module, name, after=False) as calls:
        drain()
    assert len(calls) > 1 and set(bodies_run) == {1}
    assert state(row) == (Status.COMPLETE, "booked")
    assert Group.objects.count() == 1 and row.steps.get().attempts == 1
    assert not row.history.filter(type="attempt_errored").exists()


def test_a_commit_whose_answer_is_lost_has_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record tells: nothing runs again."""
    bodies_run: list[int] = []
    original, answered = atomic.write_transaction, []

    @contextmanager
    def lost(using: str) -> Iterator[None]:
        with original(using):
            yield
        if not answered:
            answered.append(True)
            raise OperationalError("server closed the connection unexpectedly")

    def body() -> str:
        bodies_run.append(1)
        return Group.objects.create(name="booked").name

    monkeypatch.setattr(atomic, "write_transaction", lost)
    row = atomic_flow(body).create()
    drain()
    assert answered and bodies_run == [1]
    assert state(row) == (Status.COMPLETE, "booked")
    assert Group.objects.count() == 1


def test_without_retries_its_body_starts_at_most_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """``retries=0`` is the stronger promise: then a failed statement of ours fails the step."""
    bodies_run: list[int] = []
    row = atomic_flow(lambda: bodies_run.append(1), retries=0).create()
    original, calls = atomic._renew, []

    def broken(lease: Any) -> float:
        calls.append(1)
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(atomic, "_renew", broken)
    drain()
    assert bodies_run == [1] and original is not broken
    assert state(row)[0] == Status.ERRORED


@pytest.mark.postgresql_only
def test_a_long_transaction_of_somebody_else_costs_it_no_attempt(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The fence meets a row that a user's transaction holds FOR UPDATE."""
    monkeypatch.setattr(steps, "TIMEOUT", steps.TIMEOUT.replace("5s", "50ms"))
    steps._postgres_sql.cache_clear()
    request.addfinalizer(steps._postgres_sql.cache_clear)
    held, waiting = Gate(), []

    def body() -> str:
        waiting.append(1)
        return Group.objects.create(name="booked").name

    row = atomic_flow(body).create()

    def hold() -> None:
        with transaction.atomic():
            WorkflowInstance.objects.select_for_update().get(pk=row.pk)
            held.stop_here()

    original = steprun.write_step
    holders: list[Task] = []

    def first_hold(*args: Any, **kwargs: Any) -> Any:
        if not holders:
            holders.append(Task(hold))
            held.wait_until_reached()
        elif len(waiting) > 1:
            held.open()
            holders[0].join()
        return original(*args, **kwargs)

    monkeypatch.setattr(steprun, "write_step", first_hold)
    drain()
    eventually(lambda: holders[0].done)
    assert state(row) == (Status.COMPLETE, "booked")
    assert Group.objects.count() == 1 and row.steps.get().attempts == 1
