"""Which attempt a lost worker is charged to; no processes, time jumps over the lease (RET-03; design 6)."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group

from durableflow import Retries, Step, WorkerLost, Workflow, WorkflowEvent, get_step_context
from durableflow.engine import bodies as engine_bodies
from durableflow.engine import steprun
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.interception import Interceptor
from durableflow.engine.journal import Identity
from durableflow.engine.unwind import ProcessDied
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# The same without processes: time jumps over the lease ----------------------------------------------------------------


class Crash(Interceptor):
    """The process dies in the body of a step, ``times`` times."""

    def __init__(self, step: str, times: int = 1, *, after_body: bool = False) -> None:
        self.step, self.left, self.after_body = step, times, after_body

    def body(self, workflow: str, identity: Identity, attempt: int, body: Any) -> Any:
        if identity.name != self.step or self.after_body or not self.left:
            return body
        self.left -= 1

        def dies() -> None:
            raise ProcessDied

        return dies

    def before_checkpoint(self, workflow: str, identity: Identity, attempt: int) -> None:
        if identity.name == self.step and self.after_body and self.left:
            self.left -= 1
            raise ProcessDied


def run_dying(instance: WorkflowInstance, clock: StoppedClock, crash: Crash) -> WorkflowInstance:
    """Execute with a process that dies, again and again, until nothing is due."""
    while True:
        taken = claim("default")
        if not taken:
            break
        try:
            execute(taken[0], interceptor=crash, renew=False)
        except ProcessDied:
            clock.outlast_leases()
    instance.refresh_from_db()
    return instance


def two_steps(bodies: list[Any], **options: Any) -> type[Workflow]:
    class TwoSteps(Workflow):
        class Meta:
            name = "two-steps"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            first = step.do("first", self.body, **options)
            return [first, step.do("second", self.body, **options)]

        def body(self) -> str:
            context = get_step_context()
            bodies.append((context.name, context.attempt, context.idempotency_key[:4]))
            return context.name

    return TwoSteps


@pytest.mark.parametrize("after_body", [False, True])
@pytest.mark.parametrize("step", ["first", "second"])
def test_lost_attempt_is_charged_to_its_step(step: str, after_body: bool, stopped_clock: StoppedClock) -> None:
    """RET-03, CON-05, design 6: the body runs again as the next attempt with the same key; the other step is untouched."""
    bodies: list[Any] = []
    instance = two_steps(bodies).create()
    run_dying(instance, stopped_clock, Crash(step, after_body=after_body))
    assert (instance.status, instance.output, instance.interruptions) == (S.COMPLETE, ["first", "second"], 0)
    mine = [entry for entry in bodies if entry[0] == step]
    assert [attempt for _, attempt, _ in mine] == ([1, 2] if after_body else [2])
    assert len({key for _, _, key in mine}) == 1
    assert history_of(instance, "attempt_lost") == [{"attempt": 1}]
    assert instance.steps.get(name=step).attempts == 2
    assert instance.steps.exclude(name=step).get().attempts == 1


def test_lost_attempts_end_with_the_budget(stopped_clock: StoppedClock) -> None:
    """RET-03: WorkerLost is an error that run may catch; there is no delay after a lost attempt (design 12)."""

    class Lost(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            try:
                step.do("dies", lambda: None, retries=Retries(limit=2, delay="1 hour"))
            except WorkerLost as error:
                step.sleep("nap", 60)
                return f"caught {error}"
            return "never"

    instance = Lost.create()
    run_dying(instance, stopped_clock, Crash("dies", 10))
    assert instance.status == S.WAITING
    assert types_of(instance).count("attempt_lost") == 3
    stopped_clock.advance(60)
    assert drained(instance).status == S.COMPLETE
    assert "dies-1" in instance.output


def test_a_step_without_retries_starts_its_body_once(stopped_clock: StoppedClock) -> None:
    """Design 1.2: a start mark before the body; lost is lost; before the mark it has not begun and is not charged."""
    bodies: list[Any] = []
    instance = two_steps(bodies, retries=0).create()
    run_dying(instance, stopped_clock, Crash("second", after_body=True))
    assert instance.status == S.ERRORED
    assert [entry[:2] for entry in bodies] == [("first", 1), ("second", 1)]
    assert instance.error is not None and instance.error["type"].endswith("WorkerLost")

    # The worker dies between the two steps: nothing had begun.
    bodies.clear()
    instance = two_steps(bodies, retries=0).create()
    (taken,) = claim("default")
    with pytest.MonkeyPatch.context() as patch:
        original = engine_bodies.BodyRun._mark_start

        def die(self: Any) -> None:
            if self.identity.name == "second":
                raise ProcessDied
            original(self)

        patch.setattr(engine_bodies.BodyRun, "_mark_start", die)
        with pytest.raises(ProcessDied):
            execute(taken, renew=False)
    stopped_clock.outlast_leases()
    assert drained(instance).status == S.COMPLETE
    assert [entry[:2] for entry in bodies] == [("first", 1), ("second", 1)]
    assert "attempt_lost" not in types_of(instance)


def test_a_worker_that_died_outside_of_a_body_charges_nothing_to_a_sleep(stopped_clock: StoppedClock) -> None:
    """Design 6: the charge goes to the first step that replay wants to execute, and is dropped by a call without body."""

    class Sleeps(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            step.sleep("nap", 60)
            return step.do("after", lambda: str(get_step_context().attempt))

    instance = Sleeps.create()
    claim("default")  # it dies before it has done anything
    stopped_clock.outlast_leases()
    drained(instance)
    stopped_clock.advance(60)
    assert drained(instance).output == "1"
    assert "attempt_lost" not in types_of(instance)


def test_poison_without_progress_is_blocked(stopped_clock: StoppedClock) -> None:
    """Design 6, OPS-13: ten takeovers without a checkpoint; resume tries again; a checkpoint clears the count."""

    class Poison(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            step.do("dies", lambda: None, retries=100)
            return "done"

    instance = Poison.create()
    run_dying(instance, stopped_clock, Crash("dies", 50))
    assert instance.status == S.PAUSED
    assert "lost 10 times in a row" in instance.blocked
    assert instance.steps.get().attempts == 10
    instance.resume()
    assert (drained(instance).status, instance.interruptions) == (S.COMPLETE, 0)
    assert instance.steps.get().attempts == 11


def test_start_marks_end_with_the_first_checkpoint(
    stopped_clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design 6, "Interruptions": they cost a write per step, and are needed while the count is above zero alone."""

    class Walk(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            for name in ("first", "second", "third"):
                step.do(name, lambda: None)
            return "done"

    written: list[str] = []
    write = steprun.write_step
    instance = Walk.create()
    (taken,) = claim("default")
    with pytest.raises(ProcessDied):
        execute(taken, interceptor=Crash("first"), renew=False)
    monkeypatch.setattr(
        steprun,
        "write_step",
        lambda lease, step: (written.append(f"{step.record.identity.name} {step.record.status}"), write(lease, step))[
            1
        ],
    )
    stopped_clock.outlast_leases()
    assert (drained(instance).status, instance.interruptions) == (S.COMPLETE, 0)
    assert written == ["first pending", "first started", "first complete", "second complete", "third complete"]


def test_progress_clears_the_count(stopped_clock: StoppedClock) -> None:
    """Design 6: a takeover adds one, the next checkpoint resets it."""

    class Many(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            for i in range(15):
                step.do(f"step {i}", lambda: None)
            return "done"

    instance = Many.create()
    for i in range(15):
        run = Crash(f"step {i}", 1)
        (taken,) = claim("default")
        with pytest.raises(ProcessDied):
            execute(taken, interceptor=run, renew=False)
        stopped_clock.outlast_leases()
    assert drained(instance).status == S.COMPLETE, instance.blocked
    assert types_of(instance).count("attempt_lost") == 15


def test_atomic_step_is_exactly_once_over_a_crash(stopped_clock: StoppedClock) -> None:
    """Design 1.2, 6: the body's writes in the app's database and the checkpoint commit together, or neither."""

    class Atomic(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> int:
            step.do("writes", lambda: Group.objects.create(name="once").pk, atomic=True)
            return Group.objects.count()

    instance = Atomic.create()
    run_dying(instance, stopped_clock, Crash("writes", 2, after_body=True))
    assert (instance.status, instance.output) == (S.COMPLETE, 1), instance.blocked
