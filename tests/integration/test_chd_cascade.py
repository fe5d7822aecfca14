"""What becomes of children when their parent ends, or is rolled back (design 7, case CHD-04)."""

from __future__ import annotations

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
from tests.integration.chd_flows import parent as flow
from tests.support.concurrency import held

pytestmark = pytest.mark.django_db(transaction=True)


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


def test_plain_instances_pay_nothing_for_families(django_assert_num_queries: Any) -> None:
    """Who has neither parent nor children ends in the statements as before."""
    Child.create({"n": 1})
    (claimed,) = claim("default")
    assert claimed.lease.parent_step is None and not claimed.lease.children
    with django_assert_num_queries(2 if connection.vendor == "postgresql" else 9):
        execute(claimed, renew=False)
