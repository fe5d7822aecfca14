"""What is brought back to life while word of its parent's end is still under way (design 7; cases CHD-04, LIF-08, LIF-10)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.models import WorkflowInstance
from tests.integration.chd_flows import Child, S, children_of
from tests.integration.conftest import StoppedClock
from tests.integration.restart_flows import flow
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)


def orphan(params: dict[str, Any]) -> WorkflowInstance:
    """A queued child of a parent that has ended, before anybody has told the child."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.run_workflow("child", Child, params)

    row = flow(run).create()
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    (child,) = children_of(row)
    row.refresh_from_db()
    row.terminate()
    assert child.sent_events.filter(kind="parent", delivered=False).count() == 1
    return child


def executed(child: WorkflowInstance) -> WorkflowInstance:
    (claimed,) = claim("default", pk=child.pk)
    execute(claimed, renew=False)
    child.refresh_from_db()
    return child


@pytest.mark.parametrize("was", ["waiting", "paused", "complete"])
def test_a_restart_after_the_end_of_the_parent(was: str) -> None:
    """The person who restarts it comes after the parent, as where the child had been told at once."""
    child = executed(orphan({"n": 1} if was == "complete" else {"wait": 1}))
    if was == "paused":
        child.pause()
    assert child.status == was
    child.restart()
    assert drained(child).run_number == 2
    assert child.status == (S.COMPLETE if was == "complete" else S.WAITING)


@pytest.mark.parametrize("how", ["retry", "complete_step"])
def test_one_that_had_failed_goes_on(how: str) -> None:
    """It had ended by itself when the word would have reached it."""
    child = executed(orphan({"raise": "no"}))
    assert child.status == S.ERRORED
    child.retry() if how == "retry" else child.complete_step(child.steps.get(), None)
    assert drained(child).status == (S.ERRORED if how == "retry" else S.COMPLETE)


def test_an_end_that_comes_later_still_counts() -> None:
    """The parent ends after the restart: that is told to the new run."""
    row = flow(lambda event, step: step.run_workflow("child", Child, {"wait": 1})).create()
    drained(row)
    (child,) = children_of(row)
    child.restart()
    assert drained(child).status == S.WAITING
    row.refresh_from_db()
    row.terminate()
    assert drained(child).status == S.TERMINATED


def test_time_of_a_child_that_is_restarted_before_its_turn(stopped_clock: StoppedClock) -> None:
    """``max_duration`` begins when its turn comes, as for its siblings (LIF-08)."""

    class Timed(Workflow[int, int]):
        class Meta:
            name = "restart-family-timed"
            max_duration = "10 minutes"

        def run(self, event: WorkflowEvent[int], step: Step) -> int:
            step.wait_for_event("go", type="go", timeout=None)
            return event.params

    row = drained(flow(lambda event, step: step.run_workflows("many", Timed, [1, 2], concurrency=1)).create())
    first, second = sorted(children_of(row), key=lambda child: child.pk)
    stopped_clock.advance("1 minute")
    second.pause()
    stopped_clock.advance("1 minute")
    second.restart()
    stopped_clock.advance("1 minute")
    first.send_event("go")
    assert drained(first).status == S.COMPLETE
    assert drained(second).status == S.WAITING
    assert (second.deadline_at - stopped_clock.now).total_seconds() == 600
