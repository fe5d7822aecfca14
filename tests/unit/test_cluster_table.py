"""The numbers that the processes of a cluster share, and the line that people see of them."""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import sys

import pytest

from durableflow.cluster import status
from durableflow.cluster.children import ORPHANED, ended, gone, settle
from durableflow.cluster.drains import Drains
from durableflow.cluster.status import LiveLine, line
from durableflow.cluster.table import DEAD, Table
from tests.support.concurrency import eventually
from tests.support.logs import levels


def test_a_worker_shows_what_it_does() -> None:
    table = Table(2)
    first, second = table.seat(11), table.seat(22)
    table.sits(first, 1001)
    table.sits(second, 1002)
    assert (table.workers(), table.idle_workers(), table.busy_workers()) == (2, 0, 2)
    table.take(first)
    table.idle()
    assert (table.idle_workers(), table.busy_workers()) == (1, 1)
    assert table.idle_workers(3600) == 0
    table.busy()
    table.holds(3)
    table.executed(1204)
    assert (table.executing(), table.executions(), table.claimed_ago() is not None) == (3, 1204, True)
    assert table.names() == {1001: 11, 1002: 22}


def test_a_worker_whose_helpers_execute_something_is_busy() -> None:
    """Its main thread may wait for a task meanwhile."""
    table = Table(1)
    table.sits(table.seat(1), os.getpid())
    table.take(0)
    table.idle()
    assert table.busy_workers() == 0
    table.holds(1)
    assert table.busy_workers() == 1


def test_the_last_claim_outlives_the_worker_that_made_it() -> None:
    """Workers are recycled; the health check and the status go on telling when the last claim was."""
    table = Table(1)
    table.take(table.seat(1))
    table.holds(1)
    table.leave(0)
    table.seat(2)
    assert table.claimed_ago() is not None


def test_a_worker_that_executes_an_instance_alone_is_not_idle() -> None:
    """Its main thread waits for tasks, but no drain of its claims anything: that is no standstill, and others are called."""
    table = Table(1)
    table.take(table.seat(1))
    table.holds(1, alone=True)
    table.idle()
    assert table.idle_workers() == 0
    table.holds(0)
    assert table.idle_workers() == 1


def test_the_dead_are_buried_once_and_their_seat_is_free() -> None:
    table = Table(1)
    for owner in range(1, 4):
        table.leave(table.seat(owner))
    assert table.dead() == [1, 2, 3]
    table.bury(2)
    assert table.dead() == [3]
    for owner in range(4, DEAD + 10):
        table.leave(table.seat(owner))
    assert len(table.dead()) == DEAD, "those above it wait for the end of their leases"
    assert table.workers() == 0


def test_who_takes_a_dead_ones_seat_begins_anew() -> None:
    table = Table(1)
    table.take(table.seat(1))
    table.holds(2, alone=True)
    table.drains(True)
    table.idle()
    table.leave(0)
    table.sits(table.seat(2), 4711)
    assert (table.executing(), table.idle_workers(), table.signs(0), table.names()) == (0, 0, None, {4711: 2})
    table.idle()
    assert table.idle_workers() == 1


def test_a_call_is_heard_once() -> None:
    table = Table(1)
    table.take(table.seat(1))
    assert not table.called()
    table.call()
    assert (table.called(), table.called()) == (True, False)


def test_the_line_is_for_people() -> None:
    table = Table(2)
    for owner in (1, 2):
        table.sits(table.seat(owner), os.getpid())
    table.take(0)
    table.idle()
    table.executed(1204)
    assert line(table) == "2 workers, 1 busy · 1,204 executions · nothing overdue"
    table.saw(12.0)
    assert line(table).endswith("oldest work overdue for 12 s")


def test_in_a_stop_nobody_is_missed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    drains, table = Drains(), Table(1)
    monkeypatch.setattr(status, "DRAINS", drains)
    monkeypatch.setattr(status, "TABLE", table)
    monkeypatch.setattr(status, "EVERY", 0.0)
    monkeypatch.setattr(status, "WORRYING", -1.0)
    table.take(table.seat(1))
    table.ticked()
    table.saw(12.0)
    log = LiveLine(io.StringIO())
    log.show()
    drains.stop()
    table.executed(1)
    log.show()
    assert levels(caplog) == ["WARNING"], "a stop is no trouble"
    assert line(table) == "1 worker, none busy · 1 execution · stopping"


class Terminal(io.StringIO):
    """A terminal, for as long as it is there."""

    broken = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.broken:
            raise OSError("Input/output error")
        return super().write(text)


def test_on_a_terminal_the_line_is_rewritten_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "REFRESH", 0.0)
    terminal = Terminal()
    live = LiveLine(terminal)
    live.show()
    live.show()
    assert terminal.getvalue().count("\r") == 4 and "\n" not in terminal.getvalue()
    terminal.broken = True
    live.show()
    live.clear()


def test_how_a_process_ended() -> None:
    assert (ended(-9), ended(70), ended(None)) == ("SIGKILL", "exit status 70", "an unknown cause")
    assert not gone(os.getpid())


def test_a_process_that_nobody_has_waited_for_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    eventually(lambda: gone(process.pid), "its end")
    assert process.wait() == 0
    assert gone(process.pid)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    """It asked too late to die with it."""
    made: list[int] = []
    process = multiprocessing.get_context("fork").Process(target=lambda: (settle(os.getpid()), made.append(1)))
    process.start()
    process.join(60)
    assert process.exitcode == ORPHANED
