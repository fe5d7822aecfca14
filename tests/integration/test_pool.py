"""The bookkeeping of the pool of helper threads, and what may go wrong in it (design 4, "A drain"; OPS-08)."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest
from django.db import OperationalError, connection

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.core.conf import get_settings
from durableflow.engine import drain as drains
from durableflow.engine import pool as pools
from durableflow.engine import replacement, shutdown, watcher
from durableflow.engine.attempts import Attempt
from durableflow.engine.journal import Identity
from durableflow.engine.lease import Lease
from durableflow.models import StepRecord, WorkflowInstance
from tests.integration.test_threads import THREADS, finished, flow, pool  # noqa: F401  the fixture
from tests.support.concurrency import PATIENCE, Gate, Task, child, eventually, finish
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def everything_runs(count: int) -> None:
    """So many new instances are executed."""
    quick = flow(lambda _number: "done")
    rows = [quick.create(number) for number in range(count)]
    eventually(lambda: drain(1) + 1 and all(drained(row).status == S.COMPLETE for row in rows))


def test_a_helper_that_dies_of_our_own_error_is_missed_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was the one that looks: another one does, and what it counted for is free again."""
    original, errors = pools.Pool._rest, [ValueError("wrong")]

    def rest(self: Any, pause: float) -> float:
        if errors:
            raise errors.pop()
        return original(self, pause)

    monkeypatch.setattr(pools.Pool, "_rest", rest)
    gate = Gate()
    cls = flow(lambda number: gate.stop_here() if number == 0 else "done")
    cls.create(0)

    def later() -> None:
        gate.wait_until_reached()
        eventually(lambda: not errors)
        cls.create(1)
        cls.create(2)

    Task(later)
    opener = Task(lambda: (gate.wait_until_reached(), eventually(lambda: not errors), gate.open()))
    drain(0.1)
    opener.result()
    eventually(lambda: drain(1) + 1 and finished() == 3)
    assert "by an error of the engine" in caplog.text
    made = pools.pool()
    eventually(lambda: made.busy() == 0 and made._free() == THREADS - 1)
    everything_runs(2 * THREADS)


def test_a_thread_that_came_back_before_it_was_given_up_is_kept(pool: pools.Pool) -> None:  # noqa: F811
    """The watcher may be slow between its decision and the pool: by then the thread executes another instance."""
    identity = Identity("", "do", "work", 1)
    ours = threading.current_thread()

    class Outcome:
        lease = Lease("default", 1, 17, "a/b", 0.0)

    attempt = Attempt(identity, 1, Outcome())  # type: ignore[arg-type]
    pool._threads.add(ours)
    pool._running[ours] = 18
    pool._lose(attempt)
    assert (pool._running, pool._lost) == ({ours: 18}, set())
    pool._running[ours] = 17
    pool._lose(attempt)
    assert (pool._running, pool._lost, ours in pool._threads) == ({}, {ours}, False)
    pool._lost.clear()


def test_each_drain_that_is_open_counts(pool: pools.Pool) -> None:  # noqa: F811
    """Two threads drain: the end of one does not take the helpers from the other."""
    with pool.draining("default", 0, None):
        with pool.draining("default", 0, None):
            pass
        assert pool._may_claim()
    assert not pool._may_claim()


def test_where_no_thread_can_be_started_nothing_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was claimed for threads that do not come is given back at once, not after its lease."""
    original = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name == "durableflow-helper":
            raise RuntimeError("can't start new thread")
        original(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    seen: set[str] = set()
    cls = flow(lambda _number: seen.add(threading.current_thread().name))
    rows = [cls.create(number) for number in range(2 * THREADS)]
    drain(30)
    for row in rows:
        row.refresh_from_db()
    assert {(row.status, row.interruptions) for row in rows} == {(S.COMPLETE, 0)}
    assert seen == {threading.current_thread().name}


@pytest.mark.postgresql_only
def test_connections_killed_during_a_body_in_a_helper() -> None:
    """OPS-07: the body's own statement fails, which is an attempt; all the rest goes on with new connections."""
    barrier = threading.Barrier(THREADS)
    helpers: list[int] = []
    attempts: list[int] = []

    def body(number: int) -> int:
        attempts.append(number)
        if attempts.count(number) == 1:
            barrier.wait(PATIENCE)
            if threading.current_thread() is not threading.main_thread():
                helpers.append(number)
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return WorkflowInstance.objects.count()

    cls = flow(body, retries=Retries(limit=1, delay=0))
    rows = [cls.create(number) for number in range(THREADS)]
    eventually(lambda: drain(1) + 1 and all(drained(row).status == S.COMPLETE for row in rows))
    assert len(helpers) == THREADS - 1
    assert sorted(row.steps.get().attempts for row in rows) == [1, *[2] * (THREADS - 1)]
    assert {(row.output, row.interruptions) for row in rows} == {(THREADS, 0)}


def test_too_many_lost_threads_have_the_process_replaced(
    pool: pools.Pool,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    """OPS-08: threads and connections are bounded; above the limit no new work is taken, with one line that says why."""
    over = threading.Event()
    request.addfinalizer(over.set)  # before the pool's own end, which waits for its threads

    def body(_number: int) -> str:
        if threading.current_thread() is threading.main_thread():
            return "done"
        WorkflowInstance.objects.count()
        over.wait(PATIENCE)  # in C code: no exception gets there
        return "late"

    cls = flow(body, timeout=0.3, retries=0)
    made = 0
    while not replacement.wanted():
        assert made < 100
        for _ in range(THREADS):
            cls.create(made)
            made += 1
        drain(0.5)
        eventually(lambda: pool.busy() == 0, "those that took one are given up")
    lost = len(pool._lost)
    assert lost == pools._limit() + 1 or lost <= pools._limit() + THREADS - 1
    assert threads() <= lost + THREADS
    eventually(lambda: told(caplog) == 1)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
            )
            assert cursor.fetchone()[0] <= threads() + 4
    waiting = cls.create(1000)
    assert drain(1) == 0
    waiting.refresh_from_db()
    assert waiting.status == S.QUEUED
    assert told(caplog) == 1
    over.set()
    eventually(lambda: not pool._lost and not replacement.wanted())
    everything_runs(2)


def told(caplog: pytest.LogCaptureFixture) -> int:
    return sum("in step bodies that timed out" in record.getMessage() for record in caplog.records)


def threads() -> int:
    return sum(thread.name == "durableflow-helper" for thread in threading.enumerate())


def test_a_process_whose_drains_all_fail_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its claims would cost an instance an interruption. Outages are everybody's; a drain that works is a new start."""
    wanted: list[str] = []
    errors: list[Exception | None] = []

    def fail(*_args: Any) -> int:
        error = errors.pop(0)
        if error is not None:
            raise error
        return 0

    monkeypatch.setattr(drains, "_drain", fail)
    monkeypatch.setattr(drains, "_failures", [])
    monkeypatch.setattr(replacement, "_allowed", os.getpid())
    monkeypatch.setattr(replacement, "want", lambda cause, reason: wanted.append(f"{cause}: {reason}"))

    def drain_with(*given: Exception | None) -> None:
        for error in given:
            errors.append(error)
            try:
                drain(0)
            except Exception as raised:
                assert raised is error

    wrong, away = TypeError("wrong"), OperationalError("away")
    drain_with(*[away] * (2 * drains.MOST_FAILURES))
    drain_with(*[wrong] * (drains.MOST_FAILURES - 1), None, *[wrong] * (drains.MOST_FAILURES - 1))
    assert wanted == []
    drain_with(wrong)
    assert len(wanted) == 1 and "drains in a row have failed, at last by TypeError('wrong')" in wanted[0]


leaves = threading.Event()


# Whole processes --------------------------------------------------------------------------------------------------------


class Paired(Workflow[int, str]):
    """Two steps; those with a positive number say that they are in the first, and stay there until a process that leaves ends."""

    class Meta:
        name = "paired"

    def run(self, event: WorkflowEvent[int], step: Step) -> str:
        step.do("first", self.first, event.params)
        return step.do("second", threading.current_thread().name.partition("-")[0].lower)

    def first(self, stays: int) -> None:
        if stays and threading.current_thread() is not threading.main_thread():
            sys.stdout.write("in a helper\n")
            sys.stdout.flush()
            eventually(lambda: shutdown.requested() or not leaves.is_set())


def drain_in_threads(what: str) -> None:
    """A process with a pool that ends, forks, or is interrupted."""
    object.__setattr__(get_settings(), "THREADS", 2)
    leaves.set()
    if what == "fork":
        drain(1)
        made = pools.pool()
        pid = os.fork()
        if pid == 0:
            connection.close()
            drain(1)
            os._exit(0 if pools.pool() is not made and watcher.watcher().pid == os.getpid() else 1)
        assert os.waitpid(pid, 0)[1] == 0
    elif what == "interrupt":
        while True:
            drain(5)
    else:
        drain(0.1)
    sys.stdout.write("the end\n")


def goes_on() -> None:
    """What the process left goes on here at once, and no body has run twice."""
    eventually(lambda: drain(1) + 1 and not WorkflowInstance.objects.exclude(status=S.COMPLETE).exists())
    assert set(StepRecord.objects.values_list("attempts", flat=True)) == {1}


def test_a_process_with_idle_helpers_ends() -> None:
    """Helpers are no daemons, and yet Python does not wait for them for ever."""
    for _ in range(4):
        Paired.create(0)
    with child("tests.integration.test_pool:drain_in_threads", "end") as process:
        assert finish(process).endswith("the end\n")
    goes_on()


def test_a_process_with_busy_helpers_ends_after_their_bodies() -> None:
    """What they are in is finished and stored; the instances are given back at their next durable call."""
    for _ in range(4):
        Paired.create(1)
    with child("tests.integration.test_pool:drain_in_threads", "end") as process:
        out = finish(process)
    assert "in a helper" in out
    rows = list(WorkflowInstance.objects.all())
    assert {(row.status in (S.QUEUED, S.COMPLETE), row.interruptions, row.lease_token) for row in rows} == {
        (True, 0, None)
    }
    assert [row for row in rows if row.status == S.QUEUED and row.steps.filter(name="first").exists()], "was cut"
    goes_on()


def test_ctrl_c_gives_back_what_the_helpers_execute() -> None:
    """CON-12: in ``manage.py durableflow drain``; no lease has to end by itself."""
    for _ in range(4):
        Paired.create(1)
    with child("tests.integration.test_pool:drain_in_threads", "interrupt") as process:
        assert process.stdout is not None
        assert "in a helper" in process.stdout.readline()
        process.send_signal(2)
        process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    rows = WorkflowInstance.objects.all()
    assert {(row.interruptions, row.lease_token) for row in rows} == {(0, None)}
    goes_on()


def test_a_forked_process_has_a_pool_of_its_own() -> None:
    """Threads do not survive a fork."""
    for _ in range(4):
        Paired.create(0)
    with child("tests.integration.test_pool:drain_in_threads", "fork") as process:
        assert finish(process).endswith("the end\n")
    goes_on()
