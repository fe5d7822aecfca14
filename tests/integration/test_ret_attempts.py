"""Attempts: how many, when, and what they leave behind."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from durableflow import NonRetryableError, Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.integration.ret_flows import failing, one_step
from tests.support.engine import drained, history_of, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Declined(NonRetryableError):
    """The bank says no."""


class Frozen(Exception):
    """Refuses to be changed, as an exception that is a frozen dataclass does."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot assign to field {name!r}")


@pytest.mark.parametrize(("limit", "runs"), [(0, 1), (1, 2), (3, 4)])
def test_retries_come_after_the_first_attempt(limit: int, runs: int) -> None:
    """RET-01: limit 0, 1, 3 is 1, 2, 4 bodies, with as many attempt rows."""
    bodies: list[int] = []
    instance = drained(one_step(failing(OSError("no"), bodies), retries=Retries(limit=limit, delay=0)).create())
    assert (instance.status, bodies) == (S.ERRORED, list(range(1, runs + 1)))
    assert [entry["attempt"] for entry in history_of(instance, "attempt_errored")] == bodies
    assert (instance.steps.get().attempts, steps_of(instance)) == (runs, [("work-1", "failed")])
    assert types_of(instance)[-2:] == ["step_errored", "workflow_errored"]


@pytest.mark.parametrize("error", [NonRetryableError(), NonRetryableError(""), Declined(), Declined("51")])
def test_type_decides_not_text(error: Exception) -> None:
    """RET-06: one attempt, the type is shown."""
    bodies: list[int] = []
    instance = drained(one_step(failing(error, bodies), retries=5).create())
    assert (instance.status, bodies) == (S.ERRORED, [1])
    assert instance.error is not None and instance.error["type"].endswith(type(error).__name__)
    shown = instance.steps.get().error
    assert shown is not None and shown["type"] == instance.error["type"]


def test_give_up_on_stops_at_once() -> None:
    """RET-06: somebody else's class is not retried either."""
    bodies: list[int] = []
    policy = Retries(limit=5, delay=0, give_up_on=(ValueError, KeyError))
    instance = drained(one_step(failing(KeyError("x"), bodies), retries=policy).create())
    assert (instance.status, bodies) == (S.ERRORED, [1])


def test_original_error_is_shown_with_its_cause() -> None:
    """RET-07: type, message and trace of the original on step, attempt and instance; the cause is kept."""

    def body() -> None:
        try:
            raise ConnectionError("socket closed 17")
        except ConnectionError as cause:
            raise Declined("card declined 51") from cause

    instance = drained(one_step(body).create())
    (attempt,) = history_of(instance, "attempt_errored")
    for shown in (instance.error, instance.steps.get().error, attempt["error"]):
        assert shown is not None
        assert (shown["type"], shown["message"]) == (f"{__name__}.Declined", "card declined 51")
        assert "socket closed 17" in shown["traceback"] and "in body" in shown["traceback"]
        assert shown["step"] == "work-1"


def test_uncaught_error_of_run_is_shown() -> None:
    """RET-07: the same for an error outside of a step."""

    class Plain(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            raise Declined("card declined 51")

    instance = drained(Plain.create())
    assert instance.error is not None
    assert (instance.error["message"], instance.error["step"]) == ("card declined 51", "")
    assert "in run" in instance.error["traceback"]


def test_an_error_that_refuses_to_be_changed_is_recorded() -> None:
    """RET-07: whatever the class does, the attempt is recorded and the instance ends."""
    bodies: list[int] = []
    instance = drained(one_step(failing(Frozen("ice"), bodies), retries=Retries(limit=1, delay=0)).create())
    assert (instance.status, bodies) == (S.ERRORED, [1, 2]), instance.blocked
    assert instance.error is not None and instance.error["message"] == "ice"


@pytest.mark.parametrize("delay", [0, "0 seconds", timedelta(0), lambda context, error: 0])
def test_delay_of_zero(delay: Any) -> None:
    """RET-08: accepted; the retry comes with the next look."""
    bodies: list[int] = []

    def body() -> str:
        bodies.append(1)
        if len(bodies) == 1:
            raise OSError("once")
        return "done"

    instance = drained(one_step(body, retries=Retries(limit=1, delay=delay)).create())
    assert (instance.status, instance.output, len(bodies)) == (S.COMPLETE, "done", 2)


def test_limit_of_retries_is_a_setting(settings: Any) -> None:
    """RET-09: DURABLEFLOW['LIMITS'] retries."""
    settings.DURABLEFLOW = {"LIMITS": {"retries": 3}}
    bodies: list[int] = []
    instance = drained(one_step(lambda: bodies.append(1), retries=4).create())
    assert (instance.status, bodies) == (S.ERRORED, [])
    assert instance.error is not None
    assert "'work-1'" in instance.error["message"] and "retries" in instance.error["message"]


@pytest.mark.parametrize(
    "wrong", [lambda context, error: "soon", lambda context, error: -1, lambda context, error: 1 / 0]
)
def test_delay_function_that_fails(wrong: Any) -> None:
    """RET-09: not retried for ever, and the original error is not lost."""
    bodies: list[int] = []
    instance = drained(one_step(failing(OSError("disk"), bodies), retries=Retries(limit=5, delay=wrong)).create())
    assert (instance.status, bodies) == (S.ERRORED, [1])
    assert instance.error is not None and "delay function" in instance.error["message"]
    shown = instance.steps.get().error
    assert shown is not None and "disk" in shown["traceback"]


def test_delay_function_sees_context_and_error(stopped_clock: StoppedClock) -> None:
    """Api: delay may be a function of (context, error)."""
    seen: list[Any] = []

    def delay(context: Any, error: BaseException) -> str:
        seen.append((context.name, context.attempt, str(error)))
        return "30 seconds"

    bodies: list[int] = []
    policy = Retries(limit=2, delay=delay, backoff="constant")
    instance = drained(one_step(failing(OSError("x"), bodies), retries=policy).create())
    stopped_clock.advance("29 seconds")
    assert (drained(instance).status, bodies) == (S.WAITING, [1])
    stopped_clock.advance("1 second")
    drained(instance)
    assert (bodies, seen) == ([1, 2], [("work", 1, "x"), ("work", 2, "x")])


def test_wake_of_the_longest_back_off_fits(stopped_clock: StoppedClock) -> None:
    """RET-10: the next run fits the date column at high attempt numbers, and is not above the cap."""
    bodies: list[int] = []
    cls = one_step(failing(OSError("x"), bodies), retries=Retries(limit=2000, delay=1, max_delay="1 hour", jitter=0.5))
    instance = drained(cls.create())
    instance.steps.update(attempts=1998)
    stopped_clock.advance("1 hour")
    assert drained(instance).status == S.WAITING
    assert instance.wake_at is not None
    assert timedelta() <= instance.wake_at - stopped_clock.now <= timedelta(hours=1)


def test_due_time_of_a_retry_is_stored(stopped_clock: StoppedClock) -> None:
    """RET-11: attempt 2 comes at minute 10, once, whatever wakes the instance before."""
    bodies: list[int] = []
    policy = Retries(limit=1, delay="10 minutes")
    instance = drained(one_step(failing(OSError("x"), bodies), retries=policy).create())
    due = instance.wake_at
    for _ in range(3):
        stopped_clock.advance("2 minutes")
        instance.send_event("unrelated")
        assert drained(instance).status == S.WAITING
        assert (instance.wake_at, bodies) == (due, [1])
    stopped_clock.advance("239 seconds")
    assert (drained(instance).status, bodies) == (S.WAITING, [1])
    stopped_clock.advance("1 second")
    assert (drained(instance).status, bodies) == (S.ERRORED, [1, 2])


def test_back_off_holds_no_worker(stopped_clock: StoppedClock) -> None:
    """RET-12: 20 instances wait in a back-off of an hour; a new one runs at once."""
    bodies: list[int] = []
    cls = one_step(failing(OSError("x"), bodies), retries=Retries(limit=1, delay="1 hour"))
    waiting = [cls.create() for _ in range(20)]
    drain(seconds=30)

    class New(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            return step.do("work", lambda: "done")

    new = New.create()
    assert drain(seconds=30) == 1
    new.refresh_from_db()
    assert new.status == S.COMPLETE
    for row in waiting:
        row.refresh_from_db()
        assert (row.status, row.lease_token, row.owner) == (S.WAITING, None, None)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_exceptions_outside_exception_are_failed_attempts(error: BaseException) -> None:
    """RET-13: counted and recorded like any other; the process keeps serving."""
    bodies: list[int] = []
    instance = drained(one_step(failing(error, bodies), retries=Retries(limit=1, delay=0)).create())
    assert (instance.status, bodies) == (S.ERRORED, [1, 2])
    assert [entry["error"]["type"] for entry in history_of(instance, "attempt_errored")] == [type(error).__name__] * 2
    record = instance.steps.get()
    assert record.error is not None and record.error["type"] == type(error).__name__

    class Next(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            return step.do("work", lambda: "served")

    assert drained(Next.create()).output == "served"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_exceptions_outside_exception_in_run_give_back(error: type[BaseException], stopped_clock: StoppedClock) -> None:
    """RET-13, design 6: outside of a body they mean a stop: queued again, nothing charged; ten times is enough."""

    class Exits(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            step.do("work", lambda: None)
            raise error

    instance = Exits.create()
    for count in range(1, 11):
        if error is GeneratorExit:
            drain(seconds=0)
        else:
            with pytest.raises(error):
                drain(seconds=0)
        instance.refresh_from_db()
        assert (instance.status, instance.lease_token, instance.interruptions) == (S.QUEUED, None, 0)
        assert instance.give_backs == count
        stopped_clock.advance("1 second")
    assert drained(instance).status == S.PAUSED
    assert "It was given back" in instance.blocked and "10 times in a row" in instance.blocked
    assert instance.steps.get().attempts == 1


def test_traceback_shows_the_failure_once() -> None:
    """The same text in the first execution as in a replay: where the body failed, then where run() met that."""
    instance = drained(one_step(failing(OSError("disk"), []), retries=0).create())
    assert instance.error is not None
    traceback = instance.error["traceback"]
    assert traceback.count("OSError: disk") == 2
    assert "During handling" not in traceback and "raised again in the workflow" in traceback


@dataclass
class Patience:
    """A delay function with settings of its own; like every dataclass that compares, it cannot be hashed."""

    seconds: float

    def __call__(self, context: Any, error: Any) -> float:
        return self.seconds


def test_a_delay_function_need_not_be_hashable(stopped_clock: StoppedClock) -> None:
    """RET-08: any callable may be a delay."""
    with pytest.raises(TypeError):
        hash(Patience(0))
    tries: list[int] = []

    def body() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")
        return len(tries)

    class PatientFlow(Workflow[None, int]):
        def run(self, event: WorkflowEvent[None], step: Step) -> int:
            return step.do("try", body, retries=Retries(limit=1, delay=Patience(0)))

    instance = drained(PatientFlow.create())
    assert (instance.status, instance.output) == (S.COMPLETE, 2)
