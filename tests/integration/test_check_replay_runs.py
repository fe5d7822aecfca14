"""``replay_check`` of runs with branches, races and children, and of runs that have ended or are being undone (TST-06)."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from durableflow import Retries, Rollback, Step, Workflow, WorkflowEvent
from durableflow.core import registry
from durableflow.models import WorkflowInstance
from durableflow.testing import ReplayBroken, replay_check
from durableflow.testing.recorded import recorded_run, save
from tests.integration.check_flows import Run, deployed, ran, snapshot
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def test_branches(stopped_clock: StoppedClock, tmp_path: Path) -> None:
    """Design 7: each branch is checked in its own scope, finished or not; another number of branches, or other items, break."""

    def program(first: str = "one", branches: int = 2, items: int = 3) -> Run:
        def branch(step: Step, name: str, wait: bool) -> None:
            step.do(name, lambda: None)
            if wait:
                step.wait_for_event("go", type="go", timeout=None)

        def run(step: Step) -> Any:
            step.map("measure", lambda item: item, range(items))
            names = [first, "two", "three"][:branches]
            step.gather("both", *[partial(branch, step, name, name == "two") for name in names])

        return run

    row = drained(deployed(program()).create(instance_id="a"))
    path = save(recorded_run(row), tmp_path)
    for source in (row, path):
        deployed(program())
        assert replay_check(source).fits[0].met == 8
        for changed, said in (
            (program(first="uno"), "do 'both-1[1]/one-1' is recorded"),
            (program(branches=3), "began with 2 branches"),
            (program(items=4), "began with 3 items"),
        ):
            deployed(changed)
            with pytest.raises(ReplayBroken, match=re.escape(said)):
                replay_check(source)


@pytest.mark.parametrize("kind", ["complete", "errored", "terminated"])
def test_runs_that_have_ended(kind: str) -> None:
    """Their histories are whole, so they tell most; an error that ended a run is no break."""

    def run(step: Step) -> Any:
        step.do("load", lambda: None)
        if kind == "terminated":
            step.sleep("nap", 60)
        if kind == "errored":
            raise ValueError("no")
        return step.do("ship", lambda: "done")

    def changed(step: Step) -> Any:
        step.do("charge", ran)
        return run(step) if kind == "never" else None

    row = drained(deployed(run).create())
    if kind == "terminated":
        row.terminate()
    row.refresh_from_db()
    assert row.status == kind
    (fit,) = replay_check(row).fits
    assert (fit.met, fit.recorded, fit.note) == (1 if kind == "errored" else 2, 1 if kind == "errored" else 2, "")
    deployed(changed)
    with pytest.raises(ReplayBroken, match="do 'load-1' is recorded"):
        replay_check(row)


class Part(Workflow[Any, Any]):
    """A child that ends at once, or waits."""

    class Meta:
        name = "check-part"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        if event.params == "wait":
            step.wait_for_event("go", type="go", timeout=None)
        return step.do("part", lambda: f"part {event.params}")


def test_children(stopped_clock: StoppedClock) -> None:
    """Design 7: finished children give what is recorded, open ones are the end of the check; none is started by it."""
    registry.register("check-part", Part)

    def parent(first: str = "one", join: str = "join", insert: bool = False) -> Run:
        def run(step: Step) -> Any:
            one = step.run_workflow(first, Part, 1)
            if insert:
                step.run_workflow("inserted", Part, 5)
                step.start_workflow("aside", Part, 6)
            parts = step.run_workflows(join, Part, [2, 3])
            step.do("sum", lambda: [one, *parts])
            return step.run_workflow("last", Part, "wait")

        return run

    row = drained(deployed(parent()).create())
    assert row.status == S.WAITING and WorkflowInstance.objects.count() == 5
    for changed, inserted in ((parent(), 0), (parent(insert=True), 2)):
        deployed(changed)
        before = snapshot()
        (fit,) = replay_check(row).fits
        assert (fit.met, fit.recorded, len(fit.inserted), fit.unchecked) == (4, 4, inserted, 0)
        assert snapshot() == before
    for changed, said in (
        (parent(first="uno"), "child 'one-1' is recorded"),
        (parent(join="all"), "child 'join-1' is recorded"),
    ):
        deployed(changed)
        with pytest.raises(ReplayBroken, match=said):
            replay_check(row)


def test_a_run_that_is_being_undone(stopped_clock: StoppedClock) -> None:
    """Design 7: ``run`` has ended by an error, and is replayed for its handlers alone."""

    def program(first: str = "book") -> Run:
        def run(step: Step) -> Any:
            step.do(first, lambda: "booked", rollback=Rollback(undo, retries=1))
            step.do("pay", failing, retries=0)

        return run

    def undo(undone: Any) -> None:
        raise OSError("not now")

    def failing() -> None:
        raise ValueError("no money")

    row = drained(deployed(program()).create())
    assert row.status == S.ROLLING_BACK
    (fit,) = replay_check(row).fits
    assert (fit.met, fit.unchecked) == (2, 0)
    deployed(program(first="reserve"))
    with pytest.raises(ReplayBroken, match="do 'book-1' is recorded"):
        replay_check(row)


@pytest.mark.parametrize("kind", ["wait_for_event", "sleep", "do"])
def test_a_renamed_call_of_an_earlier_execution(stopped_clock: StoppedClock, kind: str) -> None:
    """Records of different executions are not compared, so that a worker finds it out at the end only: the new call runs, or is
    waited for, once more."""

    def program(name: str, inserted: bool = False) -> Run:
        def call(step: Step, name: str) -> Any:
            if kind == "sleep":
                return step.sleep(name, 60)
            if kind == "do":
                return step.do(name, attempt, retries=Retries(limit=1, delay=60))
            return step.wait_for_event(name, type="go", timeout=None).payload

        def run(step: Step) -> Any:
            if inserted:
                call(step, "inserted")
            if call(step, name) == "never":
                return None
            step.do("pack", lambda: None)
            return step.wait_for_event("second", type="second", timeout=None)

        return run

    tried: list[int] = []

    def attempt() -> None:
        tried.append(1)
        if len(tried) == 1:
            raise ValueError("later")

    row = drained(deployed(program("first")).create())
    row.send_event("go")
    stopped_clock.advance(60)
    assert drained(row).steps.count() == 3
    for changed, met in ((program("first"), 3), (program("first", inserted=True), 3)):
        deployed(changed)
        assert replay_check(row).fits[0].met == met
    deployed(program("renamed"))
    with pytest.raises(
        ReplayBroken, match=f"{kind} 'first-1' is recorded, but run\\(\\) calls {kind} 'renamed-1' in its place"
    ):
        replay_check(row)


def test_races(stopped_clock: StoppedClock) -> None:
    """Design 7: a race that is decided gives its winner, one that is open is the end of the check."""

    def program(name: str = "first of") -> Run:
        def run(step: Step) -> Any:
            winner = step.race(
                name,
                event=lambda: step.wait_for_event("go", type="go", timeout=None).payload,
                late=lambda: step.sleep("late", 60),
            )
            step.do("note", lambda: winner.name)
            return step.wait_for_event("second", type="second", timeout=None)

        return run

    row = drained(deployed(program()).create())
    for recorded_calls in (1, 3):
        deployed(program())
        (fit,) = replay_check(row).fits
        assert (fit.met, fit.recorded, fit.note) == (recorded_calls, recorded_calls, "")
        if recorded_calls == 3:
            deployed(program(name="winner of"))
            with pytest.raises(
                ReplayBroken, match="race 'first of-1' is recorded, but run\\(\\) calls race 'winner of-1' in its place"
            ):
                replay_check(row)
        deployed(program())
        row.send_event("go", 1)
        drained(row)
