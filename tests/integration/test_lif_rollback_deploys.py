"""Rollback while code changes under it, or while nobody can say which handlers there are (design 7, reference 8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from durableflow import NonRetryableError, Retries, Rollback, Step, Undo, Workflow
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.unwind import ProcessDied
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.integration.conftest import StoppedClock
from tests.integration.eng_flows import workflow
from tests.integration.lif_flows import Saga, arm
from tests.support.concurrency import child
from tests.support.engine import drained
from tests.support.ledger import Ledger

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Deploys:
    """Programs of one workflow that are deployed one after the other."""

    def __init__(self) -> None:
        self.undone: list[str] = []
        self.broken = True

    def undo(self, undo: Undo[str]) -> None:
        if self.broken and undo.context.name == "c":
            raise OSError("c cannot be undone now")
        self.undone.append(undo.context.name)

    def deploy(self, *handled: str, extra: str = "", renamed: bool = False) -> type[Workflow[Any, Any]]:
        def run(step: Step, log: list[str]) -> None:
            if extra:
                step.sleep(extra, 1)
            for name in "abc":
                handler = Rollback(self.undo, retries=Retries(limit=1, delay=60)) if name in handled else None
                step.do(f"new {name}" if renamed and name == "b" else name, lambda: None, rollback=handler)
            step.do("d", Saga.fail)

        return workflow(run, [])


def test_a_deploy_without_a_handler_and_back(stopped_clock: StoppedClock) -> None:
    """Design 7: what today's code does not give is recorded as failed, with the cure; put back, ``retry()`` runs it alone."""
    program = Deploys()
    row = drained(program.deploy(*"abc").create())
    assert (row.status, program.undone) == (S.ROLLING_BACK, []), "c's handler waits for its second attempt"
    program.broken = False
    program.deploy("a", "c")
    stopped_clock.advance("1 minute")
    drained(row)
    assert program.undone == ["c", "a"]
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "failed", "failed": ["b-1"]})
    error = row.steps.get(name="b").rollback_error
    assert error["type"].endswith("HandlerMissing")
    for part in ("'b-1'", row.label, "no rollback handler", "no money", "retry()"):
        assert part in error["message"]
    assert row.steps.get(name="b").rollback_attempts == 0
    program.deploy(*"abc")
    row.retry()
    drained(row)
    assert (program.undone, row.rollback) == (["c", "a", "b"], {"outcome": "complete", "failed": []})


def test_a_deploy_that_does_not_reach_a_step(stopped_clock: StoppedClock) -> None:
    """Reference 8: what the replay does not reach counts as failed; the message says where it stopped."""
    program = Deploys()
    row = drained(program.deploy(*"abc").create())
    program.broken = False
    program.deploy(*"abc", renamed=True)
    stopped_clock.advance("1 minute")
    drained(row)
    assert (program.undone, row.rollback) == (["a"], {"outcome": "failed", "failed": ["c-1", "b-1"]})
    program.deploy(*"abc")
    row.retry()
    drained(row)
    assert (program.undone, row.rollback) == (["a", "c", "b"], {"outcome": "complete", "failed": []})


def test_a_deploy_that_only_adds_a_step_undoes_nothing_more(stopped_clock: StoppedClock) -> None:
    """A step that never started is not undone, and a handler that a deploy adds is for steps that start under it."""
    program = Deploys()
    program.broken = False
    row = drained(program.deploy("a").create())
    assert (program.undone, row.rollback) == (["a"], {"outcome": "complete", "failed": []})
    program.undone.clear()
    program.broken = True
    row = drained(program.deploy("c").create())
    program.broken = False
    program.deploy(*"abc", extra="nap")
    stopped_clock.advance("1 minute")
    drained(row)
    assert (program.undone, row.rollback) == ([], {"outcome": "failed", "failed": ["c-1"]}), (
        "its replay ends at the nap"
    )
    program.deploy(*"abc")
    row.retry()
    drained(row)
    assert (program.undone, row.rollback) == (["c"], {"outcome": "complete", "failed": []})


def test_a_worker_that_does_not_know_the_workflow(stopped_clock: StoppedClock) -> None:
    """ENG-13: it is held, the status stays; one that knows it goes on."""
    program = Deploys()
    row = drained(program.deploy("c").create())
    program.broken = False
    stopped_clock.advance("1 minute")
    WorkflowInstance.objects.filter(pk=row.pk).update(workflow="elsewhere")
    drained(row)
    assert (row.status, row.hold) == (S.ROLLING_BACK, "unknown_workflow")
    WorkflowInstance.objects.filter(pk=row.pk).update(workflow="sample")
    stopped_clock.advance("1 hour")
    drained(row)
    assert (row.status, program.undone) == (S.ERRORED, ["c"])


@pytest.mark.parametrize("recorded", [True, False])
def test_the_database_was_away(recorded: bool, stopped_clock: StoppedClock) -> None:
    """A step that has failed with a database error is undone like any. But where ``run`` itself cannot reach a database, nobody
    knows yet which handlers there are: the rollback is tried again."""
    away = not recorded

    def fails() -> None:
        raise OperationalError("the other database is away")

    def run(step: Step, log: list[str]) -> None:
        if away and log:
            fails()
        step.do("a", lambda: "A", rollback=Rollback(lambda undo: log.append("undo"), retries=0))
        if recorded:
            step.do("b", fails, retries=0)
        log.append("run")
        raise NonRetryableError("bug")

    log: list[str] = []
    row = drained(workflow(run, log).create())
    if not recorded:
        assert (row.status, row.give_backs, log) == (S.ROLLING_BACK, 1, ["run"])
        away = False
        stopped_clock.advance(5)
        drained(row)
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
    assert log[-1] == "undo"


def test_a_deploy_that_never_stops(tmp_path: Path) -> None:
    """Design 6, "Suspension": the instance is blocked before its process is ended, so that it takes no other along; with the
    code put back ``resume()`` goes on with the rollback."""
    ledger = Ledger(tmp_path / "ledger")
    row = Saga.create(str(ledger.path))

    def stop() -> None:
        raise ProcessDied("begun")

    with pytest.MonkeyPatch.context() as patch:
        interceptor = arm("begun", stop, patch.setattr)
        (claimed,) = claim("default")
        with pytest.raises(ProcessDied):
            execute(claimed, interceptor=interceptor)
    expire_leases()
    with child("tests.integration.lif_flows:drain_endlessly") as process:
        _out, err = process.communicate(timeout=60)
        assert process.returncode not in (0, -9), err
    row.refresh_from_db()
    assert row.status == S.PAUSED and "SuspensionSwallowed" in row.blocked
    row.resume()
    assert row.status == S.ROLLING_BACK
    assert (drained(row).status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
    assert ledger.lines == ["a", "b", "c", "undo C", "undo B", "undo A"]
