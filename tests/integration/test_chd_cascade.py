"""What becomes of children when their parent ends (design 7, case CHD-04), and of both when they are retried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine import orphans
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.models import SentEvent, WorkflowInstance
from tests.integration.chd_flows import Child, S, child_of, children_of, fresh, history, last_entry, record_of, settle
from tests.integration.conftest import StoppedClock
from tests.support.concurrency import held

pytestmark = pytest.mark.django_db(transaction=True)
Run = Callable[[WorkflowEvent[Any], Step], Any]


def flow(run: Run, name: str = "chd-parent", **meta: Any) -> type[Workflow[Any, Any]]:
    class Parent(Workflow[Any, Any]):
        Meta = type("Meta", (), {"name": name, **meta})

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return run(event, step)

    return Parent


class Middle(Workflow[Any, Any]):
    """A child with a child of its own."""

    class Meta:
        name = "chd-middle"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.run_workflow("grandchild", Child, {"wait": 1})


def family_of(end: str = "") -> tuple[WorkflowInstance, list[WorkflowInstance], WorkflowInstance]:
    """A parent with a waiting child, one with a grandchild, a running one, a queued one, one that goes its own way, and a
    foreign instance."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.start_workflow("own way", Child, {"wait": 1}, instance_id="own-way")
        step.start_workflow("bound", Child, {"wait": 1}, instance_id="bound", on_parent_end="terminate")
        if end:

            def last() -> Any:
                step.wait_for_event("end", type="end", timeout=None)
                raise ValueError("no")

        else:

            def last() -> Any:
                return step.run_workflow("running", Child, {"n": 1}, instance_id="running")

        return step.gather(
            "all",
            lambda: step.run_workflow("waiting", Child, {"wait": 1}, instance_id="waiting"),
            lambda: step.run_workflow("middle", Middle, None, instance_id="middle"),
            lambda: step.run_workflows("queued", Child, [{"wait": 1}, {"wait": 2}], concurrency=1),
            last,
        )

    foreign = Child.create({"wait": 1}, instance_id="foreign")
    row = flow(run).create()
    (first,) = claim("default", pk=row.pk)
    execute(first, renew=False)
    running = WorkflowInstance.objects.filter(instance_id="running")
    running.update(wake_at=None)
    drain(5)
    if not end:
        running.update(wake_at="2020-01-01T00:00:00Z")
        (held_by,) = claim("default", pk=running.get().pk)
        assert held_by.workflow == "chd-child"
    children = list(WorkflowInstance.objects.exclude(pk__in=[row.pk, foreign.pk]).order_by("id"))
    return row, children, foreign


def statuses(rows: list[WorkflowInstance]) -> dict[str, str]:
    return {
        row.instance_id if len(row.instance_id) < 20 else f"{row.workflow}{row.instance_id[32:]}": fresh(row).status
        for row in rows
    }


ALIVE = {"own-way": S.WAITING, "bound": S.WAITING, "waiting": S.WAITING, "middle": S.WAITING, "running": S.RUNNING}


@pytest.mark.parametrize("how", ["terminate", "delete", "delete_all"])
def test_children_end_with_their_parent(how: str) -> None:
    """Case CHD-04: running, waiting, queued children and a grandchild; only real children, not the one that is left, nor a
    foreign instance."""
    row, children, foreign = family_of()
    before = statuses(children)
    assert {key: before[key] for key in ALIVE} == ALIVE
    assert before["chd-child-1"] == S.WAITING and before["chd-child-2"] == S.QUEUED and before["chd-child"] == S.WAITING
    (running,) = [child for child in children if child.instance_id == "running"]
    label = row.label
    if how == "terminate":
        row.terminate()
    elif how == "delete":
        row.delete()
    else:
        WorkflowInstance.objects.filter(pk=row.pk).delete()
    drain(5)
    assert statuses(children) == {**dict.fromkeys(before, S.TERMINATED), "own-way": S.WAITING}
    assert fresh(foreign).status == S.WAITING
    assert fresh(running).lease_token is None
    word = "ended" if how == "terminate" else "deleted"
    last = last_entry(running)
    assert (last.type, last.via) == ("workflow_terminated", "engine") and label in last.reason and word in last.reason
    assert not SentEvent.objects.filter(delivered=False).exists()


def test_the_work_of_a_running_child_is_dropped() -> None:
    """Design 9: its checkpoint finds no lease."""
    done: list[str] = []

    class Busy(Workflow[Any, Any]):
        class Meta:
            name = "chd-busy"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.do("body", body)
            done.append("went on")

    def body() -> None:
        WorkflowInstance.objects.get(workflow="chd-parent").terminate()
        settle()

    row = flow(lambda event, step: step.run_workflow("child", Busy, None)).create()
    drain(5)
    child = child_of(row)
    assert (child.status, fresh(row).status, done) == (S.TERMINATED, S.TERMINATED, [])
    assert not child.steps.filter(status="complete").exists()


def test_an_error_of_the_parent_ends_its_children() -> None:
    """Case CHD-04: every path to an end, here an error in another branch."""
    row, children, _ = family_of(end="errored")
    children = [child for child in children if child.instance_id != "own-way"]
    # The gather would wait for its other branches: their waits are over when max_duration is.
    WorkflowInstance.objects.filter(pk=row.pk).update(deadline_at="2020-01-01T00:00:00Z")
    row.send_event("end")
    drain(5)
    assert fresh(row).status == S.ERRORED
    assert set(statuses(children).values()) == {S.TERMINATED}


def test_code_that_fails_before_it_comes_to_its_children_ends_them_too() -> None:
    """Case CHD-04: a deploy has broken the program; what the journal holds is enough to know of them."""
    broken = [False]

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        if broken[0]:
            raise ValueError("no")
        step.run_workflow("child", Child, {"wait": 1})

    row = flow(run).create()
    drain(5)
    broken[0] = True
    row.send_event("anything")
    drain(5)
    assert (fresh(row).status, child_of(row).status) == (S.ERRORED, S.TERMINATED)


def test_a_parent_that_completes_ends_the_children_it_started_so() -> None:
    """Design 7: started ones follow ``on_parent_end``."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.start_workflow("left", Child, {"wait": 1}, instance_id="left")
        step.start_workflow("bound", Child, {"wait": 1}, instance_id="bound", on_parent_end="terminate")

    row = flow(run).create()
    drain(5)
    assert fresh(row).status == S.COMPLETE
    assert statuses(children_of(row)) == {"left": S.WAITING, "bound": S.TERMINATED}


def test_a_crash_in_the_middle_is_finished_by_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case CHD-04: the intent is committed with the parent's end, for each child; whoever looks next goes on."""
    row, children, _ = family_of()
    monkeypatch.setattr(orphans, "AT_ONCE", 2)
    row.terminate()  # and this process dies before any delivery
    assert S.TERMINATED not in set(statuses(children).values())
    ends, count = orphans._end, [0]

    def crash(*args: Any) -> Any:
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt  # killed, with two of the children ended
        return ends(*args)

    monkeypatch.setattr(orphans, "_end", crash)
    with pytest.raises(KeyboardInterrupt):
        settle()
    ended = [status for status in statuses(children).values() if status == S.TERMINATED]
    assert len(ended) == 2
    drain(5)
    after = statuses(children)
    assert after.pop("own-way") == S.WAITING and set(after.values()) == {S.TERMINATED}


def test_the_intent_is_part_of_the_transaction_that_ends_the_parent() -> None:
    """Case CHD-04: a verb that is rolled back has told nobody."""
    row, children, _ = family_of()
    before = statuses(children)
    with transaction.atomic():
        row.terminate()
        transaction.set_rollback(True)
    settle()
    assert statuses(children) == before and not SentEvent.objects.exists()


def test_a_parent_that_is_blocked_keeps_its_children() -> None:
    """Case CHD-04, "also pause": nothing has ended."""
    row, children, _ = family_of()
    before = statuses(children)
    WorkflowInstance.objects.filter(pk=row.pk).update(status=S.PAUSED, blocked="by a test")
    drain(5)
    assert statuses(children) == before


def test_an_ended_child_is_left_alone() -> None:
    """Case CHD-04: only unfinished ones; its end, output and history stay."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.start_workflow("bound", Child, {"n": 5}, instance_id="bound", on_parent_end="terminate")
        step.wait_for_event("end", type="end", timeout=None)

    row = flow(run).create()
    drain(5)
    (child,) = children_of(row)
    told = history(child)
    row.terminate()
    # It ended between the parent's end and the delivery, say: the message is there, and changes nothing.
    SentEvent.objects.create(instance=child, run_number=1, kind="parent", sent_at="2026-10-01T00:00:00Z", reason="late")
    settle()
    assert (fresh(child).status, fresh(child).output, history(child)) == (S.COMPLETE, 5, told)
    assert not SentEvent.objects.filter(delivered=False).exists()


@pytest.mark.postgresql_only
def test_a_child_that_somebody_holds_ends_a_moment_later() -> None:
    """Design 4: a user's open transaction delays the cascade for its row alone."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.run_workflows("children", Child, [{"wait": 1}, {"wait": 2}])

    row = flow(run).create()
    drain(5)
    first, second = children_of(row)
    with held(first):
        row.terminate()
        assert deliver("default") is True
        assert statuses([first, second]) == {"chd-child-1": S.WAITING, "chd-child-2": S.TERMINATED}
    settle()
    assert fresh(first).status == S.TERMINATED


def test_a_limited_child_gives_its_slot_back() -> None:
    """Design 9: the closing of ``terminate``, slot and all."""

    class Limited(Workflow[Any, Any]):
        class Meta:
            name = "chd-limited"
            max_concurrency = 1

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return "ran"

    row = flow(lambda event, step: step.run_workflow("child", Limited, None)).create()
    (of_parent,) = claim("default", pk=row.pk)
    execute(of_parent, renew=False)
    child = child_of(row)
    (of_child,) = claim("default", pk=child.pk)
    assert of_child.lease.slot == "chd-limited"
    other = Limited.create()
    row.terminate()
    drain(5)
    assert (fresh(child).status, fresh(child).holds_slot, fresh(other).output) == (S.TERMINATED, False, "ran")


# Retries -----------------------------------------------------------------------------------------------------------------


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


def test_a_parent_that_is_rolled_back_ends_its_children_at_its_end() -> None:
    """Design 7: when it has undone what it did, and not before."""
    seen: list[str] = []

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.start_workflow("bound", Child, {"wait": 1}, instance_id="bound", on_parent_end="terminate")
        step.do("book", str, rollback=undo)
        raise ValueError("no")

    def undo(undo: Any) -> None:
        settle()
        seen.append(WorkflowInstance.objects.get(instance_id="bound").status)

    row = flow(run).create()
    drain(5)
    (child,) = children_of(row)
    assert seen[0] != S.TERMINATED
    assert (fresh(row).status, child.status) == (S.ERRORED, S.TERMINATED)


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


def test_a_child_that_ends_while_its_parent_is_rolled_back() -> None:
    """Design 7: the run is over; what it still waited for changes nothing of what is undone."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("book", str, rollback=undo)
        step.run_workflow("child", Child, {"wait": 1})

    def undo(undo: Any) -> None:
        child_of(row).terminate()
        settle()

    row = flow(run).create()
    drain(5)
    row.terminate(rollback=True)
    drain(5)
    assert (fresh(row).status, record_of(row, "child").status) == (S.TERMINATED, "cancelled")
    assert not history(row, "child_finished") and not SentEvent.objects.filter(delivered=False).exists()


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


def test_plain_instances_pay_nothing_for_families(django_assert_num_queries: Any) -> None:
    """Who has neither parent nor children ends in the statements as before."""
    Child.create({"n": 1})
    (claimed,) = claim("default")
    assert claimed.lease.parent_step is None and not claimed.lease.children
    with django_assert_num_queries(2 if connection.vendor == "postgresql" else 9):
        execute(claimed, renew=False)
