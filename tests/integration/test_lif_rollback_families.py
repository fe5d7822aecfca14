"""Rollback of parents reaches the children that end with them (design 7; LIF-17, CHD-04)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import NonRetryableError, Rollback, Step, Undo, Workflow, WorkflowEvent, drain
from durableflow.models import ConcurrencyLimit, WorkflowInstance
from tests.integration.eng_flows import workflow
from tests.support.engine import drained, history_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
UNDONE: list[str] = []
COMPLETE = {"outcome": "complete", "failed": []}


@pytest.fixture(autouse=True)
def nothing_is_undone() -> None:
    UNDONE.clear()


def note(undo: Undo[Any]) -> None:
    UNDONE.append(undo.context.name)


def family(parent_has: bool = True, leave: bool = False, **meta: Any) -> WorkflowInstance:
    """A parent that waits for a child that waits for a grandchild; all have something to undo, the parent perhaps not."""

    class Grandchild(Workflow[Any, Any]):
        class Meta:
            name = "lif-grandchild"

        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.do("grandchild", lambda: None, rollback=note)
            step.wait_for_event("never", type="x", timeout=None)

    class Child(Workflow[Any, Any]):
        Meta = type("Meta", (), {"name": "lif-child", **meta})

        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.do("child", lambda: None, rollback=note)
            step.run_workflow("grandchild", Grandchild, None)

    def run(step: Step, log: list[str]) -> None:
        step.do("parent", lambda: None, rollback=note if parent_has else None)
        if leave:
            step.start_workflow("child", Child, None)
            step.wait_for_event("fails", type="fails", timeout=None)
        else:
            step.gather("both", lambda: step.run_workflow("child", Child, None), lambda: waits(step))

    def waits(step: Step) -> None:
        step.wait_for_event("fails", type="fails", timeout=None)
        raise NonRetryableError("no money")

    row = drained(workflow(run, []).create())
    drain(5)
    row.refresh_from_db()
    assert row.status == S.WAITING
    return row


def ends() -> dict[str, tuple[str, Any]]:
    drain(5)
    return {row.workflow: (row.status, row.rollback) for row in WorkflowInstance.objects.all()}


def test_children_are_undone_after_their_parent() -> None:
    """An operator who asks to undo first gets what is ended undone, the parent's own handlers before those of its children."""
    row = family()
    row.terminate(rollback=True)
    found = ends()
    assert UNDONE == ["parent", "child", "grandchild"]
    assert found == dict.fromkeys(found, (S.TERMINATED, COMPLETE)) and len(found) == 3
    child = WorkflowInstance.objects.get(workflow="lif-child")
    assert child.history.get(type="rollback_started").reason == f"Its parent {row.label} has ended."
    assert history_of(child, "rollback_started") == [{"verb": "terminate"}]


def test_a_parent_with_nothing_to_undo_passes_it_on() -> None:
    row = family(parent_has=False)
    row.terminate(rollback=True)
    assert row.status == S.TERMINATED
    found = ends()
    assert UNDONE == ["child", "grandchild"]
    assert found == {
        "sample": (S.TERMINATED, None), "lif-child": (S.TERMINATED, COMPLETE), "lif-grandchild": (S.TERMINATED, COMPLETE),
    }  # fmt: skip


def test_plain_terminate_undoes_no_child() -> None:
    """LIF-17: undo must be asked for."""
    row = family()
    row.terminate()
    found = ends()
    assert UNDONE == [] and found == dict.fromkeys(found, (S.TERMINATED, None))
    assert "rollback_started" not in types_of(WorkflowInstance.objects.get(workflow="lif-child"))


def test_a_child_that_was_only_started_goes_on() -> None:
    row = family(leave=True)
    row.terminate(rollback=True)
    found = ends()
    assert UNDONE == ["parent"] and found["lif-child"] == (S.WAITING, None)


@pytest.mark.parametrize("parent_has", [True, False])
def test_the_parents_error(parent_has: bool) -> None:
    """A parent that is rolled back after an error undoes its children with it; one that has nothing to undo keeps what they did:
    its ``retry()`` starts them anew under the same keys."""

    class Child(Workflow[Any, Any]):
        class Meta:
            name = "lif-child"

        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.do("child", lambda: None, rollback=note)
            step.wait_for_event("never", type="x", timeout=None)

    def run(step: Step, log: list[str]) -> None:
        step.do("parent", lambda: None, rollback=note if parent_has else None)
        step.start_workflow("child", Child, None, on_parent_end="terminate")
        step.wait_for_event("fails", type="fails", timeout=None)
        raise NonRetryableError("no money")

    row = drained(workflow(run, []).create())
    row.send_event("fails")
    drained(row)
    found = ends()
    assert row.status == S.ERRORED
    assert UNDONE == (["parent", "child"] if parent_has else [])
    assert found["lif-child"] == (S.TERMINATED, COMPLETE if parent_has else None)


def test_a_child_that_runs_gives_its_slot_back() -> None:
    """RET-12: counted once, whoever held it."""

    class Child(Workflow[Any, Any]):
        class Meta:
            name = "lif-child"
            max_concurrency = 1

        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.do(
                "child", lambda: WorkflowInstance.objects.get(workflow="sample").terminate(rollback=True), rollback=note
            )
            drain(1)  # somebody delivers while it runs

    def run(step: Step, log: list[str]) -> None:
        step.run_workflow("child", Child, None)

    row = drained(workflow(run, []).create())
    assert (row.status, ends()["lif-child"]) == (S.TERMINATED, (S.TERMINATED, COMPLETE))
    assert (UNDONE, ConcurrencyLimit.objects.get().running) == (["child"], 0)


def test_a_handler_of_a_child_that_fails() -> None:
    """LIF-16: it is the child's own matter, and can be retried there."""
    works = False

    def handler(undo: Undo[Any]) -> None:
        note(undo)
        if not works:
            raise NonRetryableError("no")

    class Child(Workflow[Any, Any]):
        class Meta:
            name = "lif-child"

        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.do("child", lambda: None, rollback=Rollback(handler, retries=0))
            step.wait_for_event("never", type="x", timeout=None)

    def run(step: Step, log: list[str]) -> None:
        step.do("parent", lambda: None, rollback=note)
        step.run_workflow("child", Child, None)

    row = drained(workflow(run, []).create())
    row.terminate(rollback=True)
    found = ends()
    assert found == {
        "sample": (S.TERMINATED, COMPLETE),
        "lif-child": (S.TERMINATED, {"outcome": "failed", "failed": ["child-1"]}),
    }
    works = True
    WorkflowInstance.objects.get(workflow="lif-child").retry()
    assert ends()["lif-child"] == (S.TERMINATED, COMPLETE)
    assert UNDONE == ["parent", "child", "child"]
