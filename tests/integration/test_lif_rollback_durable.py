"""A rollback is durable at every point: processes die in it, code changes under it, rows are locked (design 7, promise 1)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from durableflow import (
    InvalidTransition,
    NonRetryableError,
    Retries,
    Rollback,
    Step,
    Undo,
    Workflow,
    WorkflowEvent,
    drain,
)
from durableflow.engine import rollback_writes, shutdown
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.fence import Fence
from durableflow.engine.lease import Lease
from durableflow.engine.unwind import ProcessDied
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.integration.conftest import StoppedClock
from tests.integration.eng_flows import workflow
from tests.integration.lif_flows import MOMENTS, Saga, arm
from tests.support.concurrency import child, eventually, together
from tests.support.engine import drained, history_of, types_of
from tests.support.ledger import Ledger

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
LOST = ("inside", "before_checkpoint")
"""Moments at which b's handler has run and nobody knows it: at least once, with the attempt counted."""


def check(row: WorkflowInstance, ledger: Ledger, moment: str) -> None:
    """Whatever died when: each handler that has ended ran once, in order, and the instance ends as it would have."""
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
    assert row.error is not None and row.error["message"] == "no money"
    again = ["undo B"] if moment in LOST else []
    assert ledger.lines == ["a", "b", "c", "undo C", "undo B", *again, "undo A"]
    assert [step.rollback_attempts for step in row.steps.order_by("seq")] == [1, 1 + len(again), 1, 0]
    assert history_of(row, "rollback_attempt_lost") == [{"attempt": 1}] * len(again)
    for type in ("rollback_started", "rollback_completed", "workflow_errored"):
        assert types_of(row).count(type) == 1
    assert types_of(row).count("rollback_step_completed") == 3
    assert (row.wake_at, row.lease_token, row.interruptions) == (None, None, 0)


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_process_dies(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 7: between two handlers, inside one, after the last before the end."""
    ledger = Ledger(tmp_path / "ledger")
    row = Saga.create(str(ledger.path))

    def stop() -> None:
        raise ProcessDied(moment)

    with monkeypatch.context() as patch:
        interceptor = arm(moment, stop, patch.setattr)
        (claimed,) = claim("default")
        with pytest.raises(ProcessDied):
            execute(claimed, interceptor=interceptor)
    row.refresh_from_db()
    if moment != "ended":
        assert (row.status, row.lease_token) == (S.ROLLING_BACK, claimed.lease.token)
    expire_leases()
    check(drained(row), ledger, moment)


@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
def test_the_process_dies_at_each_of_its_writes(
    committed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 1: before the transaction, or when it is committed and nobody has heard of that."""
    original = rollback_writes.fenced
    writes = 0

    @contextmanager
    def fenced(lease: Lease) -> Iterator[Fence]:
        nonlocal writes
        writes += 1
        fatal = writes == number
        if fatal and not committed:
            raise ProcessDied("before")
        with original(lease) as fence:
            yield fence
        if fatal:
            raise ProcessDied("after")

    monkeypatch.setattr(rollback_writes, "fenced", fenced)
    for number in itertools.count(1):
        writes = 0
        ledger = Ledger(tmp_path / f"ledger {number}")
        row = Saga.create(str(ledger.path))
        (claimed,) = claim("default")
        try:
            execute(claimed)
        except ProcessDied:
            expire_leases()
            drained(row)
        else:
            break
        assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
        assert list(dict.fromkeys(ledger.lines)) == ["a", "b", "c", "undo C", "undo B", "undo A"]
        lost = len(history_of(row, "rollback_attempt_lost"))
        assert len(ledger.lines) <= 6 + lost and lost <= 1
        told = row.history.filter(type="rollback_step_completed").values_list("step", flat=True)
        assert list(told) == ["c-1", "b-1", "a-1"]
        assert types_of(row)[-2:] == ["rollback_completed", "workflow_errored"]
    assert number == 9, "the start, two for each of three handlers, the end; and one run in which nobody dies"


@pytest.mark.parametrize("moment", ["between", "inside", "before_end"])
def test_the_process_is_killed(moment: str, tmp_path: Path) -> None:
    """The same with a real kill -9."""
    ledger = Ledger(tmp_path / "ledger")
    row = Saga.create(str(ledger.path))
    with child("tests.integration.lif_flows:run_and_die", moment) as process:
        _out, err = process.communicate(timeout=60)
        assert process.returncode == -9, err
    row.refresh_from_db()
    assert row.status == S.ROLLING_BACK
    expire_leases()
    check(drained(row), ledger, moment)


def test_two_deaths_in_one_handler_and_out_of_retries(stopped_clock: StoppedClock, tmp_path: Path) -> None:
    """RET-03 for handlers: each lost worker is a lost attempt; after the last the handler has failed, and the rest go on."""
    dies = 2

    class Deadly(Workflow[Any, None]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.do("a", lambda: "A", rollback=lambda undo: undone.append("A"))
            step.do("b", lambda: "B", rollback=Rollback(self.undo_b, retries=1))
            step.do("c", Saga.fail)

        def undo_b(self, undo: Undo[str]) -> None:
            undone.append("B")
            if len(undone) <= dies:
                raise ProcessDied("b")

    undone: list[str] = []
    row = Deadly.create()
    for _ in range(dies):
        (claimed,) = claim("default")
        with pytest.raises(ProcessDied):
            execute(claimed)
        stopped_clock.outlast_leases()
    drained(row)
    assert undone == ["B", "B", "A"]
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "failed", "failed": ["b-1"]})
    error = row.steps.get(name="b").rollback_error
    assert error["type"] == "durableflow.WorkerLost" and "the rollback handler of step 'b-1'" in error["message"]
    assert history_of(row, "rollback_attempt_lost") == [{"attempt": 1}, {"attempt": 2}]
    row.retry()
    drained(row)
    assert (undone, row.rollback) == (["B", "B", "A", "B"], {"outcome": "complete", "failed": []})


def test_ten_deaths_block_it(stopped_clock: StoppedClock) -> None:
    """Design 6, "Interruptions": a person is asked; ``resume()`` goes on with the rollback."""
    alive = False

    def undo(undo: Undo[str]) -> None:
        undone.append(undo.output)
        if not alive:
            raise ProcessDied("undo")

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=Rollback(undo, retries=Retries(limit=50, delay=0)))
        step.do("b", Saga.fail)

    undone: list[str | None] = []
    row = workflow(run, []).create()
    for _ in range(10):
        (claimed,) = claim("default")
        with pytest.raises(ProcessDied):
            execute(claimed)
        stopped_clock.outlast_leases()
    drained(row)
    assert (row.status, len(undone)) == (S.PAUSED, 10) and "lost 10 times" in row.blocked
    alive = True
    row.resume()
    assert row.status == S.ROLLING_BACK
    drained(row)
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
    assert row.steps.get(name="a").rollback_attempts == 11


def test_run_itself_fails_without_a_step() -> None:
    """A plain bug in ``run`` after its steps is an uncaught error like any other."""

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=lambda undo: log.append(f"undo {undo.output} {undo.error!r}"))
        raise NonRetryableError("bug")

    log: list[str] = []
    row = drained(workflow(run, log).create())
    assert (row.status, log) == (S.ERRORED, ["undo A NonRetryableError('bug')"])


def test_the_answer_of_a_commit_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4, "Fence": a write that is made again finds that it was done; nothing runs or is told twice."""
    original = rollback_writes.fenced
    writes = 0

    @contextmanager
    def fenced(lease: Lease) -> Iterator[Fence]:
        nonlocal writes
        writes += 1
        fatal = writes == number
        with original(lease) as fence:
            yield fence
        if fatal:
            raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(rollback_writes, "fenced", fenced)
    for number in range(1, 9):
        writes = 0
        ledger = Ledger(tmp_path / f"ledger {number}")
        row = drained(Saga.create(str(ledger.path)))
        assert writes == 9, "one of eight is made twice"
        check(row, ledger, "begun")


def test_a_stop_between_two_handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4, "Executor exits": the instance is given back at once, nothing is charged, the next worker goes on."""
    ledger, stop = Ledger(tmp_path / "ledger"), threading.Event()
    monkeypatch.setattr(Saga, "in_handler_of_b", staticmethod(stop.set))
    monkeypatch.setattr(shutdown, "_sources", [stop.is_set])
    row = Saga.create(str(ledger.path))
    with pytest.raises(KeyboardInterrupt):
        drain(30)
    row.refresh_from_db()
    assert (row.status, row.lease_token, row.interruptions) == (S.ROLLING_BACK, None, 0)
    assert ledger.lines[-1] == "undo B"
    stop.clear()
    monkeypatch.setattr(Saga, "in_handler_of_b", staticmethod(lambda: None))
    check(drained(row), ledger, "between")


def test_a_stop_after_a_takeover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 6, "Interruptions": a handler that has run is progress, so that the lost worker does not count any more; and the
    attempt that was lost with it is charged by its start mark, once."""
    ledger, stop = Ledger(tmp_path / "ledger"), threading.Event()
    row = Saga.create(str(ledger.path))

    def dies() -> None:
        raise ProcessDied("inside")

    with monkeypatch.context() as patch:
        patch.setattr(Saga, "in_handler_of_b", staticmethod(dies))
        (claimed,) = claim("default")
        with pytest.raises(ProcessDied):
            execute(claimed)
    expire_leases()
    with monkeypatch.context() as patch:
        patch.setattr(Saga, "in_handler_of_b", staticmethod(stop.set))
        patch.setattr(shutdown, "_sources", [stop.is_set])
        with pytest.raises(KeyboardInterrupt):
            drain(30)
    row.refresh_from_db()
    assert (row.status, row.lease_token, row.interruptions) == (S.ROLLING_BACK, None, 0)
    assert row.steps.get(name="b").rollback_status == "complete"
    check(drained(row), ledger, "inside")


def test_an_operator_and_the_error_meet(tmp_path: Path) -> None:
    """Design 9: whoever comes first begins the rollback; the other changes nothing. No handler runs twice."""
    for number in range(12):
        ledger = Ledger(tmp_path / f"ledger {number}")
        row = Saga.create(str(ledger.path))
        found = WorkflowInstance.objects.get(pk=row.pk)

        def operator(found: WorkflowInstance = found, ledger: Ledger = ledger) -> None:
            eventually(lambda: ledger.lines)
            found.terminate(rollback=True)

        drained_by, operated = together(lambda: drain(30), operator)
        assert drained_by.error is None
        assert operated.error is None or isinstance(operated.error, InvalidTransition)
        drained(row)
        assert row.status == (S.ERRORED if operated.error else S.TERMINATED)
        undone = row.steps.exclude(rollback_status="")
        assert [(step.rollback_status, step.rollback_attempts) for step in undone] == [("complete", 1)] * len(undone)
        assert len([line for line in ledger.lines if line.startswith("undo")]) == len(undone) >= 1
        assert row.rollback == {"outcome": "complete", "failed": []}
        assert types_of(row).count("rollback_started") == 1


def test_workers_are_killed_again_and_again(tmp_path: Path) -> None:
    """Promise 1: two workers, each of which is killed -9 whenever something has happened; in the end all is undone, in order,
    and nothing runs again but what was lost with its worker."""
    ledgers = [Ledger(tmp_path / f"ledger {number}") for number in range(6)]
    rows = [Saga.create(str(ledger.path)) for ledger in ledgers]

    def happened() -> int:
        return sum(len(ledger.lines) for ledger in ledgers)

    def finished() -> bool:
        return not WorkflowInstance.objects.active().exists()

    worker = "tests.integration.lif_flows:drain_for_ever"
    with ExitStack() as stack:
        workers = [stack.enter_context(child(worker)) for _ in range(2)]
        for number in range(5):
            before = happened()
            eventually(lambda before=before: happened() > before + 1 or finished())  # type: ignore[misc]
            workers[number % 2].kill()
            workers[number % 2] = stack.enter_context(child(worker))
        eventually(finished, "the end of all")
    for row, ledger in zip(rows, ledgers, strict=True):
        row.refresh_from_db()
        assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
        undone = [line for line in ledger.lines if line.startswith("undo")]
        assert list(dict.fromkeys(undone)) == ["undo C", "undo B", "undo A"]
        lost = len(history_of(row, "rollback_attempt_lost"))
        assert len(undone) <= 3 + lost
        assert sum(step.rollback_attempts for step in row.steps.all()) == 3 + lost
        assert types_of(row).count("rollback_step_completed") == 3
