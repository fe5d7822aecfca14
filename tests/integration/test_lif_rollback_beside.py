"""A rollback beside everything else: timeouts, locked rows, slots, news, logs (design 4, 6, 7)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from durableflow import Retries, Rollback, Step, Undo, Workflow, WorkflowEvent, drain
from durableflow.engine import rollback_writes, watcher
from durableflow.models import ConcurrencyLimit, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.integration.eng_flows import workflow
from tests.integration.lif_flows import Saga
from tests.integration.test_lif_rollback_durable import check
from tests.support.concurrency import Gate, Task, eventually, held
from tests.support.engine import drained, history_of, types_of
from tests.support.ledger import Ledger

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def test_a_handler_that_takes_too_long() -> None:
    """Reference 8: a timeout of its own, per attempt, in the main thread."""
    ended = threading.Event()

    def undo(undo: Undo[str]) -> None:
        undone.append(undo.output)
        if len(undone) == 1:
            ended.wait(30)

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", timeout=600, rollback=Rollback(undo, retries=Retries(limit=1, delay=0), timeout=1))
        step.do("b", Saga.fail)

    undone: list[str | None] = []
    row = drained(workflow(run, []).create())
    assert (row.status, undone, row.rollback) == (S.ERRORED, ["A", "A"], {"outcome": "complete", "failed": []})
    (first,) = history_of(row, "rollback_attempt_errored")
    assert (
        first["error"]["type"] == "durableflow.StepTimeout"
        and "rollback handler of step 'a-1'" in first["error"]["message"]
    )


@pytest.mark.parametrize("limit", [0, 1])
def test_a_handler_that_hangs_in_a_thread(limit: int) -> None:
    """RET-04 for handlers: the watcher records the attempt and lets the instance go, another thread goes on."""
    gate = Gate()

    def undo(undo: Undo[str]) -> None:
        undone.append(undo.output)
        if undone == ["B"]:
            gate.stop_here()

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=undo)
        step.do("b", lambda: "B", rollback=Rollback(undo, retries=Retries(limit=limit, delay=0), timeout=1))
        step.do("c", Saga.fail)

    undone: list[str | None] = []
    row = workflow(run, []).create()
    task = Task(lambda: drain(30))
    gate.wait_until_reached()
    eventually(lambda: WorkflowInstance.objects.filter(pk=row.pk, lease_token=None).exists(), "the attempt is recorded")
    drained(row)
    assert (row.status, undone) == (S.ERRORED, ["B", *["B"] * limit, "A"])
    assert row.rollback == {"outcome": "complete" if limit else "failed", "failed": [] if limit else ["b-1"]}
    before = types_of(row)
    gate.open()
    task.result()
    row.refresh_from_db()
    assert row.status == S.ERRORED and types_of(row) == before, "what it returns late is dropped"
    (lost,) = history_of(row, "rollback_attempt_errored")
    assert lost["error"]["type"] == "durableflow.StepTimeout"


@pytest.mark.postgresql_only
def test_the_end_of_run_meets_a_locked_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Design 4, "Executor exits": the thread is free, the watcher begins the rollback, and the next look goes on with it."""
    ledger, held_up = Ledger(tmp_path / "ledger"), Gate()
    row = Saga.create(str(ledger.path))
    original = rollback_writes.begin
    first = True

    def begin(*args: Any) -> bool:
        nonlocal first
        if first:
            first = False
            held_up.stop_here()
        return original(*args)

    monkeypatch.setattr(rollback_writes, "begin", begin)
    task = Task(lambda: drain(30))
    held_up.wait_until_reached()
    with held(row, lock="FOR NO KEY UPDATE"):
        held_up.open()
        task.result()  # returns although the row is locked
        row.refresh_from_db()
        assert (row.status, watcher.held()) == (S.RUNNING, 1)
    eventually(lambda: watcher.held() == 0)
    row.refresh_from_db()
    assert (row.status, row.lease_token) == (S.ROLLING_BACK, None)
    check(drained(row), ledger, "begun")


def test_a_retry_delay_holds_no_slot(stopped_clock: StoppedClock) -> None:
    """RET-12, design 7: a handler's retry delay costs nothing; its next attempt waits for a slot like any work."""
    broken = [OSError("no")]

    def undo(undo: Undo[str]) -> None:
        log.append("undo")
        if broken:
            raise broken.pop()

    class One(Workflow[Any, Any]):
        class Meta:
            max_concurrency = 1

        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            if event.params == "other":
                step.do("other", log.append, "other")
                return
            step.do("a", lambda: "A", rollback=Rollback(undo, retries=Retries(limit=1, delay=60)))
            step.do("b", Saga.fail)

    log: list[str] = []
    row = drained(One.create())
    assert (row.status, row.holds_slot) == (S.ROLLING_BACK, False)
    assert drained(One.create("other")).status == S.COMPLETE
    stopped_clock.advance(60)
    drained(row)
    assert (row.status, log) == (S.ERRORED, ["undo", "other", "undo"])
    assert ConcurrencyLimit.objects.get().running == 0


def test_news_do_not_shorten_a_retry_delay(stopped_clock: StoppedClock) -> None:
    """RET-11 for handlers: what arrives in between wakes nobody for good."""
    broken = [OSError("no")]

    def undo(undo: Undo[str]) -> None:
        log.append("undo")
        WorkflowInstance.objects.filter(pk=row.pk).update(woken=True)
        if broken:
            raise broken.pop()

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=Rollback(undo, retries=Retries(limit=1, delay=60)))
        step.do("b", Saga.fail)

    log: list[str] = []
    row = workflow(run, log).create()
    drained(row)
    assert (row.status, log) == (S.ROLLING_BACK, ["undo"])
    stopped_clock.advance(60)
    assert (drained(row).status, log) == (S.ERRORED, ["undo", "undo"])


def test_lines_of_run_are_written_once_and_those_of_a_handler_too(caplog: pytest.LogCaptureFixture) -> None:
    """OPS-02: the replay that finds the handlers is silent, the handlers are not."""

    def run(step: Step, log: list[str]) -> None:
        logger = step.logger
        logger.warning("begins")
        step.do("a", lambda: "A", rollback=lambda undo: (logger.warning("undoes a"), step.logger.warning("really")))
        logger.warning("goes on")
        step.do("b", Saga.fail)

    drained(workflow(run, []).create())
    lines = [record.message for record in caplog.records if record.name == "durableflow.workflow.sample"]
    assert lines == ["begins", "goes on", "undoes a", "really"]
