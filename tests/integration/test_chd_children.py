"""One child that its parent waits for, or starts and leaves (design 7; cases CHD-01, CHD-06, LIF-19)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durableflow import Step, WorkflowEvent, WorkflowFailed, WorkflowTimeout, drain
from durableflow.models import Priority, SentEvent, StepRecord, WorkflowInstance
from durableflow.timeline import reason
from tests.integration.chd_flows import (
    Child,
    Declined,
    S,
    child_of,
    children_of,
    fresh,
    history,
    last_entry,
    parent,
    record_of,
    settle,
    step_of,
    waiting,
)
from tests.integration.conftest import StoppedClock

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_child_runs_and_gives_its_output(customer: Any) -> None:
    """Design 7: the wait costs nothing; history and links tell of both."""
    row = parent(waiting, priority=Priority.HIGH).create({"n": [1, {"a": 2}]}, created_by=customer)
    drain(5)
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, [1, {"a": 2}])
    child = child_of(row)
    assert (child.trigger, child.created_by, child.priority) == ("parent", customer, Priority.HIGH)
    assert (child.on_parent_end, step_of(child).name) == ("terminate", "child")
    assert history(child)[0] == ("workflow_queued", {"trigger": "parent"})
    told = {"workflow": "chd-child", "instance_id": child.instance_id}
    assert history(row, "child_started", "child_finished") == [
        ("child_started", told),
        ("child_finished", {**told, "status": "complete"}),
    ]
    assert row.execution == 2
    assert list(StepRecord.objects.get(instance=row).children.all()) == [child]


def test_a_waiting_parent_costs_nothing() -> None:
    """Design 1.4: no wake, no lease, no thread."""
    row = parent(waiting).create({"wait": 1})
    drain(5)
    row.refresh_from_db()
    assert (row.status, row.wake_at, row.lease_token) == (S.WAITING, None, None)
    assert reason(row) == "Waits for its child workflow in child-1."
    child_of(row).send_event("go", "went")
    drain(5)
    assert fresh(row).output == "went"


def test_the_parent_catches_what_a_child_has_raised() -> None:
    """Cases CHD-01, LIF-19 (third run): the parent's except runs once, with the child's id and its error."""
    seen: list[Any] = []

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            step.run_workflow("child", Child, {"raise": "no money"})
        except WorkflowFailed as error:
            cause = error.__cause__
            assert isinstance(cause, Declined)
            return step.do(
                "undo", undo, [error.workflow, error.instance_id, error.status, error.error["message"], cause.code]
            )

    def undo(told: list[Any]) -> list[Any]:
        seen.append(told)
        return told

    row = parent(run).create()
    drain(5)
    row.refresh_from_db()
    child = child_of(row)
    assert (row.status, row.error, child.status) == (S.COMPLETE, None, S.ERRORED)
    assert seen == [["chd-child", child.instance_id, "errored", "no money", 7]] == [row.output]
    failed = record_of(row, "child")
    assert failed.status == "failed" and failed.error is not None
    assert failed.error["type"] == "durableflow.WorkflowFailed" and "no money" in failed.error["traceback"]


def test_an_uncaught_failure_of_a_child_ends_the_parent() -> None:
    row = parent(waiting).create({"raise": "no"})
    drain(5)
    row.refresh_from_db()
    assert row.status == S.ERRORED and row.error is not None
    assert (row.error["type"], row.error["step"]) == ("durableflow.WorkflowFailed", "child-1")


def test_a_terminated_child_tells_its_parent() -> None:
    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            step.run_workflow("child", Child, {"wait": 1})
        except WorkflowFailed as error:
            return [error.status, error.error]

    row = parent(run).create()
    drain(5)
    child_of(row).terminate()
    drain(5)
    assert fresh(row).output == ["terminated", {}]


def test_a_deleted_child_tells_its_parent() -> None:
    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            step.run_workflow("child", Child, {"wait": 1})
        except WorkflowFailed as error:
            return error.status

    row = parent(run).create()
    drain(5)
    WorkflowInstance.objects.filter(pk=child_of(row).pk).delete()
    drain(5)
    assert fresh(row).output == "deleted"


def test_a_child_that_its_parent_only_starts_goes_its_own_way() -> None:
    """Reference scenario E2: the parent goes on while the child runs; its end tells nobody."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        started = step.start_workflow("child", Child, {"wait": 1}, instance_id=f"child-{step.instance_id}")
        return step.do("other work", str, started)

    row = parent(run).create(instance_id="p")
    drain(5)
    row.refresh_from_db()
    child = child_of(row)
    assert (row.status, row.output, child.status) == (S.COMPLETE, "child-p", S.WAITING)
    assert (child.instance_id, child.on_parent_end) == ("child-p", "leave")
    child.send_event("go", 5)
    drain(5)
    assert fresh(child).output == 5 and not SentEvent.objects.exclude(kind="event").exists()


def test_waiting_parents_leave_their_slots_to_their_children() -> None:
    """Case CHD-06: two parents and their children share a limit of two."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if event.params:
            return event.params
        return [step.run_workflow(name, flow, name) for name in ("a", "b")]

    flow = parent(run, max_concurrency=2)
    rows = [flow.create() for _ in range(2)]
    drain(10)
    assert [fresh(row).output for row in rows] == [["a", "b"]] * 2


def test_a_child_that_takes_too_long_is_given_up(stopped_clock: StoppedClock) -> None:
    """Design 7, ``timeout``: the call raises WorkflowTimeout, and the child is terminated."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            return step.run_workflow("child", Child, {"wait": 1}, timeout="1 hour")
        except WorkflowTimeout as error:
            return step.do("note", str, str(error))

    row = parent(run).create()
    drain(5)
    child = child_of(row)
    assert fresh(row).wake_at == stopped_clock.now + timedelta(hours=1)
    assert reason(fresh(row)).startswith("Waits for its child workflow in child-1 until")
    stopped_clock.advance("59 minutes")
    drain(5)
    assert fresh(row).status == S.WAITING
    stopped_clock.advance("1 minute")
    drain(5)
    settle()
    row.refresh_from_db()
    child.refresh_from_db()
    assert row.status == S.COMPLETE and child.instance_id in row.output and "timeout" in row.output
    assert (child.status, history(child)[-1][0]) == (S.TERMINATED, "workflow_terminated")
    assert "chd-parent" in last_entry(child).reason


def test_a_child_that_ends_at_the_last_moment_counts(stopped_clock: StoppedClock) -> None:
    """What was committed before the time-out was recorded is taken, under the parent's lock."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.run_workflow("child", Child, {"wait": 1}, timeout="1 hour")

    from durableflow.engine.claims import claim
    from durableflow.engine.executor import execute

    row = parent(run).create()
    drain(5)
    child = child_of(row)
    child.send_event("go", "in time")
    settle()
    stopped_clock.advance("1 hour")
    (of_parent,) = claim("default", pk=row.pk)
    (of_child,) = claim("default", pk=child.pk)
    execute(of_child, renew=False)
    execute(of_parent, renew=False)
    assert (fresh(row).status, fresh(row).output) == (S.COMPLETE, "in time")


def test_a_child_that_ends_after_its_time_changes_nothing(stopped_clock: StoppedClock) -> None:
    from durableflow.engine.claims import claim
    from durableflow.engine.executor import execute

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            return step.run_workflow("child", Child, {"wait": 1}, timeout="1 hour")
        except WorkflowTimeout:
            return "late"

    row = parent(run).create()
    drain(5)
    child = child_of(row)
    child.send_event("go", 1)
    settle()
    stopped_clock.advance("1 hour")
    (of_parent,) = claim("default", pk=row.pk)
    (of_child,) = claim("default", pk=child.pk)
    execute(of_parent, renew=False)
    execute(of_child, renew=False)
    settle()
    assert (fresh(row).output, fresh(child).status) == ("late", S.COMPLETE)
    assert record_of(row, "child").status == "failed" and not history(row, "child_finished")


def test_a_blocked_parent_gets_the_outcome_and_is_not_woken() -> None:
    """Design 4: paused instances are told and left as they are."""
    broken = [False]

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if broken[0]:
            step.do("child", lambda: None)
        return step.run_workflow("child", Child, {"wait": 1})

    row = parent(run).create()
    drain(5)
    broken[0] = True
    row.send_event("anything")
    drain(5)
    assert fresh(row).status == S.PAUSED
    child_of(row).send_event("go", 3)
    drain(5)
    row.refresh_from_db()
    assert (row.status, row.wake_at, record_of(row, "child").status) == (S.PAUSED, None, "complete")
    broken[0] = False
    row.resume()
    drain(5)
    assert fresh(row).output == 3


def test_children_in_branches() -> None:
    """Design 7: a branch waits for its child while the others go on."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather(
            "both",
            lambda: step.run_workflow("child", Child, {"n": 1}),
            lambda: step.run_workflow("child", Child, {"wait": 1}),
            lambda: step.run_workflows("more", Child, [{"n": 2}, {"n": 3}]),
        )

    row = parent(run).create()
    drain(5)
    assert fresh(row).status == S.WAITING
    (second,) = [child for child in children_of(row) if child.status == S.WAITING]
    second.send_event("go", "went")
    drain(5)
    assert fresh(row).output == (1, "went", [2, 3])
