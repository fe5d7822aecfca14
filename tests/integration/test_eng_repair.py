"""Which failed steps ``retry()`` runs again: those that ended the run, not those that were caught."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Service:
    """Bodies that fail while they are told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.down: set[str] = set()

    def __call__(self, name: str) -> str:
        self.calls.append(name)
        if name in self.down:
            raise ConnectionError(f"{name} is down")
        return name


def started(run: Any) -> WorkflowInstance:
    cls: Any = type("Repair", (Workflow,), {"run": run, "__module__": __name__})
    return drained(cls.create())


def test_a_failure_in_a_handler_does_not_repeat_what_was_caught() -> None:
    """LIF-10, design 9: the charge was caught; only the refund ended the run. A payment is not made twice."""
    service = Service()
    service.down = {"charge", "refund"}

    def run(self: Any, event: WorkflowEvent, step: Step) -> str:
        try:
            return step.do("charge", service, "charge", retries=0)
        except ConnectionError:
            return step.do("refund", service, "refund", retries=0)

    instance = started(run)
    assert instance.status == S.ERRORED
    assert instance.error is not None and instance.error["step"] == "refund-1"
    service.down = set()
    instance.retry()
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "refund")
    assert service.calls == ["charge", "refund", "refund"]


def test_a_wrapped_failure_is_found_by_its_cause() -> None:
    """Design 9: the error that left run has the step's as its cause, or as its context."""
    for how in ("cause", "context", "none"):
        service = Service()
        service.down = {"charge"}

        def run(self: Any, event: WorkflowEvent, step: Step, how: str = how, service: Service = service) -> str:
            try:
                return step.do("charge", service, "charge", retries=0)
            except ConnectionError as error:
                if how == "cause":
                    raise RuntimeError("wrapped") from error
                if how == "none":
                    raise RuntimeError("wrapped") from None
                raise RuntimeError("wrapped")  # noqa: B904

        instance = started(run)
        assert instance.status == S.ERRORED
        assert instance.error is not None
        assert (instance.error["type"], instance.error["step"]) == ("RuntimeError", "charge-1")
        service.down = set()
        instance.retry()
        assert (drained(instance).status, instance.output) == (S.COMPLETE, "charge"), how
        assert service.calls == ["charge", "charge"]


def test_a_group_of_failures_is_retried_as_a_whole() -> None:
    """Design 9: all failed branches of a group."""
    service = Service()
    service.down = {"a", "b", "caught"}

    def run(self: Any, event: WorkflowEvent, step: Step) -> list[str]:
        values, errors = [], []
        try:
            step.do("caught", service, "caught", retries=0)
        except ConnectionError:
            pass
        for name in ("a", "b", "c"):
            try:
                values.append(step.do(name, service, name, retries=0))
            except ConnectionError as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup("several", errors)
        return values

    instance = started(run)
    assert instance.status == S.ERRORED
    service.down = set()
    service.calls.clear()
    instance.retry()
    assert (drained(instance).status, instance.output) == (S.COMPLETE, ["a", "b", "c"])
    assert service.calls == ["a", "b"]  # c had succeeded, the caught one stays caught


def test_an_error_of_run_itself_just_goes_on() -> None:
    """Design 9: with no failed record the run just goes on, nothing finished runs again."""
    service = Service()
    code = {"wrong": True}

    def run(self: Any, event: WorkflowEvent, step: Step) -> str:
        value = step.do("a", service, "a")
        if code["wrong"]:
            raise KeyError("typo")
        return value

    instance = started(run)
    assert (instance.status, steps_of(instance)) == (S.ERRORED, [("a-1", "complete")])
    code["wrong"] = False
    instance.retry()
    assert (drained(instance).status, instance.output, service.calls) == (S.COMPLETE, "a", ["a"])


def test_retry_gives_a_new_budget_and_rising_numbers(stopped_clock: StoppedClock) -> None:
    """LIF-10, design 9: attempts go on rising, the budget starts anew, keys are kept; later records are exempt."""
    from durableflow import Retries, get_step_context

    seen: list[tuple[int, str]] = []
    code = {"down": True}

    def body() -> str:
        context = get_step_context()
        seen.append((context.attempt, context.idempotency_key))
        if code["down"]:
            raise ConnectionError("down")
        return "up"

    def run(self: Any, event: WorkflowEvent, step: Step) -> Any:
        try:
            return step.do("b", body, retries=Retries(limit=1, delay=0))
        except ConnectionError:
            step.do("told", lambda: None)
            raise

    instance = started(run)
    assert (instance.status, [number for number, _ in seen]) == (S.ERRORED, [1, 2])
    instance.retry()
    assert drained(instance).status == S.ERRORED
    assert [number for number, _ in seen] == [1, 2, 3, 4]
    code["down"] = False
    instance.retry()
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "up")
    assert [number for number, _ in seen] == [1, 2, 3, 4, 5]
    assert len({key for _, key in seen}) == 1
    record = instance.steps.get(name="b")
    assert (record.attempts, record.status, record.error) == (5, "complete", None)
