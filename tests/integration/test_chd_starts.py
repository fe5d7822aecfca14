"""How a child is started: with its record in one transaction, once, and never another's instance (design 7; cases CHD-02, CHD-03,
ENG-04)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import InstanceAlreadyExists, Step, WorkflowEvent, drain
from durableflow.core.exceptions import CodecError
from durableflow.models import StepRecord, WorkflowInstance
from tests.integration.chd_flows import Child, S, children_of, fresh, history, parent, record_of, waiting

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("call", ["run", "start"])
def test_a_foreign_instance_is_never_adopted(finished: bool, call: str) -> None:
    """Case CHD-02: a named error in the parent, which can be caught; the foreign run and its result are not touched."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            if call == "run":
                return step.run_workflow("child", Child, {"n": 1}, instance_id="x")
            return step.start_workflow("child", Child, {"n": 1}, instance_id="x")
        except InstanceAlreadyExists as error:
            return ["refused", error.workflow, error.instance_id]

    foreign = Child.create({"n": "foreign"} if finished else {"wait": 1}, instance_id="x")
    drain(5)
    before = WorkflowInstance.objects.filter(pk=foreign.pk).values().get()
    row = parent(run).create()
    drain(5)
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, ["refused", "chd-child", "x"])
    assert WorkflowInstance.objects.filter(pk=foreign.pk).values().get() == before
    assert children_of(row) == [] and record_of(row, "child").status == "failed"


def test_what_is_wrong_with_the_params_fails_the_step() -> None:
    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            step.run_workflow("child", Child, {"n": object()})
        except CodecError as error:
            return step.do("note", str, str(error))

    row = parent(run).create()
    drain(5)
    row.refresh_from_db()
    assert row.status == S.COMPLETE and "arams of chd-child" in row.output
    assert WorkflowInstance.objects.count() == 1


@pytest.mark.parametrize("call", ["run", "start"])
def test_the_record_and_the_child_are_one_transaction(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case CHD-03: a crash at any moment leaves both or neither, and the replay comes to the same child."""
    from durableflow.engine import child_rows
    from durableflow.engine.unwind import ProcessDied

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        start = step.run_workflow if call == "run" else step.start_workflow
        return start("child", Child, {"n": 1})

    row = parent(run).create()
    tell, crashes = child_rows.tell, []

    def crash(*args: Any) -> None:
        tell(*args)
        if not crashes:  # all statements are done, and nothing is committed
            crashes.append([WorkflowInstance.objects.count(), StepRecord.objects.count()])
            raise ProcessDied

    monkeypatch.setattr(child_rows, "tell", crash)
    with pytest.raises(ProcessDied):
        drain(5)
    assert crashes == [[2, 1]]
    assert [WorkflowInstance.objects.count(), StepRecord.objects.count()] == [1, 0]
    WorkflowInstance.objects.update(suspect=True, wake_at="2020-01-01T00:00:00Z")
    drain(5)
    assert fresh(row).status == S.COMPLETE and len(children_of(row)) == 1


def test_a_crash_after_the_commit_finds_the_same_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case CHD-03: killed after the child is committed and before the parent is let go: one child, of the derived id."""
    from durableflow.engine import child_writes
    from durableflow.engine.unwind import ProcessDied

    start, crashes = child_writes.start, []

    def crash(*args: Any) -> None:
        start(*args)
        if not crashes:
            crashes.append(1)
            raise ProcessDied

    monkeypatch.setattr(child_writes, "start", crash)
    row = parent(waiting).create({"n": 1})
    with pytest.raises(ProcessDied):
        drain(5)
    (child,) = children_of(row)
    WorkflowInstance.objects.filter(pk=row.pk).update(suspect=True, wake_at="2020-01-01T00:00:00Z")
    drain(5)
    assert fresh(row).status == S.COMPLETE and children_of(row) == [child]


def test_a_lost_answer_of_the_commit_makes_no_second_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case CHD-03: the write is tried again, and finds itself done."""
    from durableflow.engine import child_writes

    start = child_writes.start
    monkeypatch.setattr(child_writes, "start", lambda *args: (start(*args), start(*args)))
    row = parent(waiting).create({"n": 1})
    drain(5)
    assert fresh(row).status == S.COMPLETE and len(children_of(row)) == 1
    assert len(history(row, "child_started")) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [("run", "start"), ("start", "run"), ("join", "run"), ("run", "join"), ("start", "join")],
)
def test_another_call_under_the_name_is_refused(first: str, second: str) -> None:
    """Case ENG-04: all three are of one kind, but none takes another's record."""
    way = [first]

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if way[0] == "run":
            step.run_workflow("child", Child, {"n": 1})
        elif way[0] == "start":
            step.start_workflow("child", Child, {"n": 1})
        else:
            step.run_workflows("child", Child, [{"n": 1}])
        step.wait_for_event("later", type="later", timeout=None)

    row = parent(run).create()
    drain(5)
    way[0] = second
    row.send_event("later")
    drain(5)
    row.refresh_from_db()
    assert row.status == S.PAUSED and "NonDeterminismError" in row.blocked and "_workflow" in row.blocked
    way[0] = first
    row.resume()
    drain(5)
    assert fresh(row).status == S.COMPLETE
