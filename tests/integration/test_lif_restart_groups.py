"""``restart(from_step)`` around groups, races, children and waits: what belongs together is kept or dropped together (design 7)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import EventTimeout, Step, WorkflowEvent
from durableflow.models import WorkflowInstance
from durableflow.models.restart import find_step
from tests.integration.chd_flows import Child, children_of
from tests.integration.restart_flows import Bodies, flow, labels, step_of
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


def test_from_a_branch_of_a_gather(bodies: Bodies) -> None:
    """An earlier started branch stays; the finished group goes on, and so does what comes after it."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        got = step.gather(
            "both", lambda: [bodies.do(step, "a"), bodies.do(step, "b")], lambda: bodies.do(step, "c"), concurrency=1
        )
        return [*got, bodies.do(step, "d")]

    row = drained(flow(run).create())
    assert bodies.names == "abcd"
    row.restart(from_step=step_of(row, "b"))
    assert labels(row, 2) == ["both-1", "both-1[1]/a-1"] and step_of(row, "both").status == "pending"
    assert drained(row).output == [["A", "B"], "C", "D"] and bodies.names == "abcdbcd"
    row.restart(from_step="c")
    assert drained(row).output == [["A", "B"], "C", "D"] and bodies.names == "abcdbcdcd"


@pytest.mark.parametrize("failed", [False, True])
def test_from_an_item_of_a_map(bodies: Bodies, failed: bool) -> None:
    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.map("each", bodies.body, list("abcd"), concurrency=1, retries=0)

    bodies.broken |= {"c"} if failed else set()
    row = drained(flow(run).create())
    assert row.status == (Status.ERRORED if failed else Status.COMPLETE)
    bodies.broken.clear()
    with pytest.raises(ValueError, match="several"):
        row.restart(from_step="each")
    row.restart(from_step=find_step(row, "each", count=3))
    assert drained(row).output == list("ABCD") and bodies.names == "abcdcd"
    row.restart(from_step=find_step(row, "each", kind="map"))
    assert drained(row).output == list("ABCD") and bodies.names == "abcdcdabcd"


class Race:
    """Who wins is told by an event."""

    @staticmethod
    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        winner = step.race(
            "first",
            one=lambda: step.wait_for_event("one", type="one", timeout=None).payload,
            two=lambda: step.wait_for_event("two", type="two", timeout=None).payload,
        )
        return [winner.name, winner.value, step.wait_for_event("end", type="end", timeout=None).payload]


@pytest.mark.parametrize("branch", ["one", "two"])
@pytest.mark.parametrize("decided", [False, True])
def test_from_a_branch_of_a_race(branch: str, decided: bool) -> None:
    """A race begins anew with all that it waits for; nothing of the old one decides it."""
    row = drained(flow(Race.run).create())
    if decided:
        row.send_event("one", "old")
        drained(row)
    row.restart(from_step=step_of(row, branch))
    assert labels(row, 2) == ["first-1"] and step_of(row, "first").status == "pending"
    assert not row.pending_events.filter(status="open").exists()
    drained(row)
    assert row.pending_events.filter(status="open").count() == 2
    row.send_event("two", "new")
    drained(row)
    row.send_event("end", "end")
    assert drained(row).output == ["two", "new", "end"]


def test_a_decided_race_before_it_is_kept() -> None:
    row = drained(flow(Race.run).create())
    row.send_event("two", "kept")
    drained(row)
    row.restart(from_step="end")
    assert sorted(labels(row, 2)) == sorted(["first-1", "first-1[one]/one-1", "first-1[two]/two-1"])
    drained(row)
    row.send_event("end", 1)
    assert drained(row).output == ["two", "kept", 1]


def test_a_race_that_the_end_has_cancelled_goes_on_whole() -> None:
    """It was open when the instance was terminated: nobody has won it, and all that it waits for opens again."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather("both", lambda: Race.run(event, step), lambda: step.sleep("nap", 60), concurrency=2)[0]

    row = drained(flow(run).create())
    row.terminate()
    assert {step.status for step in row.steps.all()} == {"cancelled"}
    row.restart(from_step="nap")
    assert {step.status for step in row.steps.filter(run_number=2)} == {"pending"}
    assert drained(row).status == Status.WAITING and row.pending_events.filter(status="open").count() == 2
    row.send_event("two", "new")
    drained(row)
    row.send_event("end", "end")
    drained(row)
    assert [(wait.name, wait.status) for wait in row.steps.filter(run_number=2, kind="wait_for_event").order_by("name")] == [
        ("end", "complete"), ("one", "cancelled"), ("two", "complete"),
    ]  # fmt: skip


def test_children_of_what_is_kept_and_of_what_is_dropped() -> None:
    """The kept call gets what its child says; the child of a dropped one ends, and another is started."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather(
            "both",
            lambda: step.run_workflow("kept", Child, {"wait": 1}),
            lambda: step.run_workflow("dropped", Child, {"wait": 1}),
            concurrency=1,
        )

    row = drained(flow(run).create())
    first, second = sorted(children_of(row), key=lambda child: child.pk)
    row.restart(from_step=step_of(row, "dropped"))
    drained(row)
    assert drained(second).status == Status.TERMINATED and drained(first).status == Status.WAITING
    third = WorkflowInstance.objects.filter(workflow="chd-child").latest("id")
    assert third.pk not in (first.pk, second.pk) and third.parent_step is not None
    assert third.parent_step.run_number == 2
    first.send_event("go", "first")
    third.send_event("go", "third")
    assert drained(row).output == ("first", "third")


def test_a_child_that_ended_while_its_parent_was_restarted() -> None:
    """Its message lies undelivered: it answers the kept call."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather(
            "both",
            lambda: step.run_workflow("kept", Child, {"wait": 1}),
            lambda: step.wait_for_event("x", type="x", timeout=None).payload,
            concurrency=1,
        )

    row = drained(flow(run).create())
    (kept,) = children_of(row)
    kept.terminate()
    assert row.sent_events.filter(kind="child", delivered=False).count() == 1
    row.refresh_from_db()
    row.restart(from_step="x")
    drained(row)
    assert step_of(row, "kept").status == "failed" and row.status == Status.WAITING


def test_a_join_is_kept_or_dropped_as_one() -> None:
    """From one of its children is no place to restart from: that child itself can be restarted."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        values = step.run_workflows("all", Child, [{"n": 1}, {"n": 2}])
        return [values, step.do("after", lambda: event.run_number)]

    row = drained(flow(run).create())
    drained(row)
    assert row.output == [[1, 2], 1]
    with pytest.raises(ValueError, match="Restart from 'all', or restart that child itself"):
        row.restart(from_step=find_step(row, "all", kind="child", count=2))
    row.restart(from_step="after")
    assert drained(row).output == [[1, 2], 2] and len(children_of(row)) == 2
    row.restart(from_step=find_step(row, "all", kind="child", scope=""))
    drained(row)
    assert drained(row).output == [[1, 2], 3] and len(children_of(row)) == 4


def test_a_wait_and_its_notify() -> None:
    told: list[int] = []

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            step.wait_for_event("ok", type="ok", timeout=60, notify=lambda pending: told.append(pending.pk))
        except EventTimeout:
            return "late"
        return step.do("a", lambda: "A")

    row = flow(run).create()
    drained(row)
    row.send_event("ok")
    assert drained(row).output == "A" and len(told) == 1
    row.restart(from_step="a")
    assert drained(row).output == "A" and len(told) == 1
    row.restart(from_step=step_of(row, "ok", kind="notify"))
    assert drained(row).status == Status.WAITING and len(set(told)) == 2
    row.send_event("ok")
    assert drained(row).output == "A"


def test_what_belongs_together_although_another_branch_began_in_between() -> None:
    """Threads of other branches may start a step between the records of one call: it is kept as one."""
    told: list[int] = []

    def wait(step: Step, name: str, **options: Any) -> str:
        return step.wait_for_event(name, type=name, timeout=None, **options).type

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather(
            "all",
            lambda: step.run_workflows("many", Child, [{"n": 1}, {"n": 2}]),
            lambda: wait(step, "ok", notify=lambda pending: told.append(pending.pk)),
            lambda: step.race("first", one=lambda: wait(step, "one"), two=lambda: wait(step, "two")).name,
            lambda: step.do("a", lambda: event.run_number),
            concurrency=1,
        )

    row = drained(flow(run).create())
    row.send_event("one")
    row.send_event("ok")
    drained(row)
    assert drained(row).output == ([1, 2], "ok", "one", 1)
    between = row.steps.filter(kind="child", count=2) | row.steps.filter(name="two") | row.steps.filter(kind="notify")
    for number, moved in enumerate(between, start=1):
        moved.seq = 1_000 + number
        moved.save()
    row.restart(from_step="a")
    assert labels(row, 1) == ["all-1[4]/a-1"]
    assert drained(row).output == ([1, 2], "ok", "one", 2)
    assert len(told) == 1 and len(children_of(row)) == 2 and step_of(row, "two").status == "cancelled"


def test_a_child_that_waits_for_its_turn() -> None:
    """Restarted while it is parked in the window of its siblings, it stays parked until its turn comes."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.run_workflows("many", Child, [{"wait": 1}, {"n": 2}], concurrency=1)

    row = drained(flow(run).create())
    first, second = sorted(children_of(row), key=lambda child: child.pk)
    assert second.hold == "window"
    second.pause()
    second.restart()
    assert (second.status, second.hold, second.wake_at, second.run_number) == ("queued", "window", None, 2)
    drained(row)
    first.send_event("go", 1)
    drained(row)
    assert drained(row).output == [1, 2]
