"""Timeouts of whole instances and of waits (design 5, max_duration)."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from durableflow import (
    EventTimeout,
    InvalidTransition,
    Retries,
    Step,
    Workflow,
    WorkflowEvent,
)
from durableflow.models import PendingEvent, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, noted, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# max_duration ---------------------------------------------------------------------------------------------------------


def test_max_duration_ends_a_waiting_instance(stopped_clock: StoppedClock) -> None:
    """Design 5: by its own wake; WorkflowTimeout is not raised into run; open waits are cancelled."""
    log: list[str] = []

    class Slow(Workflow):
        class Meta:
            name = "slow"
            max_duration = "1 hour"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.do("first", lambda: log.append("first"))
            try:
                return step.wait_for_event("answer", type="answer", timeout="1 day").payload
            except BaseException as error:
                log.append(type(error).__name__)
                raise

    instance = drained(Slow.create())
    assert instance.deadline_at == stopped_clock.now + timedelta(hours=1)
    assert instance.wake_at == instance.deadline_at
    log.clear()
    stopped_clock.advance("1 hour")
    assert drained(instance).status == S.ERRORED
    assert log == []  # run was not called again
    assert instance.error is not None
    assert instance.error["type"] == "durableflow.WorkflowTimeout"
    assert "slow/" in instance.error["message"] and "max_duration" in instance.error["message"]
    assert PendingEvent.objects.get().status == PendingEvent.Status.CANCELLED
    assert steps_of(instance) == [("first-1", "complete"), ("answer-1", "cancelled")]
    assert instance.wake_at is None
    with pytest.raises(InvalidTransition):
        instance.send_event("answer", "late")

    # retry(): the whole duration again, the wait opens anew, what finished stays
    stopped_clock.advance("5 minutes")
    instance.retry()
    assert instance.deadline_at == stopped_clock.now + timedelta(hours=1)
    assert (drained(instance).status, instance.error) == (S.WAITING, None)
    opened = PendingEvent.objects.get(status=PendingEvent.Status.OPEN)
    assert opened.deadline == stopped_clock.now + timedelta(days=1)
    instance.send_event("answer", "in time")
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "in time")
    assert "first" not in log


def test_max_duration_is_looked_at_before_each_durable_call(stopped_clock: StoppedClock) -> None:
    """Design 5: a body in flight ends and is stored; the next call does not come; run is not told."""
    log: list[str] = []

    class Slow(Workflow):
        class Meta:
            max_duration = 60

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.do("long", lambda: noted(log, "long", str(stopped_clock.advance(61))))
            try:
                step.do("next", lambda: log.append("next"))
            except Exception as error:
                log.append(type(error).__name__)

    instance = drained(Slow.create())
    assert (instance.status, log) == (S.ERRORED, ["long"])
    assert instance.error is not None and instance.error["type"].endswith("WorkflowTimeout")
    assert steps_of(instance) == [("long-1", "complete")]


def test_max_duration_that_is_swallowed_ends_the_instance_all_the_same(stopped_clock: StoppedClock) -> None:
    """Design 5: run cannot prevent its end."""

    class Slow(Workflow):
        class Meta:
            max_duration = 60

        def run(self, event: WorkflowEvent, step: Step) -> str:
            step.do("long", lambda: str(stopped_clock.advance(61)))
            with suppress(BaseException):
                step.do("next", lambda: 1)
            return "swallowed"

    instance = drained(Slow.create())
    assert (instance.status, instance.output) == (S.ERRORED, None)
    assert instance.error is not None and instance.error["type"].endswith("WorkflowTimeout")


def test_max_duration_counts_from_the_first_due_moment(stopped_clock: StoppedClock) -> None:
    """Design 5: a start in the future has the whole duration."""

    class Later(Workflow):
        class Meta:
            max_duration = "1 hour"

        def run(self, event: WorkflowEvent, step: Step) -> str:
            step.sleep("nap", "59 minutes")
            return "done"

    instance = Later.create(start_at="1 day")
    assert instance.deadline_at == stopped_clock.now + timedelta(days=1, hours=1)
    assert drained(instance).status == S.QUEUED
    stopped_clock.advance("1 day")
    drained(instance)
    stopped_clock.advance("59 minutes")
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "done")


def test_back_off_ends_with_max_duration(stopped_clock: StoppedClock) -> None:
    """Design 5: a further bound of every wake."""

    class Retrying(Workflow):
        class Meta:
            max_duration = "1 hour"

        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("fails", lambda: 1 / 0, retries=Retries(limit=1, delay="1 day"))

    instance = drained(Retrying.create())
    assert (instance.status, instance.wake_at) == (S.WAITING, instance.deadline_at)
    stopped_clock.advance("1 hour")
    assert drained(instance).status == S.ERRORED
    assert steps_of(instance) == [("fails-1", "cancelled")]
    instance.retry()
    assert drained(instance).status == S.WAITING  # its back-off still counts


def test_event_timeout_is_raised_into_run(stopped_clock: StoppedClock) -> None:
    """Design 5: unlike max_duration, a wait's own timeout is the program's business."""

    class Waits(Workflow):
        class Meta:
            max_duration = "1 day"

        def run(self, event: WorkflowEvent, step: Step) -> str:
            try:
                step.wait_for_event("answer", type="answer", timeout="1 hour")
            except EventTimeout:
                return "no answer"
            return "answer"

    instance = drained(Waits.create())
    stopped_clock.advance("1 hour")
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "no answer")


@pytest.mark.parametrize("key", ["max_duration", "step_timeout"])
@pytest.mark.parametrize("value", [0, -1, "1h", "", "11 years", float("nan"), True])
def test_bad_durations_of_meta(key: str, value: Any) -> None:
    """RET-09: refused at import, with class and key."""
    with pytest.raises(TypeError, match=key):
        type("Bad", (Workflow,), {"run": lambda *args: None, "Meta": type("Meta", (), {key: value})})
