"""Replay: finished steps answer from the journal, whatever their value; a changed program is found out."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import NonRetryableError, Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.models import HistoryEntry, StepRecord, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of, noted, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Refused(NonRetryableError):
    """Says no."""


class Broken(Exception):
    """Says something with two words."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


EMPTY: list[Any] = [None, False, 0, "", [], {}]


def test_empty_values_are_checkpoints(stopped_clock: StoppedClock) -> None:
    """ENG-01: presence of a finished row decides, never the value; a value comes back as what it was."""
    bodies: list[int] = []
    seen: list[Any] = []

    class Empty(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            values = []
            for number, value in enumerate(EMPTY):

                def body(number: int = number, value: Any = value) -> Any:
                    bodies.append(number)
                    return value

                values.append(step.do(f"empty {number}", body))
                step.sleep("nap", "1 minute")
            seen.append(values)
            return values

    instance = Empty.create()
    for _ in EMPTY:
        assert drained(instance).status == S.WAITING
        stopped_clock.advance("1 minute")
    assert drained(instance).status == S.COMPLETE
    assert bodies == [0, 1, 2, 3, 4, 5]
    assert [repr(value) for value in instance.output] == [repr(value) for value in EMPTY]
    assert [repr(value) for value in seen[-1]] == [repr(value) for value in EMPTY]
    records = instance.steps.filter(kind="do").order_by("seq")
    assert [record.status for record in records] == ["complete"] * 6
    assert [record.attempts for record in records] == [1] * 6


def test_run_that_returns_nothing_is_complete() -> None:
    """ENG-01: also the instance itself ends with None as its output."""

    class Nothing(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("one", lambda: None)

    instance = drained(Nothing.create())
    assert (instance.status, instance.output) == (S.COMPLETE, None)
    assert instance.result(timeout=0) is None


# ENG-02 -------------------------------------------------------------------------------------------------------------


def test_except_exception_does_not_catch_the_suspension(stopped_clock: StoppedClock) -> None:
    """ENG-02: the wait is not skipped, before or after the wake."""
    bodies: list[str] = []

    class Catching(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            try:
                step.sleep("nap", "1 hour")
            except Exception:
                step.do("fallback", lambda: bodies.append("fallback"))
            return "slept"

    instance = drained(Catching.create())
    assert (instance.status, bodies) == (S.WAITING, [])
    stopped_clock.advance("59 minutes")
    assert drained(instance).status == S.WAITING
    stopped_clock.advance("1 minute")
    assert (drained(instance).status, instance.output, bodies) == (S.COMPLETE, "slept", [])


def test_bare_except_is_found_out_and_repairable(stopped_clock: StoppedClock) -> None:
    """ENG-02: the next durable call is refused, the instance is blocked by a named programming error; resume tries again."""
    bodies: list[str] = []
    code = {"bare": True}

    class Bare(Workflow):
        class Meta:
            name = "bare"

        def run(self, event: WorkflowEvent, step: Step) -> str:
            try:
                step.sleep("nap", "1 hour")
            except BaseException:
                if not code["bare"]:
                    raise
                step.is_replaying  # noqa: B018  no durable call, no refusal
            step.do("after", lambda: bodies.append("after"))
            return "done"

    instance = drained(Bare.create())
    assert (instance.status, bodies) == (S.PAUSED, [])
    assert instance.blocked.startswith("SuspensionSwallowed: bare/")
    assert "suspended at nap-1" in instance.blocked and "do 'after'" in instance.blocked
    assert (instance.lease_token, instance.wake_at, instance.error) == (None, None, None)
    assert steps_of(instance) == [("nap-1", "pending")]

    stopped_clock.advance("1 hour")
    assert drained(instance).status == S.PAUSED  # a blocked instance does not wake by itself
    code["bare"] = False
    instance.resume()
    assert drained(instance).status == S.WAITING  # its clock stood still: the hour is still to come
    stopped_clock.advance("1 hour")
    assert (drained(instance).status, instance.output, bodies) == (S.COMPLETE, "done", ["after"])


# ENG-05 -------------------------------------------------------------------------------------------------------------


def test_same_name_in_a_loop(stopped_clock: StoppedClock) -> None:
    """ENG-05: name plus occurrence is the identity."""
    bodies: list[int] = []

    def charge(number: int) -> int:
        bodies.append(number)
        return number * 10

    class Loop(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> list[int]:
            out = []
            for i in range(3):
                out.append(step.do("charge", charge, i))
            step.sleep("nap", 60)
            return out

    instance = drained(Loop.create())
    stopped_clock.advance(60)
    assert (drained(instance).status, instance.output, bodies) == (S.COMPLETE, [0, 10, 20], [0, 1, 2])
    assert steps_of(instance)[:3] == [("charge-1", "complete"), ("charge-2", "complete"), ("charge-3", "complete")]


# ENG-08 -------------------------------------------------------------------------------------------------------------


def test_unrecorded_randomness_stops_with_one_extra_row(stopped_clock: StoppedClock) -> None:
    """ENG-08: no endless growth; the replay that does not meet its step is stopped."""
    numbers = iter(range(100))

    class Random(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            for _ in range(3):
                step.do(f"job-{next(numbers)}", lambda: None)
                step.sleep("nap", 1)

    instance = drained(Random.create())
    for _ in range(5):
        stopped_clock.advance(1)
        drained(instance)
    assert instance.status == S.PAUSED
    assert instance.blocked.startswith("NonDeterminismError") and "job-0" in instance.blocked
    assert instance.steps.filter(kind="do").count() <= 2


def test_offered_helpers_are_stable(stopped_clock: StoppedClock) -> None:
    """ENG-08: now, uuid4 and random give the same at each replay, and differ between instances and between calls."""
    seen: list[Any] = []

    class Helpers(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            values = [step.now(), step.uuid4(), step.uuid4(), step.random.random(), step.random.random()]
            step.sleep("nap", 60)
            values += [step.now(), step.uuid4(), step.random.random()]
            seen.append(values)
            return values

    first, second = Helpers.create(), Helpers.create()
    drain()
    stopped_clock.advance(60)
    drain()
    first.refresh_from_db()
    second.refresh_from_db()
    assert first.status == S.COMPLETE
    assert len(seen) == 2
    assert (first.output[5] - first.output[0]).total_seconds() == 60
    stable = first.output[1:5] + first.output[6:]
    assert len(set(map(str, stable))) == len(stable)
    assert not set(map(str, stable)) & set(map(str, second.output[1:5] + second.output[6:]))
    assert first.output[0].utcoffset() is not None
    assert first.steps.filter(kind="now").count() == 2


def test_helpers_before_a_wait_are_equal_in_both_executions(stopped_clock: StoppedClock) -> None:
    """ENG-08: what the first execution saw is what the second sees."""
    seen: list[Any] = []

    class Twice(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            seen.append((step.now(), step.uuid4(), step.random.randint(0, 10**9), step.random.choice("abcdefgh")))
            step.sleep("nap", 60)

    instance = drained(Twice.create())
    stopped_clock.advance(60)
    assert drained(instance).status == S.COMPLETE
    assert len(seen) == 2 and seen[0] == seen[1]


# ENG-09 -------------------------------------------------------------------------------------------------------------


def test_caught_failures_stay_caught(stopped_clock: StoppedClock) -> None:
    """ENG-09: a failure is a checkpoint; each replay raises the same type and message again, the body does not run."""
    bodies: list[str] = []
    seen: list[Any] = []

    def refuse() -> None:
        bodies.append("risky")
        raise Refused("card declined")

    def fail() -> None:
        bodies.append("flaky")
        raise Broken("disk", "full")

    class Caught(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            errors: list[Any] = []
            try:
                step.do("risky", refuse)
            except Refused as error:
                errors.append((type(error), str(error), error.args))
            try:
                step.do("flaky", fail, retries=Retries(limit=1, delay=0))
            except Broken as error:
                errors.append((type(error), str(error), error.what, error.why))
            seen.append(errors)
            step.sleep("nap", 5)
            return step.do("next", lambda: noted(bodies, "next", "went on"))

    instance = drained(Caught.create())
    assert instance.status == S.WAITING
    stopped_clock.advance(5)
    assert (drained(instance).status, instance.output, instance.error) == (S.COMPLETE, "went on", None)
    assert bodies == ["risky", "flaky", "flaky", "next"]
    assert (
        seen[0] == seen[-1] == [(Refused, "card declined", ("card declined",)), (Broken, "disk: full", "disk", "full")]
    )
    assert dict(steps_of(instance))["flaky-1"] == "failed"


# ENG-14 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["complete", "errored", "terminated"])
def test_stale_delivery_to_an_ended_instance_changes_nothing(ending: str) -> None:
    """ENG-14: an executor with an old claim writes nothing, three times over."""

    class Ends(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            step.do("work", lambda: None)
            if ending == "errored":
                raise Broken("it", "failed")
            return "done"

    instance = Ends.create()
    (stale,) = claim("default")
    execute(stale)
    if ending == "terminated":
        instance = Ends.create()
        (stale,) = claim("default")
        instance.terminate()
    instance.refresh_from_db()
    assert instance.status == ending

    def snapshot() -> Any:
        rows = WorkflowInstance.objects.values(), StepRecord.objects.values(), HistoryEntry.objects.values()
        return [list(row.order_by("pk")) for row in rows]

    before = snapshot()
    for _ in range(3):
        execute(stale)
        assert drain(seconds=0) == 0
    assert snapshot() == before


# Order of history -----------------------------------------------------------------------------------------------------


def test_history_of_a_plain_run(stopped_clock: StoppedClock) -> None:
    """Design 2: a step that succeeds at once writes one entry; ids rise in order."""

    class Plain(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("one", lambda: None)
            step.sleep("nap", 60)

    instance = drained(Plain.create())
    stopped_clock.advance(60)
    drained(instance)
    assert types_of(instance) == [
        "workflow_queued",
        "workflow_started",
        "step_completed",
        "sleep_started",
        "sleep_completed",
        "workflow_completed",
    ]
    (entry,) = history_of(instance, "step_completed")
    assert entry["attempt"] == 1 and entry["started"] is not None
