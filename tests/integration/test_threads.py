"""Several instances at the same time in one process: the pool of helper threads (design 4, "A drain"; OPS-07, OPS-08)."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from django.db import connection, connections

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine import pool as pools
from durableflow.engine import shutdown, watcher
from durableflow.engine.drain import drain_for
from durableflow.models import WorkflowInstance
from tests.support.concurrency import PATIENCE, Gate, Task, eventually
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
THREADS = 4


@pytest.fixture(autouse=True)
def pool(settings: Any) -> Iterator[pools.Pool]:
    """Four threads, and a pool that ends with the test and leaves no connection behind."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "THREADS": THREADS}
    before = pools._pool
    pools._pool = made = pools.Pool()
    yield made
    threads = list(made._threads | made._lost)
    with made._state:
        made._closed = True
        made._state.notify_all()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    pools._pool = before


def flow(body: Callable[[Any], Any], **options: Any) -> type[Workflow]:
    class Flow(Workflow):
        class Meta:
            name = "flow"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.do("work", body, event.params, **options)

    return Flow


def finished() -> int:
    return WorkflowInstance.objects.filter(status=S.COMPLETE).count()


def test_as_many_bodies_at_once_as_there_are_threads() -> None:
    """Design 4: all meet at a barrier, each in a thread of its own."""
    barrier = threading.Barrier(THREADS)
    seen: list[str] = []

    def body(_number: int) -> None:
        barrier.wait(PATIENCE)
        seen.append(threading.current_thread().name)

    cls = flow(body)
    for number in range(2 * THREADS):
        cls.create(number)
    total = 0
    while finished() < 2 * THREADS:
        total += drain(5)
    assert len(seen) == 2 * THREADS
    assert threading.main_thread().name in seen


def test_one_instance_needs_one_thread_only(pool: pools.Pool) -> None:
    """Design 4: helpers are woken by a second successful claim; the caller runs the first instance itself."""
    seen: list[threading.Thread] = []
    flow(lambda _: seen.append(threading.current_thread())).create()
    assert drain() == 1
    assert seen == [threading.current_thread()]


def test_a_drain_returns_while_helpers_go_on() -> None:
    """Spike 3: else one long step would keep the other threads empty."""
    gate = Gate()

    def body(number: int) -> str:
        if number == 9:
            return "done"
        if threading.current_thread() is not threading.main_thread():
            gate.stop_here()
        else:
            gate.wait_until_reached()
        return "done"

    cls = flow(body)
    rows = [cls.create(number) for number in range(2)]
    assert drain(5) in (1, 2)  # the helper may have found its instance by itself
    assert finished() == 1
    more = cls.create(9)
    eventually(lambda: drained(more).status == S.COMPLETE)  # the drain, or a helper, has time for others
    gate.open()
    eventually(lambda: finished() == 3)
    assert {row.pk for row in rows} <= {row.pk for row in WorkflowInstance.objects.filter(status=S.COMPLETE)}


def test_helpers_look_by_themselves_while_the_caller_is_busy() -> None:
    """Design 4: what becomes due during a long body is found, though the calling thread cannot look."""
    gate = Gate()
    cls = flow(lambda number: gate.stop_here() if number == 0 else "done")
    cls.create(0)
    release = Task(lambda: (gate.wait_until_reached(), cls.create(1), eventually(lambda: finished() == 1), gate.open()))
    drain(0.1)
    release.result()
    eventually(lambda: finished() == 2)


def test_a_helper_is_told_that_work_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster knows sooner than the back-off."""
    monkeypatch.setattr(pools, "LAST_PAUSE", 3600)
    monkeypatch.setattr(pools, "FIRST_PAUSE", 0.02)
    gate, due = Gate(), threading.Event()
    cls = flow(lambda number: gate.stop_here() if number == 0 else "done")
    cls.create(0)

    def later() -> None:
        gate.wait_until_reached()
        eventually(lambda: asked)
        cls.create(1)
        due.set()
        eventually(lambda: finished() == 1)
        gate.open()

    asked: list[bool] = []
    release = Task(later)
    drain_for(0.1, wanted=lambda: asked.append(True) or due.is_set())
    release.result()
    eventually(lambda: finished() == 2)


def test_no_claim_after_a_sign_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-12: instances without a body in flight are given back; nothing new begins."""
    stop = threading.Event()
    monkeypatch.setattr(shutdown, "_sources", [stop.is_set])
    barrier = threading.Barrier(THREADS)
    calls: list[str] = []
    over: list[bool] = []

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("first", self.first)
            step.do("second", calls.append, "second")

        def first(self) -> None:
            if not over:
                barrier.wait(PATIENCE)
                stop.set()

    for _ in range(2 * THREADS):
        Two.create()
    with pytest.raises(KeyboardInterrupt):
        drain(5)
    eventually(lambda: watcher.held() == 0)
    assert calls == []
    rows = WorkflowInstance.objects.all()
    assert {(row.status, row.interruptions, row.give_backs) for row in rows} == {(S.QUEUED, 0, 0)}
    assert sum(row.execution for row in rows) == THREADS
    over.append(True)
    stop.clear()
    while finished() < 2 * THREADS:
        drain(5)
    assert len(calls) == 2 * THREADS


def test_context_variables_do_not_leak_between_instances() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    seen: list[int] = []
    barrier = threading.Barrier(2)

    def body(number: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            seen.append(variable.get())
            variable.set(number)
        barrier.wait(PATIENCE)

    cls = flow(body)
    for number in range(1, 5):
        cls.create(number)
    while finished() < 4:
        drain(5)
    assert set(seen) == {0}


def test_a_lost_thread_is_replaced_and_leaves_nothing(pool: pools.Pool) -> None:
    """OPS-08: bodies that ignore their timeout cost their threads, not the pool; all are gone when their bodies end."""
    ended = threading.Event()
    barrier = threading.Barrier(THREADS)

    def body(number: int) -> str:
        barrier.wait(PATIENCE)
        if threading.current_thread() is not threading.main_thread():
            list(WorkflowInstance.objects.all()[:1])
            ended.wait(PATIENCE)
        return "done"

    cls = flow(body, timeout=2, retries=0)
    for number in range(THREADS):
        cls.create(number)
    drain(1)
    eventually(lambda: len(pool._lost) == THREADS - 1)
    eventually(lambda: pool.busy() == 0)
    quick = flow(lambda number: "done")
    rows = [quick.create(number) for number in range(2 * THREADS)]
    eventually(lambda: drain(1) + 1 and all(drained(row).status == S.COMPLETE for row in rows))
    ended.set()
    eventually(lambda: not pool._lost)


@pytest.mark.postgresql_only
def test_connections_killed_while_idle(pool: pools.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPS-07: the next tick works, in the helpers too, and no retry is used up by it."""
    monkeypatch.setattr(pools, "FRESH", 0)  # else the test would have to rest
    barrier = threading.Barrier(THREADS)

    def body(_number: int) -> int:
        barrier.wait(PATIENCE)
        return WorkflowInstance.objects.count()

    cls = flow(body, retries=0)

    def batch() -> None:
        rows = [cls.create(number) for number in range(THREADS)]
        eventually(lambda: drain(1) + 1 and all(drained(row).status == S.COMPLETE for row in rows))

    batch()
    eventually(lambda: pool.busy() == 0)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert cursor.fetchone()[0] >= THREADS - 1
    batch()


@pytest.mark.postgresql_only
def test_connections_killed_between_body_and_checkpoint() -> None:
    """OPS-07: the checkpoint is written on a new connection; no retry is used up, no body runs again."""
    bodies: list[int] = []
    barrier = threading.Barrier(THREADS)

    def body(number: int) -> int:
        bodies.append(number)
        connection.ensure_connection()
        pid = connection.connection.info.backend_pid
        barrier.wait(PATIENCE)
        with closing(connections.create_connection("default")) as other, other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
            left = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
            eventually(lambda: (cursor.execute(left, [pid]), cursor.fetchone() == (0,))[1])
        return number

    cls = flow(body, retries=0)
    rows = [cls.create(number) for number in range(THREADS)]
    eventually(lambda: drain(1) + 1 and all(drained(row).status == S.COMPLETE for row in rows))
    assert sorted(bodies) == list(range(THREADS))
    assert {row.steps.get().attempts for row in rows} == {1}
