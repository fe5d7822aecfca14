"""Ends that come while branches run: a stop, a lost lease, a terminate, ``max_duration``, no memory (design 4, 6)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.core import clock
from durableflow.engine import shutdown
from durableflow.models import PendingEvent, WorkflowInstance
from tests.support.concurrency import Gate, Task, eventually
from tests.support.engine import drained, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Bodies:
    """Two branches in bodies that gates end, each with a step after it."""

    def __init__(self) -> None:
        self.gates = [Gate(), Gate()]
        self.log: list[str] = []

    def run(self, step: Step) -> Any:
        return step.gather("two", lambda: self.branch(step, 0), lambda: self.branch(step, 1))

    def branch(self, step: Step, number: int) -> str:
        step.do("long", self.body, number)
        return step.do("after", self.after, number)

    def body(self, number: int) -> None:
        self.log.append(f"long {number}")
        self.gates[number].stop_here()

    def after(self, number: int) -> str:
        self.log.append(f"after {number}")
        return f"after {number}"

    def start(self) -> Task:
        task = Task(lambda: drain(1))
        for gate in self.gates:
            gate.wait_until_reached()
        return task

    def open(self) -> None:
        for gate in self.gates:
            gate.open()


@pytest.fixture
def bodies() -> Iterator[Bodies]:
    made = Bodies()
    yield made
    made.open()


def workflow(bodies: Bodies, **meta: Any) -> type[Workflow]:
    options = type("Meta", (), meta)

    class Two(Workflow):
        Meta = options

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return bodies.run(step)

    return Two


def test_a_stop_lets_bodies_finish_and_gives_the_instance_back(bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-12: all bodies in flight are stored, nothing new begins, nobody else begins before they end; nothing is charged."""
    instance = workflow(bodies).create()
    task = bodies.start()
    stop = threading.Event()
    monkeypatch.setattr(shutdown, "_sources", [stop.is_set])
    stop.set()
    bodies.gates[0].open()
    eventually(lambda: ("two-1[1]/long-1", "complete") in steps_of(instance), "the first body is stored")
    instance.refresh_from_db()
    assert instance.status == S.RUNNING and instance.lease_token is not None
    bodies.gates[1].open()
    task.join()
    instance.refresh_from_db()
    assert (instance.status, instance.lease_token, instance.interruptions) == (S.QUEUED, None, 0)
    assert [label for label, status in steps_of(instance) if status == "complete"] == [
        "two-1[1]/long-1",
        "two-1[2]/long-1",
    ]
    stop.clear()
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, ("after 0", "after 1"))
    assert sorted(bodies.log) == ["after 0", "after 1", "long 0", "long 1"]


def test_a_lease_that_is_lost_while_branches_run(bodies: Bodies) -> None:
    """Somebody else has the instance: what the bodies return is dropped, and nothing of the old execution goes on."""
    instance = workflow(bodies).create()
    task = bodies.start()
    WorkflowInstance.objects.filter(pk=instance.pk).update(lease_token=5)
    bodies.open()
    task.result()
    instance.refresh_from_db()
    assert (instance.status, instance.lease_token) == (S.RUNNING, 5)
    assert sorted(bodies.log) == ["long 0", "long 1"]
    assert {status for label, status in steps_of(instance) if "long" in label} == {"started"}


def test_terminate_while_branches_run(bodies: Bodies) -> None:
    """It is final: no checkpoint of a body in flight, no step after it, nothing left open."""
    instance = workflow(bodies).create()
    task = bodies.start()
    instance.terminate()
    bodies.open()
    task.result()
    instance.refresh_from_db()
    assert instance.status == S.TERMINATED
    assert sorted(bodies.log) == ["long 0", "long 1"]
    assert {status for _label, status in steps_of(instance)} == {"cancelled"}


def test_max_duration_ends_while_branches_run(bodies: Bodies) -> None:
    """Bodies in flight end and are stored; then the instance ends with WorkflowTimeout, which no branch and no run sees."""
    instance = workflow(bodies, max_duration=0.5).create()
    task = bodies.start()
    instance.refresh_from_db()
    deadline = instance.deadline_at
    assert deadline is not None
    over = deadline + timedelta(seconds=0.3)  # an execution knows the database's clock from its claim on
    eventually(lambda: clock.read("default") > over, "its time is over")
    bodies.open()
    task.result()
    instance = drained(instance)
    assert instance.status == S.ERRORED and instance.error is not None
    assert instance.error["type"] == "durableflow.WorkflowTimeout"
    statuses = dict(steps_of(instance))
    assert statuses["two-1[1]/long-1"] == statuses["two-1[2]/long-1"] == "complete"
    assert statuses["two-1"] == "cancelled" and sorted(bodies.log) == ["long 0", "long 1"]


def test_a_body_without_memory_is_a_failed_attempt_of_its_branch() -> None:
    """OPS-07: MemoryError of a body is its attempt's error; other branches go on."""
    tries: list[int] = []

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather(
                "two",
                lambda: step.do("hungry", self.hungry, retries=Retries(limit=1, delay=0)),
                lambda: step.do("other", str, 1),
            )

        def hungry(self) -> str:
            tries.append(1)
            if len(tries) == 1:
                raise MemoryError
            return "fed"

    instance = drained(Two.create())
    assert (instance.status, instance.output) == (S.COMPLETE, ("fed", "1"))
    assert types_of(instance).count("attempt_errored") == 1


def test_an_engine_that_fails_in_a_branch_blocks_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine failures never end an instance: whatever thread they hit."""
    from durableflow.engine import groups

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a bug of the engine")

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("two", lambda: step.do("a", str, 1), lambda: step.do("b", str, 2))

    instance = Two.create()
    with monkeypatch.context() as patch:
        patch.setattr(groups.Group, "_pass", broken)
        instance = drained(instance)
    assert instance.status == S.PAUSED and "a bug of the engine" in instance.blocked
    instance.resume()
    assert drained(instance).output == ("1", "2")


def test_a_wait_of_a_terminated_gather_is_cancelled(bodies: Bodies) -> None:
    class Waits(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("two", lambda: step.wait_for_approval("ok"), lambda: step.sleep("nap", 60))

    instance = drained(Waits.create())
    instance.terminate()
    assert PendingEvent.objects.get().status == "cancelled"
    assert {status for _label, status in steps_of(instance)} == {"cancelled"}
