"""``retry()`` of parents and children: what runs again, and which children are started anew (design 7, 9)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine import orphans
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.models import WorkflowInstance
from tests.integration.chd_flows import Child, S, child_of, children_of, fresh, history, record_of
from tests.integration.chd_flows import parent as flow
from tests.integration.conftest import StoppedClock

pytestmark = pytest.mark.django_db(transaction=True)


def test_retry_of_a_finished_child_does_not_disturb_the_parent() -> None:
    """A child that has failed, whose parent has caught that, is repaired on its own."""
    works = [False]

    class Fragile(Workflow[Any, Any]):
        class Meta:
            name = "chd-fragile"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.do("body", body, retries=0)

    def body() -> str:
        if not works[0]:
            raise ValueError("no")
        return "repaired"

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            step.run_workflow("child", Fragile, None)
        except Exception:
            step.wait_for_event("later", type="later", timeout=None)
        return "went on"

    row = flow(run).create()
    drain(5)
    before, told = fresh(row), history(row)
    works[0] = True
    child = child_of(row)
    child.retry()
    drain(5)
    assert fresh(child).output == "repaired"
    after = fresh(row)
    assert (after.status, after.execution, history(row)) == (S.WAITING, before.execution, told)
    row.send_event("later")
    drain(5)
    assert fresh(row).output == "went on" and record_of(row, "child").status == "failed"


@pytest.mark.parametrize("call", ["one", "join"])
@pytest.mark.parametrize("repair", ["parent", "child first"])
def test_retry_of_the_parent_retries_its_failed_child(call: str, repair: str) -> None:
    """Design 9: the failed step again, everything else and all idempotency keys kept: in the child too."""
    works, bodies = [False], []

    class Fragile(Workflow[Any, Any]):
        class Meta:
            name = "chd-fragile"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.do("first", bodies.append, event.params)
            return step.do("body", body, event.params, retries=0)

    def body(n: int) -> int:
        if n == 1 and not works[0]:
            raise ValueError("no")
        return n

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if call == "one":
            return [step.run_workflow("child", Fragile, 1)]
        return step.run_workflows("child", Fragile, [0, 1, 2])

    row = flow(run).create()
    drain(5)
    assert fresh(row).status == S.ERRORED
    works[0] = True
    count = len(children_of(row))
    (failed,) = [child for child in children_of(row) if child.status == S.ERRORED]
    if repair == "child first":
        failed.retry()
        drain(5)
        assert (fresh(failed).status, fresh(row).status) == (S.COMPLETE, S.ERRORED)
    row.refresh_from_db()
    row.retry()
    drain(5)
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, [1] if call == "one" else [0, 1, 2])
    assert len(children_of(row)) == count and sorted(bodies) == ([1] if call == "one" else [0, 1, 2])
    assert record_of(row, "child").status == "complete"


def test_retry_of_the_parent_starts_a_child_anew_that_was_rolled_back() -> None:
    """Design 7, 9: nothing is left of it to go on from, and its old keys stand for what was undone."""
    works, undone = [False], []

    class Saga(Workflow[Any, Any]):
        class Meta:
            name = "chd-saga"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.do("book", str, rollback=lambda undo: undone.append(1))
            return step.do("pay", pay, retries=0)

    def pay() -> str:
        if not works[0]:
            raise ValueError("no")
        return "paid"

    row = flow(lambda event, step: step.run_workflow("child", Saga, None)).create()
    drain(5)
    (old,) = children_of(row)
    assert (fresh(row).status, old.status, undone) == (S.ERRORED, S.ERRORED, [1])
    works[0] = True
    row.refresh_from_db()
    row.retry()
    drain(5)
    _, new = children_of(row)
    assert (fresh(row).output, new.status, fresh(old).status) == ("paid", S.COMPLETE, S.ERRORED)
    assert new.seed != old.seed and new.instance_id == f"{old.instance_id}-r1"


@pytest.mark.parametrize("window", [None, 1])
def test_retry_of_the_parent_starts_ended_children_anew(window: int | None, stopped_clock: StoppedClock) -> None:
    """Children that ended with their parent come back, with the same keys, the finished ones not; a window holds again."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.run_workflows("children", Child, [{"wait": n} for n in range(3)], concurrency=window)

    row = flow(run, max_duration="1 hour").create()
    drain(5)
    old = children_of(row)
    old[0].send_event("go", "first")
    drain(5)
    stopped_clock.advance("1 hour")
    drain(5)
    assert fresh(row).status == S.ERRORED
    assert [fresh(child).status for child in old] == [S.COMPLETE, S.TERMINATED, S.TERMINATED]
    row.refresh_from_db()
    row.retry()
    drain(5)
    new = children_of(row)[3:]
    assert [child.seed for child in new] == [child.seed for child in old[1:]]
    assert [child.instance_id for child in new] == [f"{child.instance_id}-r1" for child in old[1:]]
    assert [child.status for child in new] == [S.WAITING, S.WAITING if window is None else S.QUEUED]
    for child in new:
        fresh(child).send_event("go", "again")
        drain(5)
    assert fresh(row).output == ["first", "again", "again"]


def test_a_child_whose_parent_is_retried_before_it_hears_of_the_end() -> None:
    """The message of the end is overtaken: the parent waits for it once more."""
    works = [False]

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if not works[0]:
            step.run_workflow("child", Child, {"wait": 1})
        return step.run_workflow("child", Child, {"wait": 1})

    row = flow(run, max_duration="1 hour").create()
    drain(5)
    child = child_of(row)
    WorkflowInstance.objects.filter(pk=row.pk).update(
        deadline_at="2020-01-01T00:00:00Z", wake_at="2020-01-01T00:00:00Z"
    )
    (claimed,) = claim("default", pk=row.pk)
    execute(claimed, renew=False)
    assert (fresh(row).status, fresh(child).status) == (S.ERRORED, S.WAITING)
    row.refresh_from_db()
    works[0] = True
    row.retry()
    drain(5)
    assert (fresh(row).status, fresh(child).status) == (S.WAITING, S.WAITING)
    fresh(child).send_event("go", "went")
    drain(5)
    assert fresh(row).output == "went" and children_of(row) == [child]


def test_a_child_with_an_id_of_its_own_is_started_anew(stopped_clock: StoppedClock) -> None:
    """Its id is taken by the one that ended with the parent."""
    row = flow(
        lambda event, step: step.run_workflow("child", Child, {"wait": 1}, instance_id="x"), max_duration="1 hour"
    ).create()
    drain(5)
    stopped_clock.advance("1 hour")
    drain(5)
    row.refresh_from_db()
    row.retry()
    drain(5)
    old, new = children_of(row)
    assert (old.instance_id, old.status) == ("x", S.TERMINATED)
    assert (new.instance_id, new.status, new.seed) == ("x-r1", S.WAITING, old.seed)


def test_a_window_in_which_all_that_is_left_is_parked_goes_on(
    stopped_clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``retry()`` comes when the children that had been let go have ended with the parent, and the parked ones have not."""
    row = flow(
        lambda event, step: step.run_workflows("children", Child, [{"wait": n} for n in range(6)], concurrency=2),
        max_duration="1 hour",
    ).create()
    drain(5)
    stopped_clock.advance("1 hour")
    monkeypatch.setattr(orphans, "AT_ONCE", 2)
    end, ends = orphans._end, []

    def retried(using: str, pks: Any) -> Any:
        found = end(using, pks)
        if not ends:
            ends.append(1)
            row.refresh_from_db()
            row.retry()
        return found

    monkeypatch.setattr(orphans, "_end", retried)
    drain(5)
    for _ in range(6):
        alive = [child for child in children_of(row) if child.status == S.WAITING]
        assert len(alive) <= 2
        for child in alive:
            child.send_event("go", 1)
        drain(5)
    assert fresh(row).output == [1] * 6


@pytest.mark.parametrize("call", ["one", "join"])
def test_the_end_of_a_child_that_was_started_anew_concerns_nobody(call: str, stopped_clock: StoppedClock) -> None:
    """Its message was overtaken by ``retry()`` of the parent: what it says is not the end of its successor."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if call == "one":
            return [step.run_workflow("child", Child, {"wait": 1})]
        return step.run_workflows("child", Child, [{"wait": 1}])

    row = flow(run, max_duration="1 hour").create()
    drain(5)
    (old,) = children_of(row)
    stopped_clock.advance("1 hour")
    old.terminate()  # and nobody delivers that yet
    for _ in range(2):
        (claimed,) = claim("default", pk=row.pk)
        execute(claimed, renew=False)
        row.refresh_from_db()
        if row.status == S.ERRORED:
            row.retry()
    assert row.status == S.WAITING and len(children_of(row)) == 2
    drain(5)
    assert (fresh(row).status, children_of(row)[1].status) == (S.WAITING, S.WAITING)
    children_of(row)[1].send_event("go", "went")
    drain(5)
    assert fresh(row).output == ["went"]


def test_a_start_that_was_refused_is_tried_again() -> None:
    """Case CHD-02, then ``retry()`` when the id is free."""
    foreign = Child.create({"wait": 1}, instance_id="x")
    rows = [
        flow(lambda event, step: step.run_workflow("child", Child, {"n": 1}, instance_id="x"), "chd-a").create(),
        flow(lambda event, step: step.start_workflow("child", Child, {"n": 1}, instance_id="y"), "chd-b").create(),
    ]
    other = Child.create({"wait": 1}, instance_id="y")
    drain(5)
    assert [fresh(row).status for row in rows] == [S.ERRORED, S.ERRORED]
    foreign.delete()
    other.delete()
    for row in rows:
        row.refresh_from_db()
        row.retry()
    drain(5)
    assert [fresh(row).output for row in rows] == [1, "y"]
    assert WorkflowInstance.objects.filter(workflow="chd-child", status=S.COMPLETE).count() == 2
