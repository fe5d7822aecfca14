"""Attempts: how many, when, and what they leave behind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from durableflow import NonRetryableError, Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.core.conf import get_settings
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Declined(NonRetryableError):
    """The bank says no."""


class Frozen(Exception):
    """Refuses to be changed, as an exception that is a frozen dataclass does."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot assign to field {name!r}")


def one_step(body: Any, **options: Any) -> type[Workflow]:
    """A workflow of one step."""

    class OneStep(Workflow):
        class Meta:
            name = "one-step"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.do("work", body, **options)

    return OneStep


def failing(error: BaseException, bodies: list[int]) -> Any:
    def body() -> None:
        bodies.append(get_step_context().attempt)
        raise error

    return body


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


BAD_RETRIES: list[tuple[dict[str, Any], str]] = [
    ({"limit": -1}, "limit"),
    ({"limit": 1.5}, "limit"),
    ({"limit": True}, "limit"),
    ({"delay": "5 parsecs"}, "delay"),
    ({"delay": -1}, "delay"),
    ({"backoff": "cubic"}, "backoff"),
    ({"jitter": 2}, "jitter"),
    ({"give_up_on": "ValueError"}, "give_up_on"),
]


@pytest.mark.parametrize(("options", "field"), BAD_RETRIES)
def test_bad_policy_is_refused_before_anything_runs(options: dict[str, Any], field: str) -> None:
    """RET-09: a policy that is no good is refused where it is written."""
    with pytest.raises(ValueError, match=field):
        Retries(**options)


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"retries": -1}, "retries"),
    ({"retries": True}, "retries"),
    ({"retries": 1.5}, "retries"),
    ({"retries": "3"}, "retries"),
    ({"retries": 10_001}, "retries"),
    ({"timeout": "-1 s"}, "timeout"),
    ({"timeout": math.nan}, "timeout"),
    ({"timeout": math.inf}, "timeout"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": True}, "timeout"),
    ({"timeout": ""}, "timeout"),
    ({"sensitive": "yes"}, "sensitive"),
    ({"atomic": 1}, "atomic"),
]


@pytest.mark.parametrize(("options", "field"), BAD_OPTIONS)
def test_bad_option_names_step_and_field(options: dict[str, Any], field: str) -> None:
    """RET-09: a config error that names step and field, before the body runs, not retried."""
    bodies: list[int] = []
    instance = drained(one_step(lambda: bodies.append(1), **options).create())
    assert (instance.status, bodies, steps_of(instance)) == (S.ERRORED, [], [])
    assert instance.error is not None and instance.error["type"].endswith("InvalidConfig")
    assert "'work'" in instance.error["message"] and field in instance.error["message"]


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
    assert "given back 10 times" in instance.blocked
    assert instance.steps.get().attempts == 1


# Options --------------------------------------------------------------------------------------------------------------


def test_first_execution_settles_the_options(stopped_clock: StoppedClock) -> None:
    """Design 5: the resolved config is stored at the first execution and wins over what the code says later."""
    bodies: list[int] = []
    body = failing(OSError("x"), bodies)
    instance = drained(one_step(body, retries=Retries(limit=2, delay=60, backoff="constant"), timeout=30).create())
    config = instance.steps.get().config
    assert config == {
        "retries": {
            "limit": 2,
            "delay": 60,
            "backoff": "constant",
            "max_delay": None,
            "jitter": None,
            "give_up_on": None,
        },
        "timeout": 30.0,
        "sensitive": False,
        "atomic": False,
    }
    one_step(body, retries=9, timeout=5)
    for _ in range(5):
        stopped_clock.advance(60)
        drained(instance)
    assert (instance.status, bodies) == (S.ERRORED, [1, 2, 3])


def test_options_are_inherited(settings: Any) -> None:
    """Design 5: the step's own over Meta's over the setting's, field by field."""
    settings.DURABLEFLOW = {"STEP_RETRIES": Retries(limit=7, delay=3), "STEP_TIMEOUT": 40}
    seen: list[Any] = []

    class Inherits(Workflow):
        class Meta:
            step_retries = Retries(delay=4, backoff="linear")
            step_timeout = "50 seconds"

        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("a", lambda: seen.append(get_step_context().config))
            step.do("b", lambda: seen.append(get_step_context().config), retries=2, timeout=5)

    assert drained(Inherits.create()).status == S.COMPLETE
    first, second = seen
    assert (first["retries"]["limit"], first["retries"]["delay"], first["retries"]["backoff"]) == (7, 4, "linear")
    assert (second["retries"]["limit"], second["retries"]["delay"], second["retries"]["backoff"]) == (2, 4, "linear")
    assert (first["timeout"], second["timeout"]) == (50.0, 5.0)
    assert get_settings().STEP_RETRIES.backoff == "exponential"


def test_step_context(stopped_clock: StoppedClock) -> None:
    """Api: what a body can know; changing the config has no effect; RuntimeError outside a body."""
    seen: list[Any] = []

    def body() -> None:
        context = get_step_context()
        context.config["timeout"] = 1  # type: ignore[index]
        seen.append(context)
        if context.attempt == 1:
            raise OSError("once")

    class Context(Workflow):
        class Meta:
            name = "context"

        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("same", body, retries=Retries(limit=1, delay=0), timeout=30)
            step.do("same", lambda: seen.append(get_step_context()))
            with pytest.raises(RuntimeError):
                get_step_context()

    instance = drained(Context.create(instance_id="i-1"))
    assert instance.status == S.COMPLETE
    first, again, second = seen
    assert (first.name, first.count, first.attempt) == ("same", 1, 1)
    assert (first.workflow, first.instance_id, first.run_number) == ("context", "i-1", 1)
    assert first.deadline == stopped_clock.now + timedelta(seconds=30)
    assert (again.attempt, again.idempotency_key) == (2, first.idempotency_key)
    assert (second.count, second.attempt) == (2, 1) and second.idempotency_key != first.idempotency_key
    assert len(first.idempotency_key) == 32
    assert instance.steps.order_by("seq")[0].config["timeout"] == 30.0
    other = Context.create()
    drained(other)
    assert seen[3].idempotency_key != first.idempotency_key


def test_retry_after_a_takeover_within_the_delay(stopped_clock: StoppedClock) -> None:
    """RET-11, CON-06: a worker that died after it had recorded the attempt is not charged a second one."""
    from durableflow.engine import endings
    from durableflow.engine.claims import claim
    from durableflow.engine.executor import execute
    from durableflow.engine.unwind import ProcessDied

    bodies: list[int] = []
    cls = one_step(failing(OSError("x"), bodies), retries=Retries(limit=1, delay="10 minutes"))
    instance = cls.create()
    (taken,) = claim("default")
    with pytest.MonkeyPatch.context() as patch:

        def die(*args: Any, **kwargs: Any) -> None:
            raise ProcessDied

        patch.setattr(endings, "suspend", die)
        with pytest.raises(ProcessDied):
            execute(taken, renew=False)
    instance.refresh_from_db()
    assert (instance.status, bodies) == (S.RUNNING, [1])
    stopped_clock.outlast_leases()
    assert (drained(instance).status, bodies) == (S.WAITING, [1])
    stopped_clock.advance("10 minutes")
    assert (drained(instance).status, bodies) == (S.ERRORED, [1, 2])
    assert "attempt_lost" not in types_of(instance)


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
