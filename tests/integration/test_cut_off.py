"""What a stop that somebody asked for has cut off is charged as a lost attempt, but no suspect: it does not run alone (design 6,
"Interruptions"; CON-12)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine import renewal, shutdown
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.isolation import hand_back, room
from durableflow.engine.lease import Claim, owner
from durableflow.engine.takeover import expire
from durableflow.engine.verdicts import MAX_GIVE_BACKS
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import PATIENCE, Gate, Task, child, eventually
from tests.support.engine import drained, history_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Holding(Workflow):
    """A body that runs until its process is ended; the next one ends at once."""

    class Meta:
        name = "cut_off_holding"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        return step.do("hold", self.hold)

    def hold(self) -> int:
        sys.stdout.write("in the body\n")
        sys.stdout.flush()
        sys.stdin.readline()
        return os.getpid()


class CutOffQuick(Workflow):
    """A body that takes no time."""

    class Meta:
        name = "cut_off_quick"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        return step.do("work", threading.get_ident)


def take() -> Claim:
    (claimed,) = claim("default")
    return claimed


def cut_off(monkeypatch: pytest.MonkeyPatch, claimed: Claim) -> None:
    """Its process was asked to stop, and was ended."""
    with monkeypatch.context() as patch:
        patch.setattr(shutdown, "_sources", [lambda: True])
        renewal.renew([claimed.lease])
    assert expire("default", [owner()]) == 1


def hold_until_stopped() -> None:
    """A process that executes until its input has a line, which asks it to stop; its bodies go on."""
    stop = threading.Event()
    shutdown.heed(stop.is_set)
    original, sys.stdin = sys.stdin, os.fdopen(os.pipe()[0])

    def listen() -> None:
        original.readline()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    drain(1)


def test_whatever_ends_a_process_that_was_asked_to_stop() -> None:
    """Its leases tell of the stop long before the grace is over: a service manager may be less patient (SIGKILL)."""
    row = Holding.create()
    with child("tests.integration.test_cut_off:hold_until_stopped") as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "in the body\n"
        row.refresh_from_db()
        assert row.owner is not None and row.owner > 0
        process.stdin.write("stop\n")
        process.stdin.flush()
        eventually(lambda: WorkflowInstance.objects.filter(owner__lt=0).exists(), "it has told")
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    expire_leases()
    taken = take()
    assert (taken.by_stop, taken.interruptions, taken.give_backs) == (True, 0, 1)


def test_it_runs_beside_others_and_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """RET-03: its process is busy, and yet it goes in, with one lost attempt."""
    gate = Gate()

    class Other(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("work", gate.stop_here)

    row = CutOffQuick.create()
    cut_off(monkeypatch, take())
    again = take()
    other = Other.create()
    taken = take()
    beside = Task(lambda: execute(taken))
    gate.wait_until_reached()
    execute(again)
    row.refresh_from_db()
    assert (row.status, row.interruptions, row.give_backs) == (S.COMPLETE, 0, 0)
    assert history_of(row, "attempt_lost") == [{"attempt": 1}]
    assert not room().occupied()
    gate.open()
    beside.result()
    assert drained(other).status == S.COMPLETE


def test_a_charge_is_never_lost_with_the_next_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """RET-03: the attempt after a stop has a start mark before its body, so that the worker that dies in it costs another one."""
    row = Holding.create()
    cut_off(monkeypatch, take())
    with child("tests.integration.test_cut_off:hold_until_stopped") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the body\n"
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    expire_leases()
    monkeypatch.setattr(Holding, "hold", lambda self: "done")
    assert drained(row).output == "done"
    assert history_of(row, "attempt_lost") == [{"attempt": 1}, {"attempt": 2}]


def test_a_worker_that_nobody_asked_to_stop_is_a_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it had gone on after a Ctrl-C: its leases tell of the stop no longer."""
    CutOffQuick.create()
    claimed = take()
    with monkeypatch.context() as patch:
        patch.setattr(shutdown, "_sources", [lambda: True])
        renewal.renew([claimed.lease])
        assert claimed.lease.told
    renewal.renew([claimed.lease])
    assert not claimed.lease.told
    expire("default", [owner()])
    taken = take()
    assert (taken.by_stop, taken.interruptions, taken.give_backs) == (False, 1, 0)


@pytest.mark.parametrize("by_stop", [True, False])
def test_one_that_is_given_back_at_once_is_what_it_was(monkeypatch: pytest.MonkeyPatch, by_stop: bool) -> None:
    """A takeover that is undone leaves no trace: the next one charges, counts and isolates as if it were the first."""
    row = CutOffQuick.create()
    claimed = take()
    if by_stop:
        cut_off(monkeypatch, claimed)
    else:
        expire("default", [owner()])
    for _ in range(2):
        taken = take()
        assert (taken.by_stop, taken.interruptions, taken.give_backs) == (by_stop, not by_stop, by_stop)
        hand_back(taken)
        row.refresh_from_db()
        assert (row.interruptions, row.give_backs, row.lease_token) == (0, 0, claimed.lease.token)
    assert drained(row).status == S.COMPLETE
    assert history_of(row, "attempt_lost") == [{"attempt": 1}]


def test_it_does_not_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that no deploy leaves the time to end needs a person, who is told why."""
    row = CutOffQuick.create()
    for _ in range(MAX_GIVE_BACKS):
        cut_off(monkeypatch, take())
    assert (drained(row).status, row.interruptions) == (S.PAUSED, 0)
    assert f"cut off by a stop, {MAX_GIVE_BACKS} times in a row" in row.blocked
