"""The engine's regular work, and the purge as a part of it (design 9)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from durableflow import drain
from durableflow.cluster import broker
from durableflow.cluster.drains import Drains
from durableflow.core import clock
from durableflow.engine import chores
from durableflow.engine.look import CHORE, next_due
from durableflow.models import Chore, WorkflowInstance
from durableflow.operations import regular
from durableflow.testing import harness
from tests.integration.conftest import StoppedClock
from tests.integration.retention_flows import Plain, left, old
from tests.support.concurrency import together

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)


class Work:
    """A chore of the test: ``batches`` of work, each of which is noted."""

    def __init__(self, batches: int = 1) -> None:
        self.left = batches
        self.done = 0
        self.fails: Exception | None = None

    def __call__(self, using: str) -> bool:
        self.done += 1
        if self.fails is not None:
            raise self.fails
        self.left -= 1
        return self.left > 0


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``only(work)``: this process does chores, and knows this one alone."""
    monkeypatch.setattr(chores, "_silent", False)
    monkeypatch.setattr(chores, "_chores", {})
    monkeypatch.setattr(chores, "_known", {})

    def register(work: Any, name: str = "test") -> Any:
        chores.register(name, HOUR, work)
        return work

    yield register
    regular._passes.clear()


def due_at(name: str = "test") -> Any:
    return Chore.objects.get(name=name).due_at


def test_an_idle_drain_does_what_is_due_once(only: Any, stopped_clock: StoppedClock) -> None:
    """A new chore is due at once; then each hour."""
    work = only(Work())
    assert drain() == 0
    assert work.done == 1 and due_at() == stopped_clock.now + HOUR
    drain()
    assert work.done == 1
    due = next_due("default")
    assert due is not None and due.instance == CHORE and 3500 < due.seconds <= 3600
    stopped_clock.advance("1 hour")
    forget()
    due = next_due("default")
    assert due is not None and (due.instance, due.seconds) == (CHORE, 0)
    drain()
    assert work.done == 2


def forget() -> None:
    """As another process, which knows nothing yet: moments are remembered by the monotonic clock, which does not stand still."""
    chores._known.clear()


def test_what_is_left_comes_a_second_later(only: Any, stopped_clock: StoppedClock) -> None:
    """Due instances go first: between two batches there is a second for them."""
    work = only(Work(batches=3))
    drain()
    assert work.done == 1 and due_at() == stopped_clock.now + chores.AGAIN
    for done in (2, 3):
        stopped_clock.advance("1 second")
        forget()
        drain()
        assert work.done == done
    assert due_at() == stopped_clock.now + HOUR


@pytest.mark.parametrize("made", [False, True])
def test_one_of_many_gets_it(only: Any, made: bool) -> None:
    """Compare and set: eight that find it due at the same moment, the first time and later."""
    only(Work())
    if made:
        Chore.objects.create(name="test", due_at=clock.read("default") - HOUR)
    chore = chores._chores["test"]
    taken = together(*[lambda: chores._take("default", chore)] * 8)
    assert sum(task.result() for task in taken) == 1


def test_one_who_dies_leaves_it_to_the_next(only: Any, stopped_clock: StoppedClock) -> None:
    """What a process has begun, another does when the guard is over."""
    work = only(Work())
    assert chores._take("default", chores._chores["test"])  # and is killed
    drain()
    assert work.done == 0
    stopped_clock.advance(chores.GUARD)
    forget()
    drain()
    assert work.done == 1


def test_one_that_fails_rests_and_stops_nobody(
    only: Any, stopped_clock: StoppedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Another chore and the instances are done all the same; it is said in the log."""
    broken, other = only(Work()), only(Work(), "other")
    broken.fails = ValueError("no")
    Plain.create(1)
    with caplog.at_level(logging.ERROR, logger="durableflow.engine"):
        assert drain() == 1
    assert (broken.done, other.done) == (1, 1)
    assert due_at() == stopped_clock.now + chores.GUARD
    assert "The chore test has failed" in caplog.text

    broken.fails = OperationalError("server closed the connection")
    stopped_clock.advance(chores.GUARD)
    forget()
    with pytest.raises(OperationalError):  # the database is away: the caller's trouble, as with all its statements
        drain()


def test_who_looks_hears_soon_that_more_is_left(only: Any) -> None:
    """A broker that has looked in the middle of a batch does not believe for long in the guard that it saw then."""
    seen: list[float | None] = []

    def batch(using: str) -> bool:
        seen.append(chores.seconds_left(using))
        return True

    only(batch)
    drain()
    assert seen[0] is not None and seen[0] > 200
    looked = time.monotonic() - chores.IDLE_LOOK_EVERY
    chores._known["default"] = chores._Known(looked=looked, due=looked + seen[0])
    left_now = chores.seconds_left("default")
    assert left_now is not None and left_now <= 1


def test_claims_go_first_and_cost_nothing_more(only: Any) -> None:
    """Five executions, and one look into the table when nothing is left to do."""
    work = only(Work())
    drain()
    Plain.bulk_create(range(5))
    with CaptureQueriesContext(connection) as queries:
        assert drain() == 5
    asked = [query["sql"] for query in queries if Chore._meta.db_table in query["sql"]]
    assert len(asked) <= 1 and work.done == 1


def test_a_busy_drain_does_not_put_them_off_for_ever(only: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two executions too, when the last look is half a minute ago."""
    monkeypatch.setattr(chores, "LOOK_EVERY", 0)
    order: list[str] = []
    only(lambda using: order.append(str(WorkflowInstance.objects.active().count())) or False)
    Plain.bulk_create(range(3))
    assert drain() == 3
    assert order == ["2"]  # after the first


def test_old_rows_of_chores_that_nobody_knows_are_left_alone(only: Any, stopped_clock: StoppedClock) -> None:
    Chore.objects.create(name="of another version", due_at=stopped_clock.now - HOUR)
    only(Work())
    drain()
    assert Chore.objects.count() == 2 and due_at("of another version") == stopped_clock.now - HOUR


def test_the_purge_is_a_chore(only: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered by the app; a hundred instances at a time, until nothing is left."""
    monkeypatch.setattr(regular, "ROWS_AT_ONCE", 10)
    regular.connect()
    assert set(chores._chores) == {"purge", "schedules"} and chores._chores["purge"].every == HOUR
    old(25)
    young = Plain.create(instance_id="young")
    drain()
    assert len(left()) == 16
    for _ in range(3):
        Chore.objects.update(due_at=clock.read("default"))
        forget()
        drain()
    assert left() == [young.instance_id]
    assert due_at("purge") - clock.read("default") > timedelta(minutes=59)


def test_a_pass_that_others_have_gone_on_with_is_begun_anew(only: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has become due since then is not left out."""
    monkeypatch.setattr(regular, "ROWS_AT_ONCE", 2)
    old(6)
    assert regular.one_batch("default") and len(left()) == 4
    old_pass = regular._passes["default"]
    regular._passes["default"] = (old_pass[0] - regular.LONGEST - 1, old_pass[1])
    assert regular.one_batch("default")
    assert regular._passes["default"][1] is not old_pass[1]


def test_the_testing_kit_does_none(only: Any) -> None:
    """Design 10: what a project's test sees is its own."""
    work = only(Work())
    with harness() as workflows:
        workflows.run(Plain, 1)
        workflows.advance("2 hours")
    assert work.done == 0 and not Chore.objects.exists()


def test_an_idle_broker_hands_out_a_drain_for_it(only: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not wait until an instance is due."""
    drains = Drains()
    monkeypatch.setattr(broker, "DRAINS", drains)
    monkeypatch.setattr(broker, "LONGEST_WAIT", 0.01)
    tick = broker.Broker("durableflow")
    try:
        assert tick.dequeue() is None
        only(Work())
        assert tick.dequeue()
        drains.forget()
        drain()
        assert tick.dequeue() is None
    finally:
        tick._listener.close()


def test_a_clock_that_is_set_back_does_not_put_them_off(only: Any, stopped_clock: StoppedClock) -> None:
    """A host whose clock was a year ahead has written when the next pass is due: nobody waits a year for the purge."""
    work = only(Work(batches=2))
    stopped_clock.advance("365 days")
    drain()
    assert work.done == 1
    stopped_clock.go_back("365 days")
    forget()
    due = next_due("default")
    assert due is not None and (due.instance, due.seconds) == (CHORE, 0)
    drain()
    assert work.done == 2 and due_at() == stopped_clock.now + HOUR
    drain()
    assert work.done == 2
