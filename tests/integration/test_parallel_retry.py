"""``retry()`` of an instance that a gather or a map has ended: all that failed runs again, and nothing else (design 9)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from durableflow import Retries, Step, Workflow, WorkflowEvent
from durableflow.models import PendingEvent, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Broken:
    """Bodies that fail as long as they are named here, and how often each ran."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.ran: Counter[str] = Counter()

    def __call__(self, name: str) -> str:
        self.ran[name] += 1
        if name in self.names:
            raise ValueError(f"no {name}")
        return name.upper()


def test_all_failed_branches_of_a_group_run_again_and_only_they() -> None:
    body = Broken("a", "c")

    class Three(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            found = step.gather("three", *[self.branch(step, name) for name in "abc"])
            return [*found, step.do("after", body, "after")]

        def branch(self, step: Step, name: str) -> Any:
            return lambda: [step.do("first", body, f"{name}1"), step.do("work", body, name, retries=0)]

    instance = drained(Three.create())
    assert instance.status == S.ERRORED and instance.error is not None
    assert instance.error["type"] == "ExceptionGroup"
    message = instance.error["message"]
    assert "2 of 3 branches of 'three-1'" in message
    assert message.endswith("failed. The first: three-1[1]/work-1: ValueError: no a")
    assert dict(steps_of(instance))["three-1"] == "failed"
    body.names.discard("a")
    instance.retry()
    assert dict(steps_of(instance))["three-1"] == "pending"
    (entry,) = [data for data in history_of(instance, "workflow_queued") if data and data.get("verb") == "retry"]
    assert entry["steps"] == ["three-1[1]/work-1", "three-1[3]/work-1"]
    instance = drained(instance)
    assert instance.status == S.ERRORED and "1 of 3 branches" in str(instance.error)
    body.names.clear()
    instance.retry()
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, [["A1", "A"], ["B1", "B"], ["C1", "C"], "AFTER"])
    assert body.ran == {"a1": 1, "b1": 1, "c1": 1, "a": 2, "b": 1, "c": 3, "after": 1}
    assert set(dict(steps_of(instance)).values()) == {"complete"}


def test_failed_items_of_a_map_in_a_nested_group() -> None:
    body = Broken("2", "5")

    class Nested(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather(
                "outer",
                lambda: step.map("items", lambda item: body(str(item)), range(6), retries=0),
                lambda: step.do("other", body, "other"),
            )

    instance = drained(Nested.create())
    assert instance.status == S.ERRORED
    statuses = dict(steps_of(instance))
    assert statuses["outer-1"] == statuses["outer-1[1]/items-1"] == "failed"
    body.names.clear()
    instance.retry()
    statuses = dict(steps_of(instance))
    assert statuses["outer-1"] == statuses["outer-1[1]/items-1"] == "pending"
    instance = drained(instance)
    assert (instance.status, instance.output) == (S.COMPLETE, (["0", "1", "2", "3", "4", "5"], "OTHER"))
    assert body.ran == {"0": 1, "1": 1, "2": 2, "3": 1, "4": 1, "5": 2, "other": 1}


def test_a_group_whose_failure_was_caught_stays_as_it_is() -> None:
    body = Broken("a", "later")

    class Caught(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            try:
                step.gather("caught", lambda: step.do("a", body, "a", retries=0), lambda: step.do("b", body, "b"))
            except ExceptionGroup as group:
                return [str(error) for error in group.exceptions] + [step.do("later", body, "later", retries=0)]

    instance = drained(Caught.create())
    assert instance.status == S.ERRORED
    body.names.clear()
    instance.retry()
    assert dict(steps_of(instance))["caught-1"] == "failed"
    assert drained(instance).output == ["no a", "LATER"]
    assert body.ran == {"a": 1, "b": 1, "later": 2}


def test_a_wait_that_timed_out_in_a_branch_opens_anew(stopped_clock: StoppedClock) -> None:
    class Waits(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather(
                "two",
                lambda: step.wait_for_approval("ok", timeout="1 hour").approved,
                lambda: step.wait_for_event("other", type="other", timeout=None).payload,
            )

    instance = drained(Waits.create())
    instance.send_event("other", 7)
    stopped_clock.advance("1 hour")
    instance = drained(instance)
    assert instance.status == S.ERRORED and instance.error is not None
    instance.retry()
    instance = drained(instance)
    assert instance.status == S.WAITING
    PendingEvent.objects.get(status="open").approve(by=None)
    assert drained(instance).output == (True, 7)


def test_errors_as_values_and_groups_in_groups() -> None:
    """ENG-11: what fails inside comes as a group inside the group; asked for as values, nothing is raised."""
    body = Broken("x", "y")

    class Values(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            values = step.gather(
                "values",
                lambda: step.gather("inner", lambda: self.do(step, "x"), lambda: self.do(step, "ok")),
                lambda: self.do(step, "fine"),
                return_exceptions=True,
            )
            items = step.map("items", body, ["x", "ok"], return_exceptions=True, retries=0)
            step.sleep("nap", 0)
            inner = values[0]
            assert isinstance(inner, ExceptionGroup)
            try:
                step.gather("raises", lambda: step.map("more", body, ["y", "x"], retries=0), lambda: self.fails())
            except ExceptionGroup as group:
                nested, own = group.exceptions
                return [
                    [str(error) for error in inner.exceptions],
                    values[1],
                    [str(item) for item in items],
                    [str(error) for error in nested.exceptions],
                    str(own),
                ]

        def do(self, step: Step, name: str) -> str:
            return step.do("work", body, name, retries=0)

        def fails(self) -> None:
            raise LookupError("of the branch itself")

    instance = drained(Values.create())
    assert (instance.status, instance.output) == (
        S.COMPLETE,
        [["no x"], "FINE", ["no x", "OK"], ["no y", "no x"], "of the branch itself"],
    ), instance.error
    statuses = dict(steps_of(instance))
    assert (statuses["values-1"], statuses["values-1[1]/inner-1"], statuses["raises-1"]) == (
        "complete",
        "failed",
        "failed",
    )


def test_a_failing_branch_does_not_stop_the_others_retries(stopped_clock: StoppedClock) -> None:
    """ENG-11: all branches settle, also one that tries again much later; no record is left open after the end."""
    tries: list[int] = []

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.gather(
                "two",
                lambda: step.do("fails", lambda: 1 // 0, retries=0),
                lambda: step.do("flaky", self.flaky, retries=Retries(limit=3, delay=3600, backoff="constant")),
            )

        def flaky(self) -> str:
            tries.append(1)
            if len(tries) < 3:
                raise OSError("not yet")
            return "done"

    instance = drained(Two.create())
    for _ in range(2):
        assert instance.status == S.WAITING
        stopped_clock.advance("1 hour")
        instance = drained(instance)
    assert instance.status == S.ERRORED and len(tries) == 3
    assert dict(steps_of(instance)) == {
        "two-1": "failed",
        "two-1[1]/fails-1": "failed",
        "two-1[2]/flaky-1": "complete",
    }


def test_the_message_of_a_group_hides_what_a_sensitive_step_says() -> None:
    """SEC-09: the first failure is named, not told."""

    class Secret(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.gather("both", lambda: step.do("login", self.login, sensitive=True, retries=0), lambda: None)

        def login(self) -> None:
            raise ValueError("the password is s3cr3t")

    instance = drained(Secret.create())
    assert instance.status == S.ERRORED and "both-1[1]/login-1" in str(instance.error)
    assert "s3cr3t" not in str(instance.error)


def test_retry_opens_a_race_anew_that_was_open_at_the_end(stopped_clock: StoppedClock) -> None:
    """The instance took too long, nobody had won: it goes on as it was, and the first that comes wins."""

    class Late(Workflow):
        class Meta:
            max_duration = "1 hour"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            first = step.race(
                "first",
                a=lambda: step.sleep("a", "1 day"),
                b=lambda: step.wait_for_event("b", type="b", timeout=None).payload,
            )
            return [first.name, first.value]

    instance = drained(Late.create())
    assert instance.status == S.WAITING
    stopped_clock.advance("1 hour")
    instance = drained(instance)
    assert instance.status == S.ERRORED and {status for _, status in steps_of(instance)} == {"cancelled"}
    instance.retry()
    instance = drained(instance)
    assert instance.status == S.WAITING and {status for _, status in steps_of(instance)} == {"pending"}
    instance.send_event("b", 4)
    assert drained(instance).output == ["b", 4]
