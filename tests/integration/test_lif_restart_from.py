"""``restart(from_step)``: what was started before the step is kept (design 7, 9; reference 11)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durableflow import Retries, Step, Undo, WorkflowEvent
from durableflow.core.exceptions import StaleDecision
from durableflow.models import StepRecord, WorkflowInstance
from durableflow.models.restart import find_step
from tests.integration.conftest import StoppedClock
from tests.integration.restart_flows import Bodies, flow, labels, step_of
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


def test_what_came_before_is_kept_with_its_key(bodies: Bodies) -> None:
    """Reference 11: kept steps answer from the journal; the step and what follows runs again, with new keys."""
    row = flow(lambda event, step: [bodies.do(step, name) for name in "abcd"]).create({"order": 7})
    drained(row)
    seed, before = row.seed, {step.name: step.pk for step in row.steps.all()}
    row.restart(from_step="c", reason="wrong rate")
    entry = row.history.latest("id")
    assert (entry.run_number, entry.data) == (2, {"verb": "restart", "from_step": "c-1", "kept": 2})
    assert (row.status, row.output, row.finished, row.seed) == ("queued", None, None, seed)
    assert (labels(row, 2), labels(row, 1)) == (["a-1", "b-1"], ["c-1", "d-1"])
    drained(row)
    assert (row.status, row.output, bodies.names) == (Status.COMPLETE, list("ABCD"), "abcdcd")
    assert [len(set(bodies.keys(name))) for name in "abcd"] == [1, 1, 2, 2]
    assert {step.name: step.pk for step in row.steps.filter(run_number=2, name__in="ab")} == {
        name: before[name] for name in "ab"
    }
    assert row.steps.get(run_number=1, name="c").status == "complete", "evidence"
    row.restart(from_step=step_of(row, "b"))
    drained(row)
    assert (row.run_number, row.output, bodies.names) == (3, list("ABCD"), "abcdcdbcd")
    assert len(set(bodies.keys("c"))) == 3 and len(bodies.keys("a")) == 1


def test_from_the_first_step_nothing_is_kept(bodies: Bodies) -> None:
    row = flow(lambda event, step: [bodies.do(step, name) for name in "ab"]).create()
    drained(row)
    row.restart(from_step="a")
    assert row.history.latest("id").data["kept"] == 0
    assert drained(row).output == ["A", "B"] and bodies.names == "abab"
    assert len(set(bodies.keys("a"))) == 2, "a new key although the seed is the same"


def test_errors_that_were_caught_before_it_stay(bodies: Bodies) -> None:
    """Values and errors are kept."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            bodies.do(step, "a", retries=0)
        except OSError:
            bodies.do(step, "b")
        return bodies.do(step, "c", retries=0)

    bodies.broken |= {"a", "c"}
    row = drained(flow(run).create())
    assert row.status == Status.ERRORED
    bodies.broken.clear()
    row.restart(from_step="c")
    assert drained(row).output == "C" and bodies.names == "abcc"


@pytest.mark.parametrize("from_step", ["nothing", "twice", "wait", "other run", "other instance"])
def test_what_is_no_step_to_restart_from(bodies: Bodies, from_step: str) -> None:
    """Design 12: unknown and ambiguous names are a ValueError that says what there is; nothing changes."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.gather("both", lambda: bodies.do(step, "twice"), lambda: bodies.do(step, "twice"))
        bodies.do(step, "a")
        step.sleep("wait", 0)

    again = flow(run)
    row, other = drained(again.create()), drained(again.create())
    target: Any = from_step
    match = {"nothing": r"no step 'nothing'.*'a-1'", "twice": r"several.*both-1\[1\]/twice-1.*both-1\[2\]/twice-1"}
    if from_step == "wait":
        with pytest.raises(ValueError, match="There is sleep 'wait-1'"):
            find_step(row, "wait")
        assert find_step(row, "wait", kind="sleep").kind == "sleep"
        assert find_step(row, "twice", scope="both-1[2]").scope == "both-1[2]"
        return
    if from_step == "other run":
        row.restart()
        target = step_of(other, "a")
        StepRecord.objects.filter(pk=target.pk).update(instance=row.pk, run_number=1, seq=99, count=99)
        row = drained(row)
        match[from_step] = "belongs to run 1; the present run is 2"
    if from_step == "other instance":
        target = step_of(other, "a")
        match[from_step] = "is not a step of"
    before = list(row.steps.order_by("pk").values())
    with pytest.raises(ValueError, match=match[from_step]):
        row.restart(from_step=target)
    row.refresh_from_db()
    assert row.status == Status.COMPLETE and list(row.steps.order_by("pk").values()) == before
    assert find_step(row, "twice", scope="both-1[1]").count == 1
    with pytest.raises(ValueError, match="no do 'a', number 2"):
        find_step(row, "a", count=2)
    with pytest.raises(TypeError):
        row.restart(from_step=7)  # type: ignore[arg-type]


def test_an_open_branch_that_began_earlier_goes_on(bodies: Bodies, stopped_clock: StoppedClock) -> None:
    """Its pending event stays open with its deadline, its timer too; what was sent for it is not lost."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather(
            "all",
            lambda: step.wait_for_approval("ok", title="Ok?", timeout="1 day").comment,
            lambda: step.wait_for_event("gate", type="go", timeout="1 day").payload,
            lambda: step.sleep("nap", "2 hours"),
            lambda: [bodies.do(step, "a"), step.wait_for_event("late", type="late", timeout=None).payload],
            concurrency=1,
        )

    row = drained(flow(run).create())
    approval, gate = row.pending_events.get(name="ok"), row.pending_events.get(name="gate")
    late = row.pending_events.get(name="late")
    row.send_event("go", "kept", dedupe_key="k")
    row.send_event("other", "closed")
    stopped_clock.advance("1 hour")
    row.restart(from_step="a")
    for pending in (approval, gate, late):
        pending.refresh_from_db()
    assert (approval.status, approval.run_number, late.status) == ("open", 2, "cancelled")
    assert [(sent.type, sent.run_number, sent.consumed_by) for sent in row.sent_events.order_by("id")] == [
        ("go", 2, ""),
        ("other", 1, "restart"),
    ]
    assert row.send_event("go", "kept", dedupe_key="k").duplicate
    approval.approve(by=None, comment="fine")
    drained(row)
    assert row.pending_events.filter(name="ok").count() == 1 and step_of(row, "nap").status == "pending"
    stopped_clock.advance("1 hour")
    drained(row)
    assert step_of(row, "nap").status == "complete", "the timer began before the restart"
    row.send_event("late", "again")
    drained(row)
    assert row.output == ("fine", "kept", None, ["A", "again"]) and bodies.names == "aa"
    with pytest.raises(StaleDecision):
        approval.approve(by=None)


def test_what_a_kept_wait_has_read_is_not_read_again(bodies: Bodies) -> None:
    """Promise 1: a sender that repeats an event is told so, also after the restart; what a dropped wait had read stays read."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        first = step.wait_for_event("first", type="go", timeout=None).payload
        bodies.do(step, "a")
        return [first, step.wait_for_event("second", type="go", timeout=None).payload]

    row = flow(run).create()
    row.send_event("go", 1, dedupe_key="1")
    row.send_event("go", 2, dedupe_key="2")
    assert drained(row).output == [1, 2]
    row.restart(from_step="a")
    assert drained(row).status == Status.WAITING, "the second wait wants an event of its own"
    assert row.send_event("go", 1, dedupe_key="1").duplicate
    assert drained(row).status == Status.WAITING
    assert not row.send_event("go", 2, dedupe_key="2").duplicate, "the wait that had read it runs again"
    assert drained(row).output == [1, 2]


@pytest.mark.parametrize("end", ["paused", "terminated", "errored"])
def test_whatever_the_instance_was(bodies: Bodies, stopped_clock: StoppedClock, end: str) -> None:
    """What the end had cancelled goes on; of a paused one the clock stood still."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather(
            "all",
            lambda: step.wait_for_event("gate", type="go", timeout="3 hours").payload,
            lambda: step.sleep("nap", "3 hours"),
            lambda: [bodies.do(step, "a"), step.wait_for_event("late", type="late", timeout=None)],
            concurrency=1,
        )

    row = drained(flow(run, max_duration="2 hours").create())
    stopped_clock.advance("1 hour")
    if end == "paused":
        row.pause()
    if end == "terminated":
        row.terminate()
    stopped_clock.advance("1 hour")
    drained(row)
    assert row.status == end
    row.restart(from_step="a")
    assert row.deadline_at == stopped_clock.now + timedelta(hours=2)
    drained(row)
    assert row.status == Status.WAITING and bodies.names == "aa"
    gate = row.pending_events.get(name="gate", status="open")
    left = timedelta(hours=2) if end == "paused" else timedelta(hours=3)
    assert gate.deadline is not None and gate.deadline - stopped_clock.now == left
    nap = step_of(row, "nap").wake_at
    assert nap is not None and nap - stopped_clock.now == timedelta(hours=2 if end == "paused" else 1)
    row.send_event("go", 1)
    drained(row)
    assert step_of(row, "gate").status == "complete"


def test_a_retry_delay_goes_on(bodies: Bodies, stopped_clock: StoppedClock) -> None:
    """A kept step that waits for its retry has its attempts and its key."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather(
            "both",
            lambda: bodies.do(step, "a", retries=Retries(limit=2, delay=60)),
            lambda: [bodies.do(step, "b"), step.sleep("nap", "1 day")],
            concurrency=1,
        )

    bodies.broken.add("a")
    row = drained(flow(run).create())
    row.restart(from_step="b")
    bodies.broken.clear()
    drained(row)
    assert bodies.names.count("a") == 1
    stopped_clock.advance(60)
    drained(row)
    assert step_of(row, "a").attempts == 2 and len(set(bodies.keys("a"))) == 1 and bodies.names.count("b") == 2


def test_steps_whose_handler_has_started_run_again(bodies: Bodies) -> None:
    """Design 7: what was undone is no result any more, wherever it stands."""
    undone: list[Any] = []

    def undo(undo: Undo[Any]) -> None:
        undone.append(undo.output)

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        bodies.do(step, "a", rollback=undo)
        bodies.do(step, "b")
        bodies.do(step, "c", rollback=undo)
        return bodies.do(step, "d", retries=0)

    bodies.broken.add("d")
    row = drained(flow(run).create())
    assert row.status == Status.ERRORED and undone == ["C", "A"]
    bodies.broken.clear()
    row.restart(from_step="d")
    assert labels(row, 2) == ["b-1"]
    assert drained(row).output == "D" and bodies.names == "abcdacd"
    assert len(set(bodies.keys("a"))) == 2
    row.restart(from_step="d")
    row.refresh_from_db()
    assert row.steps.filter(run_number=3).exclude(rollback_status="").count() == 0


def test_a_rollback_that_is_blocked_half_way(bodies: Bodies) -> None:
    """The handler that had not started leaves its step as it is, and nothing is undone after the restart."""

    def undo(undo: Undo[Any]) -> None:
        raise AssertionError("never")

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        bodies.do(step, "a", rollback=undo)
        bodies.do(step, "b", rollback=undo)
        return [bodies.do(step, "c"), step.wait_for_event("x", type="x", timeout=None).payload]

    row = drained(flow(run).create())
    WorkflowInstance.objects.filter(pk=row.pk).update(status="paused", blocked="x", wake_at=None)
    row.steps.filter(name="a").update(rollback_status="pending")
    row.steps.filter(name="b").update(rollback_status="started", rollback_attempts=1)
    row.restart(from_step="c")
    assert labels(row, 2) == ["a-1"]
    drained(row)
    row.send_event("x", 1)
    assert drained(row).output == ["C", 1] and bodies.names == "abcbc"
