"""Branches that wait while others are in their bodies: each goes on when its own moment has come (design 7)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.engine.waits import Answer
from durableflow.models import PendingEvent, WorkflowInstance
from tests.support.concurrency import Gate, Task, eventually
from tests.support.engine import drained, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def beside_a_body(branch: Callable[[Step], Any], *, nested: bool = False) -> tuple[type[Workflow], Gate, list[str]]:
    """A workflow with a branch in a body that only the gate ends, beside ``branch``, after which a step notes "on"."""
    gate, log = Gate(), []

    class Beside(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("both", lambda: step.do("long", gate.stop_here), lambda: self.other(step))

        def other(self, step: Step) -> Any:
            if not nested:
                return self.waits(step)
            return step.gather("inner", lambda: step.do("quick", str, 1), lambda: self.waits(step))

        def waits(self, step: Step) -> Any:
            value = branch(step)
            step.do("on", log.append, "on")
            return value

    return Beside, gate, log


def went_on_beside(task: Task, gate: Gate, log: list[str], instance: WorkflowInstance) -> WorkflowInstance:
    """The other branch went on while the body of the first one still ran; then the whole ends."""
    eventually(lambda: log, "the waiting branch goes on")
    assert not task.done
    gate.open()
    task.result()
    return drained(instance)


@pytest.mark.parametrize("nested", [False, True])
def test_a_sleep_ends_while_another_branch_is_in_a_body(nested: bool) -> None:
    cls, gate, log = beside_a_body(lambda step: step.sleep("nap", 0.2), nested=nested)
    instance = cls.create()
    task = Task(lambda: drain(1))
    gate.wait_until_reached()
    assert went_on_beside(task, gate, log, instance).status == S.COMPLETE


@pytest.mark.parametrize("nested", [False, True])
def test_an_event_is_taken_while_another_branch_is_in_a_body(nested: bool) -> None:
    cls, gate, log = beside_a_body(lambda step: step.wait_for_event("news", type="news").payload, nested=nested)
    instance = cls.create()
    task = Task(lambda: drain(1))
    gate.wait_until_reached()
    eventually(lambda: PendingEvent.objects.filter(instance=instance).exists(), "the wait is open")
    instance.send_event("news", "good")
    look = Task(lambda: eventually(lambda: (drain(0), log)[1]))  # somebody delivers
    instance = went_on_beside(task, gate, log, instance)
    look.result()
    assert instance.status == S.COMPLETE
    assert "good" in str(instance.output)


def test_a_decision_is_taken_while_another_branch_is_in_a_body() -> None:
    cls, gate, log = beside_a_body(lambda step: bool(step.wait_for_approval("ok")))
    instance = cls.create()
    task = Task(lambda: drain(1))
    gate.wait_until_reached()
    pending = eventually(lambda: PendingEvent.objects.filter(instance=instance).first(), "the approval is open")
    pending.approve(by=None)
    look = Task(lambda: eventually(lambda: (drain(0), log)[1]))
    instance = went_on_beside(task, gate, log, instance)
    look.result()
    assert (instance.status, instance.output) == (S.COMPLETE, (None, True))


def test_a_retry_is_made_while_another_branch_is_in_a_body() -> None:
    tries: list[int] = []

    def second_time() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("try again")
        return "done"

    cls, gate, log = beside_a_body(lambda step: step.do("flaky", second_time, retries=Retries(limit=1, delay=0.2)))
    instance = cls.create()
    task = Task(lambda: drain(1))
    gate.wait_until_reached()
    assert went_on_beside(task, gate, log, instance).output == (None, "done")


def test_notify_in_a_branch_is_a_body_of_that_branch() -> None:
    """It runs beside the bodies of others, with the wait's retries; a wait that nobody could be told of fails its own branch
    alone."""
    told: list[str] = []
    gate = Gate()

    def tell(pending: PendingEvent) -> None:
        told.append(pending.name)
        if pending.name == "deaf":
            raise OSError("no mail")

    class Tells(Workflow):
        class Meta:
            step_retries = Retries(limit=1, delay=0)

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            found = step.gather(
                "three",
                lambda: step.do("long", gate.stop_here),
                lambda: step.wait_for_approval("heard", timeout=None, notify=tell).approved,
                lambda: step.wait_for_approval("deaf", timeout=None, notify=tell).approved,
                return_exceptions=True,
            )
            return [str(one) if isinstance(one, Exception) else one for one in found]

    instance = Tells.create()
    task = Task(lambda: drain(1))
    gate.wait_until_reached()
    eventually(lambda: ("three-1[3]/deaf-1", "failed") in steps_of(instance), "its retries are over")
    eventually(lambda: "heard" in told, "the other one is told of")
    assert not task.done and sorted(told) == ["deaf", "deaf", "heard"]
    gate.open()
    task.result()
    assert dict(PendingEvent.objects.values_list("name", "status")) == {"heard": "open", "deaf": "cancelled"}
    PendingEvent.objects.get(name="heard").reject(by=None)
    instance = drained(instance)
    assert instance.status == S.COMPLETE and instance.output == [None, False, "no mail"]


def test_a_clock_that_was_set_back_does_not_make_a_branch_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of the database its deadline has not come, by what this execution knows it has: it looks again, in time."""
    from durableflow.engine import execution

    looks: list[int] = []
    known: list[Answer] = []
    gate = Gate()
    attend = execution.attend

    def too_early(lease: Any, claim: Any, record: Any, call: Any) -> Any:
        looks.append(1)
        if not known:
            known.append(attend(lease, claim, record, call))
        return known[0]

    monkeypatch.setattr(execution, "attend", too_early)

    class Early(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.gather(
                "two",
                lambda: step.do("long", gate.stop_here),
                lambda: step.wait_for_event("news", type="news", timeout=0.05),
            )

    Early.create()
    task = Task(lambda: drain(0))
    gate.wait_until_reached()
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 0.5 and len(looks) >= 2)
    assert len(looks) <= 2 + 10 * (time.monotonic() - began)
    gate.open()
    task.result()
