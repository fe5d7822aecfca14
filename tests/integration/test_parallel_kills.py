"""Workers that are lost while branches run: identities never depend on timing (ENG-06), each lost attempt is charged (RET-03)."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.core.statuses import FINISHED
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.interception import Interceptor
from durableflow.engine.journal import Identity
from durableflow.engine.lease import Lease
from durableflow.engine.unwind import ProcessDied
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import eventually
from tests.support.engine import drained, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
ROUNDS = 70
BRANCHES = 3


class Crash(Interceptor):
    """The process "dies" when one step's body has ended: nothing more is written by any of its threads."""

    def __init__(self, lease: Lease, when: Callable[[Identity], bool]) -> None:
        self._lease, self._when = lease, when
        self.crashed = False

    def before_checkpoint(self, workflow: str, identity: Identity, attempt: int) -> None:
        """See above."""
        if self._when(identity):
            self.crashed = self._lease.lost = True
            raise ProcessDied(f"{identity.label} died")


def crash_once(when: Callable[[Identity], bool]) -> bool:
    """Execute what is due, and die; whether it came to that. The next execution takes over."""
    (claimed,) = eventually(lambda: claim("default"), "a thread of the lost execution lets the row go")
    crash = Crash(claimed.lease, when)
    try:
        execute(claimed, interceptor=crash)
    except ProcessDied:
        pass
    expire_leases()
    return crash.crashed


def ended(instance: WorkflowInstance) -> WorkflowInstance:
    """Execute it to its end; a thread of the lost execution may hold its row for a moment, so that a look passes it by."""
    eventually(lambda: drained(instance).status in FINISHED, "its end")
    return instance


class Pairs(Workflow[int, Any]):
    """Branches of two steps, with random delays; the second is given the value of the first."""

    class Meta:
        name = "parallel-pairs"

    runs: list[tuple[str, str]] = []
    delay = random.Random(5)

    def run(self, event: WorkflowEvent[int], step: Step) -> Any:
        branches = [self.branch(step, number) for number in range(BRANCHES)]
        return step.gather("three", *branches)

    def branch(self, step: Step, number: int) -> Callable[[], list[str]]:
        def run() -> list[str]:
            first = step.do("first", self.body, number, "")
            return [first, step.do("second", self.body, number, first)]

        return run

    def body(self, number: int, given: str) -> str:
        context = get_step_context()
        self.runs.append((context.instance_id, f"{number} {context.name}"))
        time.sleep(self.delay.uniform(0, 0.006))  # the scenario: whoever is ready first
        return f"{given}/{number}:{uuid4()}"


@pytest.mark.parametrize("threads", [8, 2, 0])
def test_branches_keep_their_values_after_a_crash(threads: int, settings: Any) -> None:
    """ENG-06, many fast rounds: always the same pairing, no determinism error, no stored body repeated, no id shared."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "BRANCH_THREADS": threads}
    Pairs.runs = []
    chooser = random.Random(threads)
    for _ in range(ROUNDS // 3 + 1):
        instance = Pairs.create()
        stop_at = (f"three-1[{chooser.randint(1, BRANCHES)}]", chooser.choice(["first", "second"]))
        stopped = crash_once(lambda identity, at=stop_at: (identity.scope, identity.name) == at)
        stored = {step.label for step in instance.steps.filter(kind="do", status="complete")}
        before = Counter(Pairs.runs)
        instance = ended(instance)
        assert stopped and (instance.status, instance.blocked) == (S.COMPLETE, ""), instance.error
        for number, (first, second) in enumerate(instance.output):
            assert first.startswith(f"/{number}:") and second.startswith(f"{first}/{number}:")
        again = Counter(Pairs.runs) - before
        repeated = {f"three-1[{int(what.split()[0]) + 1}]/{what.split()[1]}-1" for _instance, what in again}
        assert not repeated & stored, "a stored body never runs again"
        for step in instance.steps.filter(kind="do"):
            assert step.attempts == 1 + len([lost for lost in lost_steps(instance) if lost == step.label])


def lost_steps(instance: WorkflowInstance) -> list[str]:
    return list(instance.history.filter(type="attempt_lost").values_list("step", flat=True))


def test_each_open_body_is_a_lost_attempt_and_the_next_step_is_not(settings: Any) -> None:
    """RET-03, design 6: start marks tell which bodies were in flight; what comes after the gather had not begun."""
    meet = threading.Barrier(3)
    first = [True]

    class Three(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.gather("three", *[(lambda n=n: step.do(f"work {n}", self.work, n)) for n in range(3)])
            return step.do("after", lambda: get_step_context().attempt)

        def work(self, number: int) -> None:
            if get_step_context().attempt == 1 and first:
                meet.wait(30)

    instance = Three.create()
    assert crash_once(lambda identity: identity.scope != "")
    first.clear()
    instance = ended(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, 1)
    lost = sorted(lost_steps(instance))
    assert 1 <= len(lost) <= 3 and all(label.startswith("three-1[") for label in lost)
    for step in instance.steps.filter(kind="do"):
        assert step.attempts == 1 + lost.count(step.label)


def test_a_worker_that_is_lost_between_the_bodies_of_a_gather_charges_nobody() -> None:
    """No body was in flight: neither the branches' next steps nor the step behind the gather has lost an attempt."""

    class Naps(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.gather("naps", lambda: step.sleep("nap", 0), lambda: step.do("work", str, 1))
            return step.do("after", lambda: get_step_context().attempt)

    instance = Naps.create()
    (claimed,) = claim("default")

    class Dies(Interceptor):
        def body(self, workflow: str, identity: Identity, attempt: int, body: Callable[[], Any]) -> Callable[[], Any]:
            if identity.name == "after":
                claimed.lease.lost = True
                raise ProcessDied("before the body")
            return body

    with pytest.raises(ProcessDied):
        execute(claimed, interceptor=Dies())
    # The record of the gather is as it was before its end: that is what a worker that dies there leaves.
    instance.steps.filter(name="naps").update(status="pending", finished=None)
    expire_leases()
    instance = ended(instance)
    assert (instance.status, instance.output, lost_steps(instance)) == (S.COMPLETE, 1, [])


def test_out_of_retries_a_lost_body_is_the_branchs_failure() -> None:
    """WorkerLost, in the group with the others' failures; the other branches' values are kept."""

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            try:
                step.gather(
                    "two",
                    lambda: step.do("kills", self.kills, retries=Retries(limit=1, delay=0)),
                    lambda: step.do("quick", str, 1),
                )
            except ExceptionGroup as group:
                return [type(error).__name__ for error in group.exceptions]

        def kills(self) -> None:
            """Its checkpoint is never reached."""

    instance = Two.create()
    for _ in range(2):
        assert crash_once(lambda identity: identity.name == "kills")
    instance = ended(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, ["WorkerLost"])
    assert lost_steps(instance).count("two-1[1]/kills-1") == 2  # the other may have been in flight too
    assert ("two-1[2]/quick-1", "complete") in steps_of(instance)


def test_an_interrupted_instance_runs_its_branches_one_at_a_time_until_it_has_made_progress() -> None:
    """Design 6: whichever body kills the process, it is alone then, and the others are not charged for it again."""
    running, most = [0], [0]
    lock = threading.Lock()

    class Many(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.map("many", self.work, range(6), retries=Retries(limit=5, delay=0))

        def work(self, number: int) -> int:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            time.sleep(0.02)
            with lock:
                running[0] -= 1
            return number

    instance = Many.create()
    assert crash_once(lambda identity: identity.scope != "")
    eventually(lambda: not running[0], "the lost bodies have ended")
    most[0] = 0
    assert crash_once(lambda identity: identity.scope != "")
    assert most[0] == 1
    instance = ended(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, list(range(6)))
    assert drain(0) == 0
