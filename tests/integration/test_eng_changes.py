"""A changed program is found out at its first replay, and can be put back (ENG-04)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, noted, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# ENG-04 -------------------------------------------------------------------------------------------------------------


def _deployed(run: Any) -> type[Workflow]:
    """A version of the workflow ``deploy``: what a process finds after a deploy."""
    cls = type(
        "Deploy", (Workflow,), {"run": run, "Meta": type("Meta", (), {"name": "deploy"}), "__module__": __name__}
    )
    return cls


def test_inserted_step_gets_no_foreign_value(stopped_clock: StoppedClock) -> None:
    """ENG-04 v2: the new step runs, the recorded ones are reused by name."""
    bodies: list[str] = []

    def body(name: str) -> str:
        bodies.append(name)
        return f"value of {name}"

    def old(self: Any, event: WorkflowEvent, step: Step) -> Any:
        loaded = step.do("load", body, "load")
        step.wait_for_event("go", type="go", timeout=None)
        return step.do("save", body, f"save({loaded})")

    def new(self: Any, event: WorkflowEvent, step: Step) -> Any:
        loaded = step.do("load", body, "load")
        enriched = step.do("enrich", body, "enrich")
        step.wait_for_event("go", type="go", timeout=None)
        return [enriched, step.do("save", body, f"save({loaded})")]

    instance = drained(_deployed(old).create())
    assert instance.status == S.WAITING
    _deployed(new)
    instance.send_event("go")
    assert drained(instance).status == S.COMPLETE
    assert instance.output == ["value of enrich", "value of save(value of load)"]
    assert bodies == ["load", "enrich", "save(value of load)"]


def test_other_kind_under_a_recorded_name_blocks_and_can_be_put_back(stopped_clock: StoppedClock) -> None:
    """ENG-04 v3: a loud, repairable stop that names what was expected and what was found."""
    bodies: list[str] = []

    def old(self: Any, event: WorkflowEvent, step: Step) -> Any:
        loaded = step.do("load", lambda: noted(bodies, "load", "loaded"))
        step.wait_for_event("go", type="go", timeout=None)
        return loaded

    def new(self: Any, event: WorkflowEvent, step: Step) -> Any:
        step.sleep("load", "1 second")
        step.wait_for_event("go", type="go", timeout=None)
        return "wrong"

    instance = drained(_deployed(old).create())
    _deployed(new)
    instance.send_event("go")
    assert drained(instance).status == S.PAUSED
    assert instance.blocked.startswith("NonDeterminismError: deploy/")
    assert "recorded with do 'load-1'" in instance.blocked and "calls sleep 'load-1'" in instance.blocked
    assert [label for label, _ in steps_of(instance)] == ["load-1", "go-1"]  # nothing was written

    _deployed(old)
    instance.resume()
    assert (drained(instance).status, instance.output, bodies) == (S.COMPLETE, "loaded", ["load"])


@pytest.mark.parametrize("early_end", [False, True])
def test_a_renamed_step_is_repaired_by_the_old_code(stopped_clock: StoppedClock, early_end: bool) -> None:
    """ENG-04: what the wrong code has made stays in the journal, but the right code need not meet it."""
    bodies: list[str] = []

    def program(first: str, after: bool) -> Any:
        def run(self: Any, event: WorkflowEvent, step: Step) -> Any:
            step.do(first, lambda: noted(bodies, first))
            if after:
                step.wait_for_event("go", type="go", timeout=None)
                step.do("ship", lambda: noted(bodies, "ship"))
            return first

        return run

    instance = drained(_deployed(program("charge", True)).create())
    _deployed(program("charge the card", not early_end))
    instance.send_event("go")
    assert drained(instance).status == S.PAUSED
    assert instance.blocked.startswith("NonDeterminismError")

    _deployed(program("charge the card", not early_end))
    instance.resume()
    assert drained(instance).status == S.PAUSED  # the wrong code is still found out

    _deployed(program("charge", True))
    instance.resume()
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "charge")
    assert bodies == ["charge", "charge the card", "ship"]


def test_removed_step_blocks(stopped_clock: StoppedClock) -> None:
    """ENG-04: a step that was taken out before a recorded one is found out when the later one is met."""

    def old(self: Any, event: WorkflowEvent, step: Step) -> Any:
        step.do("a", lambda: 1)
        step.do("b", lambda: 2)
        step.sleep("nap", 60)

    def new(self: Any, event: WorkflowEvent, step: Step) -> Any:
        step.do("b", lambda: 3)
        step.sleep("nap", 60)

    instance = drained(_deployed(old).create())
    _deployed(new)
    stopped_clock.advance(60)
    assert drained(instance).status == S.PAUSED
    assert "recorded with do 'a-1' before do 'b-1'" in instance.blocked


def test_earlier_end_blocks(stopped_clock: StoppedClock) -> None:
    """ENG-04, ENG-08: returning before the recorded calls are met is a change too."""

    def old(self: Any, event: WorkflowEvent, step: Step) -> Any:
        step.do("a", lambda: 1)
        step.sleep("nap", 60)

    def new(self: Any, event: WorkflowEvent, step: Step) -> Any:
        return step.do("a", lambda: 1)

    instance = drained(_deployed(old).create())
    _deployed(new)
    stopped_clock.advance(60)
    assert drained(instance).status == S.PAUSED
    assert "has returned, but sleep 'nap-1' is recorded" in instance.blocked
