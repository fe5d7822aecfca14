"""When a worker is taken for hung: a function of its signs and of the time in which its supervisor ran."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow.cluster.hung import PATIENCE, STOP_PATIENCE, Silence
from durableflow.cluster.table import Table
from durableflow.core.conf import get_settings

TURN = 0.5


class Worker:
    """A worker of a table of its own, and the supervisor's clock."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr("durableflow.cluster.hung.time.monotonic", lambda: self.now)
        self.table = Table(1)
        self.seat = self.table.seat(1)
        self.table.take(self.seat)
        self.silence = Silence(self.seat, self.table)

    def turns(self, seconds: float, *, signs: bool = False, stopping: bool = False) -> str:
        """What the supervisor says in so many seconds of turns."""
        said = ""
        for _ in range(round(seconds / TURN)):
            self.now += TURN
            if signs:
                self.table.sign()
            said = said or self.silence.look(stopping=stopping)
        return said


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def test_no_sign_while_it_executes(worker: Worker) -> None:
    worker.table.drains(True)
    assert worker.turns(PATIENCE) == ""
    assert "no sign of life" in worker.turns(2)


def test_long_leases_give_it_longer(worker: Worker, settings: Any) -> None:
    """As long as its instances cannot go on elsewhere, there is no hurry."""
    settings.DURABLEFLOW = {"LEASE": 60}
    worker.table.drains(True)
    assert worker.turns(2 * 60) == ""
    assert "no sign of life" in worker.turns(2)


def test_leases_count_like_a_drain(worker: Worker) -> None:
    """Helper threads execute on when the drain is over."""
    worker.table.holds(1)
    assert "no sign of life" in worker.turns(PATIENCE + 2)


def test_a_sign_is_enough(worker: Worker) -> None:
    worker.table.drains(True)
    assert worker.turns(10 * PATIENCE, signs=True) == ""


def test_an_ordinary_task_may_take_as_long_as_it_likes(worker: Worker) -> None:
    """Not even in a stop does it matter whether its threads get to run."""
    assert worker.turns(10 * PATIENCE) == ""
    assert worker.turns(10 * PATIENCE, stopping=True) == ""


def test_time_in_which_the_supervisor_stood_still_does_not_count(worker: Worker) -> None:
    """SIGSTOP of the whole cluster."""
    worker.table.drains(True)
    worker.turns(2)
    worker.now += 1000
    assert worker.turns(2) == ""


def test_a_stop_has_an_end_though_it_gives_signs(worker: Worker) -> None:
    worker.table.drains(True)
    patience = get_settings().SHUTDOWN_GRACE + STOP_PATIENCE
    assert worker.turns(100, signs=True) == ""
    assert worker.turns(patience, signs=True, stopping=True) == ""
    assert "asked to stop" in worker.turns(2, signs=True, stopping=True)
