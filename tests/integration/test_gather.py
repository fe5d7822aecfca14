"""``gather``: branches in scopes of their own, settled together (design 7)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from durableflow import Retries, Step, Workflow, WorkflowEvent
from durableflow.models import StepRecord, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, noted, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Fork(Workflow):
    """Two branches of two steps, one of them with a sleep."""

    class Meta:
        name = "gather-fork"

    log: list[str] = []

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        return step.gather("fork", lambda: self.branch(step, "a"), lambda: self.branch(step, "b", "1 hour"))

    def branch(self, step: Step, name: str, sleep: str = "") -> str:
        first = step.do("first", lambda: noted(self.log, f"{name}1", f"{name}1"))
        if sleep:
            step.sleep("nap", sleep)
        return step.do("second", lambda: noted(self.log, f"{first}{name}2", f"{first}+{name}2"))


def test_branches_have_scopes_and_wait_together(stopped_clock: StoppedClock) -> None:
    Fork.log = []
    instance = drained(Fork.create())
    assert instance.status == S.WAITING
    assert sorted(Fork.log) == ["a1", "a1a2", "b1"]
    stopped_clock.advance("1 hour")
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, ("a1+a2", "b1+b2"))
    assert sorted(Fork.log) == ["a1", "a1a2", "b1", "b1b2"]
    assert set(steps_of(instance)) == {
        ("fork-1", "complete"),
        ("fork-1[1]/first-1", "complete"),
        ("fork-1[1]/second-1", "complete"),
        ("fork-1[2]/first-1", "complete"),
        ("fork-1[2]/nap-1", "complete"),
        ("fork-1[2]/second-1", "complete"),
    }


class Meeting(Workflow):
    """Bodies that wait for each other: they can only end in threads of their own."""

    class Meta:
        name = "gather-meeting"

    barrier = threading.Barrier(3)

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        got = step.gather("meet", *[(lambda n=n: step.do(f"meet {n}", self.meet, n)) for n in range(3)])
        return [sum(got), step.map("again", self.meet, range(3))]

    def meet(self, number: int) -> int:
        self.barrier.wait(20)
        return number


def test_bodies_of_branches_run_at_once() -> None:
    instance = drained(Meeting.create())
    assert (instance.status, instance.output, instance.error) == (S.COMPLETE, [3, [0, 1, 2]], None)


class Failing(Workflow):
    """ENG-11: two of three branches fail."""

    class Meta:
        name = "gather-failing"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        try:
            step.gather(
                "three",
                lambda: step.do("a", self.fail, "a", retries=0),
                lambda: step.do("b", str, "b"),
                lambda: step.do("c", self.fail, "c", retries=Retries(limit=1, delay=0)),
            )
        except ExceptionGroup as group:
            return [str(error) for error in group.exceptions]

    def fail(self, name: str) -> None:
        raise ValueError(f"no {name}")


def test_all_are_settled_before_the_failures_are_raised() -> None:
    """ENG-11: all branches are settled, one error has every failure, and no record stays open."""
    instance = drained(Failing.create())
    assert (instance.status, instance.output) == (S.COMPLETE, ["no a", "no c"])
    assert {step.status for step in StepRecord.objects.filter(instance=instance)} == {"complete", "failed"}
