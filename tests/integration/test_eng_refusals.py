"""Durable calls where none may be, and loops that meet a limit (ENG-10, ENG-12)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# ENG-10 -------------------------------------------------------------------------------------------------------------

NESTED = {
    "do": lambda step: step.do("inner", lambda: 1),
    "sleep": lambda step: step.sleep("inner", 1),
    "sleep_until": lambda step: step.sleep_until("inner", 1),
    "wait_for_event": lambda step: step.wait_for_event("inner", type="x"),
    "wait_for_approval": lambda step: step.wait_for_approval("inner"),
    "now": lambda step: step.now(),
    "uuid4": lambda step: step.uuid4(),
    "random": lambda step: step.random.random(),
    "set_progress": lambda step: step.set_progress(1),
}


@pytest.mark.parametrize("kind", NESTED)
def test_durable_call_in_a_body_is_refused(kind: str) -> None:
    """ENG-10: not retried, names outer and inner, leaves no row for inner."""
    bodies: list[str] = []

    class Nested(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            def outer() -> Any:
                bodies.append("outer")
                return NESTED[kind](step)

            return step.do("outer", outer, retries=5)

    instance = drained(Nested.create())
    assert instance.status == S.ERRORED
    assert instance.error is not None
    assert instance.error["type"].endswith("InvalidDurableCall")
    assert "outer-1" in instance.error["message"] and kind in instance.error["message"]
    assert instance.error["step"] == "outer-1"
    assert (steps_of(instance), bodies) == ([("outer-1", "failed")], ["outer"])
    assert instance.steps.get().attempts == 1


def test_refusal_in_a_body_is_sticky() -> None:
    """ENG-10: a refusal that is caught inside the body, and again in run, ends as blocked, not as success."""

    class Sticky(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            def outer() -> str:
                try:
                    step.do("inner", lambda: 1)
                except Exception:
                    pass
                return "fine"

            try:
                return step.do("outer", outer)
            except Exception:
                return "caught"

    instance = drained(Sticky.create())
    assert instance.status == S.PAUSED
    assert instance.blocked.startswith("InvalidDurableCall") and "outer-1" in instance.blocked
    instance.resume()
    assert drained(instance).status == S.PAUSED  # the code is as wrong as before


def test_refused_body_runs_again_after_its_repair() -> None:
    """ENG-10, design 6: a blocked instance is repairable: the repaired body runs."""
    code = {"nested": True}

    class Repaired(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            try:
                return step.do("outer", lambda: step.do("inner", lambda: 1) if code["nested"] else "good")
            except Exception:
                return "caught"

    instance = drained(Repaired.create())
    assert instance.status == S.PAUSED
    code["nested"] = False
    instance.resume()
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "good")


def test_refused_body_is_retried_by_an_operator() -> None:
    """ENG-10, LIF-10: uncaught it ends the instance, and ``retry()`` runs the repaired body."""
    code = {"nested": True}

    class Retried(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.do("outer", lambda: step.do("inner", lambda: 1) if code["nested"] else "good")

    instance = drained(Retried.create())
    assert instance.status == S.ERRORED
    code["nested"] = False
    instance.retry()
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "good")


# ENG-12 -------------------------------------------------------------------------------------------------------------


def endless(nap: float) -> type[Workflow]:
    """A loop without an end."""

    class Endless(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            while True:
                step.do("tick", lambda: None)
                step.sleep("nap", nap)

    return Endless


def test_endless_loop_meets_the_limit(settings: Any) -> None:
    """ENG-12: errored at step 51 with a message naming the limit; sleeps do not count."""
    settings.DURABLEFLOW = {"LIMITS": {"steps": 50}}

    instance = drained(endless(0).create())
    assert instance.status == S.ERRORED
    assert instance.error is not None
    assert instance.error["type"].endswith("LimitExceeded")
    assert "the number of steps" in instance.error["message"]
    assert instance.error["message"].startswith(f"{instance.label}: the number"), (
        "ids are case-sensitive: not Endless/..."
    )
    assert "step.continue_as_new" in instance.error["message"], "the cure"
    assert "51 steps" in instance.error["message"] and "50 steps" in instance.error["message"]
    assert instance.steps.filter(kind="do").count() == 50
    assert instance.steps.filter(kind="sleep").count() == 50


def test_limit_counts_over_replays(stopped_clock: StoppedClock, settings: Any) -> None:
    """ENG-12: the limit is the run's, not the execution's."""
    settings.DURABLEFLOW = {"LIMITS": {"steps": 5}}

    instance = drained(endless(1).create())
    for _ in range(8):
        stopped_clock.advance(1)
        drained(instance)
    assert (instance.status, instance.steps.filter(kind="do").count()) == (S.ERRORED, 5)


def test_limit_of_records_counts_all_kinds(settings: Any) -> None:
    """ENG-12: a loop of sleeps alone ends too."""
    settings.DURABLEFLOW = {"LIMITS": {"records": 20}}

    class Endless(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            while True:
                step.sleep("nap", 0)

    instance = drained(Endless.create())
    assert (instance.status, instance.steps.count()) == (S.ERRORED, 20)
    assert instance.error is not None and "records" in instance.error["message"]
