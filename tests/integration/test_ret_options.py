"""Options of a step: where they come from, and what a body sees of them."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from durableflow import Retries, Step, Workflow, WorkflowEvent, get_step_context
from durableflow.core.conf import get_settings
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.integration.ret_flows import failing, one_step
from tests.support.engine import drained, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


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
        "rollback": False,
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
