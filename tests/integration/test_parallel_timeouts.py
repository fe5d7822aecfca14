"""Bodies in branches that do not end in time: given up one by one, while the other branches go on (RET-02, RET-04)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from durableflow import Retries, Step, StepTimeout, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.engine import replacement
from durableflow.models import WorkflowInstance
from tests.support.concurrency import Gate, Task, eventually
from tests.support.engine import drained, history_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


@pytest.fixture(autouse=True)
def _no_replacement() -> Iterator[None]:
    """Nobody is left who wants this process replaced."""
    yield
    assert not replacement.wanted()


def caller(task_name: str = "") -> bool:
    """Whether this is the thread that executes the instance, and not one that helps."""
    return not threading.current_thread().name.startswith("durableflow-branch")


class Stuck:
    """A body that hangs at its first attempt, until the gate opens, if it runs where ``where`` says."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.attempts: list[int] = []

    def __call__(self) -> str:
        number = get_step_context().attempt
        self.attempts.append(number)
        if number == 1:
            self.gate.stop_here()
            return "late"
        return f"attempt {number}"


RETRIED: dict[str, Any] = {"retries": Retries(limit=1, delay=0), "timeout": 0.4}


@pytest.mark.parametrize("nested", [False, True])
def test_a_body_in_a_helping_thread_is_given_up_and_its_branch_goes_on(
    nested: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """RET-04 in a branch: its retry runs while the first body still hangs and the calling thread is in a body of its own."""
    stuck, long, taken = Stuck(), Gate(), threading.Event()

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("two", lambda: step.do("long", self.long), lambda: self.branch(step))

        def long(self) -> None:
            assert caller()
            long.stop_here()

        def branch(self, step: Step) -> Any:
            if not nested:
                return step.do("stuck", stuck, **RETRIED)
            return step.gather("inner", lambda: step.do("stuck", stuck, **RETRIED), lambda: step.do("quick", str, 1))

    instance = Two.create()
    with caplog.at_level(logging.WARNING, "durableflow"):
        task = Task(lambda: drain(1))
        long.wait_until_reached()
        stuck.gate.wait_until_reached()
        label = "two-1[2]/inner-1[1]/stuck-1" if nested else "two-1[2]/stuck-1"
        eventually(lambda: (label, "complete") in steps_of(instance), "the second attempt")
        assert not task.done
        long.open()
        task.result()
        instance = drained(instance)
        stuck.gate.open()
        eventually(lambda: "its late" in caplog.text, "what the late body gives is dropped")
    want = ("attempt 2", "1") if nested else "attempt 2"
    assert (instance.status, instance.output) == (S.COMPLETE, (None, want))
    assert stuck.attempts == [1, 2] and not taken.is_set()
    (first,) = history_of(instance, "attempt_errored")
    assert first["error"]["type"] == "durableflow.StepTimeout"


def test_the_calling_thread_itself_is_stuck(caplog: pytest.LogCaptureFixture) -> None:
    """The instance is let go when the other branches have stored what they do; another execution goes on."""
    stuck, long = Stuck(), Gate()

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("two", lambda: step.do("stuck", stuck, **RETRIED), lambda: step.do("long", self.long))

        def long(self) -> str:
            assert not caller()
            long.stop_here()
            return "stored"

    instance = Two.create()
    task = Task(lambda: drain(1))
    stuck.gate.wait_until_reached()
    long.wait_until_reached()
    eventually(lambda: history_of(instance, "attempt_errored"), "the attempt is recorded")
    instance.refresh_from_db()
    assert instance.lease_token is not None, "nobody else may begin while a body runs"
    long.open()
    eventually(lambda: drained(instance).status == S.COMPLETE, "another execution goes on")
    assert instance.output == ("attempt 2", "stored")
    stuck.gate.open()
    task.result()
    assert history_of(instance, "step_completed") and instance.steps.get(name="long").attempts == 1


def test_a_loop_in_a_helping_thread_is_interrupted_and_the_execution_goes_on() -> None:
    """The thread comes back before the watcher has recorded the attempt: that must not stop the other branches."""
    long, spins = Gate(), threading.Event()

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather(
                "two", lambda: step.do("long", long.stop_here), lambda: step.do("loop", self.loop, **RETRIED)
            )

        def loop(self) -> str:
            while get_step_context().attempt == 1:
                spins.set()
            return "done"

    instance = Two.create()
    task = Task(lambda: drain(1))
    long.wait_until_reached()
    eventually(lambda: ("two-1[2]/loop-1", "complete") in steps_of(instance), "the second attempt")
    assert not task.done and spins.is_set()
    long.open()
    task.result()
    instance = drained(instance)
    assert (instance.status, instance.output, instance.execution) == (S.COMPLETE, (None, "done"), 1)


def test_without_retries_the_timeout_is_the_branchs_failure() -> None:
    gate = Gate()

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            try:
                step.gather(
                    "two",
                    lambda: step.do("quick", str, 1),
                    lambda: step.do("stuck", gate.stop_here, retries=0, timeout=0.3),
                )
            except ExceptionGroup as group:
                (error,) = group.exceptions
                assert isinstance(error, StepTimeout)
                return str(error)

    instance = Two.create()
    task = Task(lambda: drain(1))
    gate.wait_until_reached()
    eventually(lambda: ("two-1[2]/stuck-1", "failed") in steps_of(instance), "the failure is recorded")
    eventually(lambda: drained(instance).status == S.COMPLETE, "run goes on")
    assert "0.3 seconds" in instance.output
    gate.open()
    task.result()


def test_a_stuck_caller_beside_a_branch_that_waits(caplog: pytest.LogCaptureFixture) -> None:
    """The helping thread that looks out for the waiting branch ends quietly when the instance is let go, and nothing of that
    branch begins meanwhile."""
    stuck, log = Stuck(), list[str]()

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("two", lambda: step.do("stuck", stuck, **RETRIED), lambda: self.waits(step))

        def waits(self, step: Step) -> Any:
            step.wait_for_event("news", type="news", timeout=None)
            return step.do("on", log.append, "on")

    instance = Two.create()
    with caplog.at_level(logging.WARNING, "durableflow"):
        task = Task(lambda: drain(1))
        stuck.gate.wait_until_reached()
        eventually(lambda: drained(instance).status == S.WAITING and stuck.attempts == [1, 2], "it goes on elsewhere")
        instance.send_event("news")
        eventually(lambda: drained(instance).status == S.COMPLETE)
        stuck.gate.open()
        task.result()
    assert (instance.output, log) == (("attempt 2", None), ["on"])
    assert "ends by an error of the engine" not in caplog.text
