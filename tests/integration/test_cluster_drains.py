"""How often drains are handed out."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import nullcontext

import pytest
from django.db import OperationalError, ProgrammingError, connections

from durableflow.cluster import drains as module
from durableflow.cluster import tasks
from durableflow.cluster.drains import Drains, Pace
from durableflow.engine import heartbeat
from tests.support.logs import logged


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of drains and their pace."""
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # pytest-xdist's threads
def test_a_drain_is_unbegun_until_a_worker_begins_it() -> None:
    drains = Drains()
    assert not drains.unbegun()
    drains.hand_out()
    assert drains.unbegun()
    pid = os.fork()
    if pid == 0:  # the worker
        drains.begun()
        os._exit(0)
    os.waitpid(pid, 0)
    assert not drains.unbegun()


def test_a_lost_drain_is_replaced_ever_later(clock: Clock) -> None:
    """A worker that dies before the first line must not stop everything; workers that are busy must not find a heap."""
    drains, waits = Drains(), []
    for _ in range(9):
        drains.hand_out()
        since = clock.now
        while drains.unbegun():
            clock.now += 1
        waits.append(clock.now - since)
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    drains.begun()
    drains.hand_out()
    clock.now += 30
    assert not drains.unbegun(), "once one has begun, patience is short again"


def test_where_processes_are_spawned_no_sign_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    drains = Drains()
    drains.hand_out()
    assert not drains.unbegun()


def test_the_pace_slows_down_for_a_row_that_stays(clock: Clock) -> None:
    pace, waits = Pace(Drains()), []
    assert pace.left(7) == 0
    for _ in range(8):
        pace.sent(7)
        waits.append(round(pace.left(7), 3))
        clock.now += pace.left(7)
    assert waits == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    assert pace.left(8) == 0, "another row is not held up"


def test_success_news_and_silence_quicken_the_pace(clock: Clock) -> None:
    drains = Drains()
    pace = Pace(drains)
    for _ in range(5):
        pace.sent(7)
        clock.now += 1
    drains.fruitful()
    pace.sent(7)
    assert pace.left(7) == pytest.approx(0.02)
    for _ in range(5):
        clock.now += 1
        pace.sent(7)
    pace.heard()
    assert pace.left(7) == pytest.approx(0.02)
    pace.reset()
    assert pace.left(7) == 0


def test_looks_come_soon_at_first(clock: Clock) -> None:
    pace, looks = Pace(Drains()), 0
    for _ in range(7):
        pace.sent(7)
        clock.now += 1.0
    pace.sent(7)
    while wait := pace.next_look(7):
        clock.now += wait
        looks += 1
    assert looks < 15


@pytest.mark.parametrize(("executed", "fruitful"), [(3, True), (0, False)])
def test_the_drain_task_tells_what_it_did(monkeypatch: pytest.MonkeyPatch, executed: int, fruitful: bool) -> None:
    drains = Drains()
    drains.hand_out()
    monkeypatch.setattr(tasks, "DRAINS", drains)

    def executing() -> int:
        assert not drains.unbegun(), "the first line lets the next drain be handed out"
        assert tasks.SLICE <= 1, "a stop must not be prolonged"
        return executed

    monkeypatch.setattr(tasks, "_slice", executing)
    tasks.drain_task()
    assert drains.fruitful_since(1.0) is fruitful


def test_a_drain_does_nothing_once_the_cluster_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    drains = Drains()
    monkeypatch.setattr(tasks, "DRAINS", drains)
    monkeypatch.setattr(tasks, "_slice", lambda: pytest.fail("it began work"))
    drains.stop()
    tasks.drain_task()


@pytest.mark.parametrize("stopping", [True, False])
def test_ctrl_c_ends_a_drain_without_a_word_only_in_a_stop(monkeypatch: pytest.MonkeyPatch, stopping: bool) -> None:
    """In a stop what was begun is given back, and the worker ends as it should; another signal is the worker's own affair."""
    drains = Drains()

    def interrupted() -> int:
        if stopping:
            drains.stop()
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "DRAINS", drains)
    monkeypatch.setattr(tasks, "_slice", interrupted)
    with nullcontext() if stopping else pytest.raises(KeyboardInterrupt):
        tasks.drain_task()
    assert not drains.fruitful_since(1.0)


def test_a_worker_gives_no_signs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pusher speaks for all of a cluster; else each worker would be one more process group."""
    monkeypatch.setattr(heartbeat, "_silent", False)
    monkeypatch.setattr(tasks, "DRAINS", Drains())
    monkeypatch.setattr(tasks, "_slice", lambda: 0)
    tasks.drain_task()
    assert heartbeat._silent


def test_an_outage_ends_a_drain_quietly(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def away(seconds: float) -> int:
        raise OperationalError("the connection is closed")

    closed: list[bool] = []
    monkeypatch.setattr(connections, "close_all", lambda: closed.append(True))
    monkeypatch.setattr(tasks, "drain", away)
    tasks.run_due()
    [record] = logged(caplog)
    assert "the connection is closed" in record.getMessage() and closed


def test_another_error_of_a_drain_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(seconds: float) -> int:
        raise ProgrammingError("syntax error")

    monkeypatch.setattr(tasks, "drain", broken)
    with pytest.raises(ProgrammingError):
        tasks.run_due()


def test_the_fallback_drains_for_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    slices: list[float] = []

    def drain(seconds: float) -> int:
        slices.append(seconds)
        return 0

    monkeypatch.setattr(tasks, "drain", drain)
    tasks.run_due()
    assert slices == [30.0]
