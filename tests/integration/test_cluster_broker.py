"""The broker's tick: what it hands out, when, and what it does about errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, ProgrammingError, connection, transaction
from django_q.brokers.orm import ORM
from django_q.conf import Conf
from django_q.models import OrmQ
from django_q.signing import SignedPackage
from django_q.tasks import async_task

from durableflow.cluster import Broker, broker
from durableflow.cluster.drains import Drains
from durableflow.models import Heartbeat, SentEvent, WorkflowInstance
from tests.support.concurrency import PATIENCE, Gate, Task
from tests.support.logs import levels
from tests.workflows.cluster_samples import ClusterSteps, ClusterWait

pytestmark = pytest.mark.django_db(transaction=True)
DRAIN = "durableflow.cluster.tasks.drain_task"


@pytest.fixture
def drains(monkeypatch: pytest.MonkeyPatch) -> Drains:
    """The drains of this test's cluster."""
    fresh = Drains()
    monkeypatch.setattr(broker, "DRAINS", fresh)
    return fresh


@pytest.fixture
def tick(drains: Drains, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker as the pusher uses it."""
    monkeypatch.setattr(Conf, "POLL", Conf.POLL)
    made = Broker("durableflow")
    yield made
    made._listener.close()


def create(name: str = "w", **options: Any) -> WorkflowInstance:
    return ClusterSteps.create({"log": "/dev/null", "name": name}, **options)


def unpacked(tasks: Any) -> list[dict[str, Any]]:
    return [SignedPackage.loads(pack) for _ack, pack in tasks or []]


@pytest.fixture
def while_it_waits(tick: Broker, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """``while_it_waits(action)``: a tick that has looked, and found nothing to hand out, waits for far longer than anything
    takes; what another thread then does, on a connection of its own, ends the wait."""
    monkeypatch.setattr(broker, "LONGEST_WAIT", 4 * PATIENCE)
    original, waits = tick._wait, Gate()

    def wait(due: Any, asked: float, *, locked: bool) -> bool:
        waits.stop_here()
        return original(due, asked, locked=locked)

    monkeypatch.setattr(tick, "_wait", wait)

    def ended_by(action: Callable[[], Any]) -> None:
        def act() -> None:
            waits.wait_until_reached()
            waits.open()
            action()

        acting, began = Task(act), time.monotonic()
        assert tick.dequeue() is None
        acting.result()
        assert time.monotonic() - began < 2 * PATIENCE

    return ended_by


def test_due_work_becomes_a_drain_that_django_q2_neither_stores_nor_limits(tick: Broker) -> None:
    create()
    [(ack, _pack)] = tasks = tick.dequeue() or []
    [package] = unpacked(tasks)
    assert ack is None
    assert (package["func"], package["args"], package["save"], package["timeout"]) == (DRAIN, (), False, -1)
    assert OrmQ.objects.count() == 0


def test_at_most_one_drain_is_unbegun(tick: Broker, drains: Drains, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "LONGEST_WAIT", 0.05)
    first = create("a")
    create("b")
    assert tick.dequeue()
    WorkflowInstance.objects.filter(pk=first.pk).update(wake_at=None)
    assert tick.dequeue() is None, "another row is due, but the drain is not begun"
    drains.begun()
    assert unpacked(tick.dequeue())[0]["func"] == DRAIN


def test_a_drain_that_begins_ends_the_wait_for_it(tick: Broker, drains: Drains, while_it_waits: Any) -> None:
    create()
    assert tick.dequeue()
    while_it_waits(drains.begun)


def test_a_row_that_nobody_can_claim_makes_no_spin(tick: Broker, drains: Drains) -> None:
    """Design 4: after a drain that claimed nothing the pause grows from 20 ms to a second."""
    create()
    handed_out: list[float] = []
    while len(handed_out) < 6:
        if tick.dequeue():
            handed_out.append(time.monotonic())
            drains.begun()
    # Told from the first to each of the others, since a busy machine may note one of them late.
    assert all(at - handed_out[0] >= 0.02 * (2**n - 1) - 0.01 for n, at in enumerate(handed_out[1:], 1)), handed_out


def test_what_is_due_later_ends_the_wait_in_time(tick: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "LONGEST_WAIT", 4 * PATIENCE)
    began = time.monotonic()
    create(start_at=0.3)
    while not tick.dequeue():
        assert time.monotonic() - began < PATIENCE
    assert time.monotonic() - began > 0.29


def test_an_empty_tick_ends_within_about_a_second(tick: Broker) -> None:
    assert broker.LONGEST_WAIT == 1
    began = time.monotonic()
    assert tick.dequeue() is None
    assert 0.9 < time.monotonic() - began < PATIENCE


def test_a_commit_ends_the_wait(tick: Broker, while_it_waits: Any) -> None:
    while_it_waits(create)
    assert unpacked(tick.dequeue())[0]["func"] == DRAIN


def test_a_tick_delivers_sent_events(tick: Broker) -> None:
    row = ClusterWait.create({"log": "/dev/null", "name": "w"})
    WorkflowInstance.objects.filter(pk=row.pk).update(status=WorkflowInstance.Status.WAITING, wake_at=None)
    row.send_event("go", 1)
    assert unpacked(tick.dequeue())[0]["func"] == DRAIN
    assert SentEvent.objects.get().delivered


def test_ordinary_tasks_are_served_beside_due_work(tick: Broker) -> None:
    create()
    async_task("math.floor", 1.5)
    funcs = [unpacked(tick.dequeue())[0]["func"] for _ in range(2)]
    assert sorted(funcs) == sorted([DRAIN, "math.floor"])


def test_an_ordinary_task_ends_the_wait_once_it_is_committed(tick: Broker, while_it_waits: Any) -> None:
    def enqueue() -> None:
        with transaction.atomic():
            async_task("math.floor", 1.5)

    while_it_waits(enqueue)
    [(ack, _pack)] = tick.dequeue() or []
    tick.acknowledge(ack)
    assert OrmQ.objects.count() == 0


def test_a_rolled_back_task_was_never_there(tick: Broker) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        async_task("math.floor", 1.5)
        raise RuntimeError
    assert tick.dequeue() is None


def test_the_queue_is_where_the_router_puts_it_without_the_key_orm(tick: Broker) -> None:
    """api.md, wiring: only ``broker_class`` is given."""
    assert Conf.ORM is None
    assert (tick.get_connection().db, tick.queue_size(), tick.ping()) == ("default", 0, True)
    assert "'default'" in tick.info()


def test_an_outage_is_waited_out_and_told_once(
    tick: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "durableflow.cluster")
    monkeypatch.setattr(broker, "OUTAGE_PAUSE", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(broker, "next_due", lambda using: raises(OperationalError("server closed the connection")))
        assert [tick.dequeue() for _ in range(3)] == [None, None, None]
    create()
    assert tick.dequeue()
    assert levels(caplog) == ["WARNING", "INFO"]


def raises(error: Exception) -> Any:
    raise error


def test_a_task_that_was_done_is_taken_out_when_the_database_is_back(
    tick: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the monitor would die of it, and the task would run again."""
    monkeypatch.setattr(broker, "OUTAGE_PAUSE", 0.01)
    pk = tick.enqueue(SignedPackage.dumps({"name": "task"}))
    answers = [OperationalError("the connection is closed")] * 3
    delete = ORM.delete
    monkeypatch.setattr(
        ORM, "delete", lambda self, pk: raises(answers.pop()) if answers else delete(self, pk), raising=True
    )
    tick.acknowledge(pk)
    assert not answers and not OrmQ.objects.filter(pk=pk).exists()
    assert levels(caplog) == ["WARNING"]
    monkeypatch.setattr(ORM, "delete", lambda self, pk: raises(ProgrammingError("no such table")))
    with pytest.raises(ProgrammingError):
        tick.acknowledge(pk)


def test_another_error_is_raised(tick: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a statement must be seen; retried in silence it would stop everything without a word."""
    monkeypatch.setattr(broker, "next_due", lambda using: raises(ProgrammingError("syntax error")))
    with pytest.raises(ProgrammingError):
        tick.dequeue()


def test_a_missing_table_is_no_outage(tick: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(using: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM nowhere")

    monkeypatch.setattr(broker, "next_due", broken)
    with pytest.raises((OperationalError, ProgrammingError)):
        tick.dequeue()


def test_a_process_that_was_forked_uses_nothing_of_its_parent(tick: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    create()
    assert tick.dequeue()
    before = tick._listener
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert tick.dequeue(), "a new pusher knows of no drain"
    assert tick._listener is not before
    before.close()


def test_a_plain_qcluster_tells_when_it_executed_something(tick: Broker, drains: Drains) -> None:
    """OPS-14: nobody takes a seat in its table; what drains did is known all the same."""
    assert drains.executed_ago() is None
    tick._begin()
    tick._sign()
    assert Heartbeat.objects.get().last_claim is None
    drains.fruitful()
    tick._sign_at = 0
    tick._sign()
    row = Heartbeat.objects.get()
    assert row.last_claim is not None and row.last_claim <= row.seen


def test_a_cluster_takes_leave_in_the_very_look_in_which_it_was_stopped(
    tick: Broker, drains: Drains, monkeypatch: pytest.MonkeyPatch
) -> None:
    # django-q2's pusher ends after that look when its own flag is set by then, and never asks again.
    def stop_meanwhile(due: Any, asked: float, *, locked: bool) -> bool:
        drains.stop()
        return False

    monkeypatch.setattr(tick, "_wait", stop_meanwhile)
    assert tick.dequeue() is None
    assert [row.stopping for row in Heartbeat.objects.all()] == [True]
