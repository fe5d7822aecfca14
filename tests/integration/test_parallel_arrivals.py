"""What arrives for branches while others run: who looks for it, and whom it wakes (design 7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from durableflow import AsyncStep, Step, Workflow, WorkflowEvent, drain
from durableflow.engine import endings
from durableflow.models import PendingEvent, WorkflowInstance
from tests.support.concurrency import Gate, Task, eventually
from tests.support.engine import drained, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def test_news_taken_by_an_inner_group_wakes_the_outer_branches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one group learns of an arrival is known to all that wait: a wake is taken from the row once only.

    The inner group alone looks (the body of the outer one's own thread has its helpers busy): without a common count the event
    for the outer branch would never be read.
    """
    gate, asked = Gate(), []
    look = endings.take_woken

    def take(lease: Any) -> bool:
        taken = look(lease)
        if taken:
            asked.append(1)
        return taken

    monkeypatch.setattr(endings, "take_woken", take)

    class Nested(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather(
                "outer",
                lambda: step.wait_for_event("mine", type="mine", timeout=None).payload,
                lambda: step.gather(
                    "inner",
                    lambda: step.wait_for_event("other", type="other", timeout=None).payload,
                    lambda: step.do("long", gate.stop_here),
                ),
            )

    instance = Nested.create()
    task = Task(lambda: drain(1))
    gate.wait_until_reached()
    eventually(lambda: PendingEvent.objects.filter(instance=instance).count() == 2, "both waits are open")
    instance.send_event("mine", 1)
    eventually(lambda: (drain(0), asked)[1], "the arrival is noticed")
    eventually(lambda: ("outer-1[1]/mine-1", "complete") in steps_of(instance), "the outer branch goes on")
    assert not task.done
    gate.open()
    task.result()
    drain(1)
    instance.refresh_from_db()
    assert instance.status == S.WAITING
    instance.send_event("other", 2)
    assert drained(instance).output == (1, (2, None))


def test_an_event_between_the_look_of_a_branch_and_its_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch has looked into the inbox and found nothing; before it is parked the event comes, and another branch's look takes
    the wake. The branch looks again all the same."""
    from durableflow.engine import execution

    looked, long = Gate(), Gate()
    attend, first = execution.attend, [True]

    def slowly(lease: Any, claim: Any, record: Any, call: Any) -> Any:
        answer = attend(lease, claim, record, call)
        if call.name == "slow" and first:
            first.clear()
            looked.stop_here()
        return answer

    monkeypatch.setattr(execution, "attend", slowly)
    taken: list[int] = []
    look = endings.take_woken
    monkeypatch.setattr(endings, "take_woken", lambda lease: bool(look(lease) and (taken.append(1) or True)))

    class Between(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather(
                "three",
                lambda: step.do("long", long.stop_here),
                lambda: step.wait_for_event("slow", type="slow", timeout=None).payload,
                lambda: step.wait_for_event("parked", type="parked", timeout=None).payload,
            )

    instance = Between.create()
    task = Task(lambda: drain(1))
    long.wait_until_reached()
    looked.wait_until_reached()
    eventually(lambda: PendingEvent.objects.filter(instance=instance).count() == 2, "both waits are open")
    instance.send_event("slow", "here")
    eventually(lambda: (drain(0), taken)[1], "a look takes the wake")
    looked.open()
    eventually(lambda: ("three-1[2]/slow-1", "complete") in steps_of(instance), "the event is read")
    assert not task.done
    long.open()
    task.result()
    instance.send_event("parked", "too")
    assert drained(instance).output == (None, "here", "too")


def test_nobody_leaves_while_another_thread_looks_for_what_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helping thread has taken the wake and not told of it yet, when the last body ends: the instance is not let go without
    that, or the event would lie there for ever."""
    long, taking = Gate(), Gate()
    look, first = endings.take_woken, [True]

    def take(lease: Any) -> bool:
        taken = look(lease)
        if taken and first:
            first.clear()
            taking.stop_here()
        return taken

    monkeypatch.setattr(endings, "take_woken", take)

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather(
                "two",
                lambda: step.do("long", long.stop_here),
                lambda: step.wait_for_event("news", type="news", timeout=None).payload,
            )

    instance = Two.create()
    task = Task(lambda: drain(1))
    long.wait_until_reached()
    eventually(lambda: PendingEvent.objects.filter(instance=instance).exists(), "the wait is open")
    instance.send_event("news", 1)
    deliver = Task(lambda: eventually(lambda: (drain(0), not first)[1]))
    taking.wait_until_reached()
    long.open()
    eventually(lambda: ("two-1[1]/long-1", "complete") in steps_of(instance), "the body is stored")
    taking.open()
    task.result()
    deliver.result()
    assert drained(instance).output == (None, 1)


def test_what_one_branch_takes_delivery_of_wakes_the_others(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """A look into the inbox delivers all that lies there, also what is for a branch that has just found nothing. No delivery
    from outside will ever wake that one."""
    from durableflow.engine import execution

    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "BRANCH_THREADS": 0}
    attend, first = execution.attend, [True]

    def sends(lease: Any, claim: Any, record: Any, call: Any) -> Any:
        if call.name == "second" and first:
            first.clear()
            instance.send_event("first", 1)
        return attend(lease, claim, record, call)

    monkeypatch.setattr(execution, "attend", sends)

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather(
                "two",
                lambda: step.wait_for_event("first", type="first", timeout=None).payload,
                lambda: step.wait_for_event("second", type="second", timeout=None).payload,
            )

    instance = Two.create()
    drained(instance)
    assert dict(steps_of(instance))["two-1[1]/first-1"] == "complete"
    instance.send_event("second", 2)
    assert drained(instance).output == (1, 2)


def test_the_same_in_an_async_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from durableflow.engine import execution

    attend, first = execution.attend, [True]

    def sends(lease: Any, claim: Any, record: Any, call: Any) -> Any:
        if call.name == "second" and first:
            first.clear()
            instance.send_event("first", 1)
        return attend(lease, claim, record, call)

    monkeypatch.setattr(execution, "attend", sends)

    class Two(Workflow):
        async def run(self, event: WorkflowEvent, step: AsyncStep) -> Any:
            found = await asyncio.gather(
                step.wait_for_event("first", type="first", timeout=None),
                step.wait_for_event("second", type="second", timeout=None),
            )
            return [one.payload for one in found]

    instance = Two.create()
    drained(instance)
    assert dict(steps_of(instance))["first-1"] == "complete"
    instance.send_event("second", 2)
    assert drained(instance).output == [1, 2]


def test_an_arrival_costs_no_look_for_each_branch_that_it_is_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look tells for all of them: else a hundred waiting branches would take a hundred transactions at each event."""
    from durableflow.engine import execution

    attend, looks = execution.attend, list[str]()

    def counted(lease: Any, claim: Any, record: Any, call: Any) -> Any:
        looks.append(call.name)
        return attend(lease, claim, record, call)

    monkeypatch.setattr(execution, "attend", counted)

    class Many(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("many", *[self.branch(step, number) for number in range(20)])

        def branch(self, step: Step, number: int) -> Any:
            if number % 2:
                return lambda: (
                    step.wait_for_approval(f"ok {number}", timeout=None, notify=lambda pending: None).approved
                )
            return lambda: step.wait_for_event(f"event {number}", type=f"e{number}", timeout="1 hour").payload

    instance = drained(Many.create())
    assert len(set(looks)) == 20
    looks.clear()
    instance.send_event("e4", 4)
    instance = drained(instance)
    assert set(looks) == {"event 4"}
    looks.clear()
    PendingEvent.objects.get(name="ok 7").approve(by=None)
    instance = drained(instance)
    assert set(looks) == {"ok 7"}
    for pending in PendingEvent.objects.filter(status="open"):
        if pending.is_approval:
            pending.approve(by=None)
        else:
            instance.send_event(pending.types[0], 1)
    instance = drained(instance)
    assert instance.status == S.COMPLETE and instance.output[4:8] == (4, True, 1, True)
