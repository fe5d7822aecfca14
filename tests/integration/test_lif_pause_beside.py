"""A pause beside what an instance is a part of or waits for: its siblings, a long body, people who are told (design 6, 7)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.core import registry
from durableflow.engine import execution
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.integration.ret_flows import catching_timeouts
from tests.support.concurrency import Gate, Task, eventually
from tests.support.engine import drained, history_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class PausePage(Workflow[int, int]):
    """One of several children; it may take ten minutes."""

    class Meta:
        name = "lif-pause-page"
        max_duration = "10 minutes"

    def run(self, event: WorkflowEvent[int], step: Step) -> int:
        step.wait_for_event("go", type="go", timeout=None)
        return event.params


class PauseBook(Workflow[int | None, Any]):
    """Three children, one at a time."""

    class Meta:
        name = "lif-pause-book"

    def run(self, event: WorkflowEvent[int | None], step: Step) -> Any:
        return step.run_workflows("pages", PausePage, range(3), concurrency=event.params)


def book(window: int | None = 1) -> tuple[WorkflowInstance, list[WorkflowInstance]]:
    parent = drained(PauseBook.create(window))
    children = list(WorkflowInstance.objects.filter(workflow="lif-pause-page").order_by("id"))
    assert [child.hold for child in children] == ["", "window", "window"]
    return parent, children


def end(child: WorkflowInstance) -> None:
    child.send_event("go")
    assert drained(child).status == S.COMPLETE


def test_its_turn_comes_after_the_resume(stopped_clock: StoppedClock) -> None:
    """A child that waits for its turn, paused and resumed before that comes: it is not started by the resume."""
    parent, (first, second, third) = book()
    second.pause()
    assert (second.status, second.hold, second.wake_at) == (S.PAUSED, "window", None)
    stopped_clock.advance("2 minutes")
    second.resume()
    assert (second.status, second.hold, second.wake_at) == (S.QUEUED, "window", None)
    assert drained(second).execution == 0
    stopped_clock.advance("2 minutes")
    end(first)
    assert drained(second).execution == 1
    assert second.deadline_at == stopped_clock.now + timedelta(minutes=10), "its time begins when its turn comes"
    for child in (second, third):
        end(child)
    assert drained(parent).output == [0, 1, 2]


def test_its_turn_comes_while_it_is_paused(stopped_clock: StoppedClock) -> None:
    """It keeps the place and is not started by it; the resume starts it, with its whole time. Nobody else gets the place."""
    parent, (first, second, third) = book()
    stopped_clock.advance("1 minute")
    second.pause()
    stopped_clock.advance("1 minute")
    end(first)
    second.refresh_from_db()
    assert (second.status, second.hold, second.wake_at) == (S.PAUSED, "", None)
    stopped_clock.advance("1 hour")
    assert drained(third).execution == 0
    second.resume()
    assert drained(second).status == S.WAITING
    assert second.deadline_at == stopped_clock.now + timedelta(minutes=10)
    for child in (second, third):
        end(child)
    assert drained(parent).output == [0, 1, 2]


def test_children_of_a_paused_parent_go_on(stopped_clock: StoppedClock) -> None:
    """So does the window among them; the parent goes on when it is resumed."""
    parent, children = book()
    parent.pause()
    for child in children:
        end(child)
    assert drained(parent).status == S.PAUSED
    parent.resume()
    assert drained(parent).output == [0, 1, 2]


def test_a_paused_child_ends_with_its_parent() -> None:
    """CHD-04: as any other child that the parent waited for; nothing of the pause is left."""
    parent, children = book()
    for child in children[:2]:
        child.pause()
    parent.terminate()
    drain(0)
    for child in children:
        child.refresh_from_db()
        assert (child.status, child.paused_at, child.wake_at) == (S.TERMINATED, None, None)


class PauseNotify(Workflow[Any, Any]):
    """Somebody asks for a pause in the step before a wait of which people are told."""

    class Meta:
        name = "lif-pause-notify"

    told: list[str] = []

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("first", str)
        return step.wait_for_approval("gate", notify=lambda pending: self.told.append(pending.name)).comment


def test_nobody_is_told_of_a_wait_before_the_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request comes when the wait is being opened: ``notify`` is a body, and begins after the resume."""
    PauseNotify.told.clear()
    row = PauseNotify.create()
    original = execution.attend

    def pause_first(*args: Any) -> Any:
        row.pause()
        return original(*args)

    monkeypatch.setattr(execution, "attend", pause_first)
    assert drained(row).status == S.PAUSED
    assert PauseNotify.told == [] and row.pending_events.get().status == "open"
    monkeypatch.undo()
    row.resume()
    assert drained(row).status == S.WAITING
    assert PauseNotify.told == ["gate"]
    row.pending_events.get().approve(by=None, comment="fine")
    assert drained(row).output == "fine"


class PauseBusy(Workflow[Any, Any]):
    """A slow body beside a wait."""

    class Meta:
        name = "lif-pause-busy"

    gate: Gate
    ran: list[str]

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        both = step.gather(
            "both", lambda: step.do("slow", self.slow), lambda: step.wait_for_event("note", type="note").payload
        )
        return [*both, step.do("after", lambda: "after")]

    def slow(self) -> str:
        self.ran.append("slow")
        self.gate.stop_here()
        return "done"


def test_events_and_a_pause_while_a_body_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """EVT-19: neither starts the body a second time; the event that nobody took is still there."""
    gate = Gate()
    monkeypatch.setattr(PauseBusy, "gate", gate, raising=False)
    monkeypatch.setattr(PauseBusy, "ran", [], raising=False)
    row = PauseBusy.create()
    task = Task(lambda: drain(1))
    gate.wait_until_reached()
    row.send_event("note", 1)
    row.pause()
    row.send_event("note", 2)
    drain(0)
    assert row.status == S.WAITING_FOR_PAUSE and PauseBusy.ran == ["slow"]
    gate.open()
    task.result()
    assert drained(row).status == S.PAUSED
    row.resume()
    assert drained(row).output == ["done", 1, "after"]
    assert (PauseBusy.ran, row.steps.get(name="slow").attempts) == (["slow"], 1)
    assert row.sent_events.filter(consumed_by="").count() == 1


@pytest.mark.parametrize("retries", [0, 1])
def test_a_body_that_hangs_is_given_up_at_its_timeout(retries: int) -> None:
    """The watcher lets the instance go in the thread's place: it is paused, whatever it would have done next."""
    gate = Gate()
    row = catching_timeouts(gate.stop_here, retries=Retries(limit=retries, delay=0), timeout=0.3).create()
    task = Task(lambda: drain(30))
    try:
        gate.wait_until_reached()
        row.pause()

        def paused() -> bool:
            row.refresh_from_db()
            return row.status == S.PAUSED

        eventually(paused, "it is paused")
        assert (row.wake_at, row.lease_token) == (None, None)
        assert len(history_of(row, "attempt_errored")) == 1
        assert drain(0) == 0
    finally:
        gate.open()
        task.join()
    row.resume()
    assert drained(row).status == S.COMPLETE


def test_one_that_is_held_for_other_code(stopped_clock: StoppedClock) -> None:
    """It is not held any more while it is paused, and no look of the wrong code counts."""
    row = PauseBusy.create()
    with registry.isolated():
        del registry._classes["lif-pause-busy"]
        drain(0)
        row.refresh_from_db()
        assert (row.hold, row.give_backs) == ("unknown_workflow", 1)
        row.pause()
        assert (row.hold, row.give_backs, row.wake_at) == ("", 0, None)
        stopped_clock.advance("1 hour")
        assert drain(0) == 0
    row.resume()
    row.terminate()
    assert types_of(row)[-1] == "workflow_terminated"
