"""Rollback: what is undone, in which order, with what each handler gets (design 7; LIF-15 to LIF-19, reference 8 and G)."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from durableflow import (
    InvalidTransition,
    NonRetryableError,
    Retries,
    Rollback,
    Step,
    Undo,
    Workflow,
    WorkflowEvent,
    get_step_context,
)
from durableflow.models import StepRecord, WorkflowInstance
from durableflow.testing import Harness
from durableflow.timeline import history, steps
from tests.integration.eng_flows import workflow
from tests.support.engine import history_of, types_of

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


class Undone:
    """What the handlers of a test have been given, in the order in which they ran."""

    def __init__(self) -> None:
        self.calls: list[Undo[Any]] = []
        self.fails: dict[str, list[BaseException]] = {}

    def __call__(self, undo: Undo[Any]) -> None:
        self.calls.append(undo)
        errors = self.fails.get(undo.context.name)
        if errors:
            raise errors.pop(0)

    @property
    def names(self) -> list[str]:
        return [undo.context.name for undo in self.calls]


@pytest.fixture
def undone() -> Undone:
    return Undone()


def boom() -> None:
    raise NonRetryableError("no money")


def test_scenario_g(workflows: Harness, undone: Undone) -> None:
    """Reference G: release is called once with output and error; errored, and the outcome is complete."""

    def run(step: Step, log: list[str]) -> None:
        handler = Rollback(undone, retries=Retries(limit=3, delay=10, backoff="linear"), timeout="2 minutes")
        step.do("reserve inventory", lambda: {"reservationId": 7}, rollback=handler)
        step.do("charge card", boom)

    row = workflows.run(workflow(run, []))
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
    assert row.error is not None and row.error["step"] == "charge card-1" and row.error["message"] == "no money"
    (undo,) = undone.calls
    assert (undo.completed, undo.output) == (True, {"reservationId": 7})
    assert isinstance(undo.error, NonRetryableError) and str(undo.error) == "no money"
    assert types_of(row)[-4:] == [
        "rollback_started",
        "rollback_step_completed",
        "rollback_completed",
        "workflow_errored",
    ]
    shown = history(row)
    assert [view.type for view in shown][-4:] == types_of(row)[-4:] and shown[-3].data["attempt"] == 1
    (view, failed) = steps(row)
    assert view.rollback is not None and (view.rollback.status, view.rollback.attempts) == ("complete", 1)
    assert failed.rollback is None and (view.attempts, len(view.tries)) == (1, 1), "its own tries are not the handler's"


def three(undone: Undone) -> Any:
    def run(step: Step, log: list[str]) -> None:
        for name in "abc":
            step.do(name, lambda name=name: name.upper(), rollback=Rollback(undone, retries=Retries(limit=2, delay=10)))
        step.do("d", boom)

    return workflow(run, [])


def test_in_reverse_order_of_start(workflows: Harness, undone: Undone) -> None:
    """Reference G: three steps, order 3, 2, 1; steps without a handler are skipped."""
    row = workflows.run(three(undone))
    assert [(undo.context.name, undo.output) for undo in undone.calls] == [("c", "C"), ("b", "B"), ("a", "A")]
    assert row.rollback == {"outcome": "complete", "failed": []}


def test_a_failed_step_is_undone_too(workflows: Harness, undone: Undone) -> None:
    """Reference G, LIF-15: a started step may have had an effect; its output is None, its attempt the one it reached."""

    def run(step: Step, log: list[str]) -> None:
        step.do("book", boom_later, retries=Retries(limit=1, delay=5), rollback=undone)

    def boom_later() -> None:
        seen.append(get_step_context().idempotency_key)
        raise OSError("closed")

    seen: list[str] = []
    row = workflows.run(workflow(run, []))
    workflows.advance(5)
    (undo,) = undone.calls
    assert (undo.completed, undo.output, type(undo.error)) == (False, None, OSError)
    assert (undo.context.attempt, undo.context.idempotency_key) == (2, seen[0]) and seen[0] == seen[1]
    assert row.status == S.ERRORED


def test_the_context_of_the_handler(workflows: Harness) -> None:
    """api.md: ``get_step_context()`` gives a handler what ``undo.context`` is; the deadline is its own."""
    seen: list[Any] = []

    def handler(undo: Undo[str]) -> None:
        seen.append((undo.context is get_step_context(), undo.context))

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", timeout=500, rollback=Rollback(handler, timeout=30))
        step.do("b", boom)

    row = workflows.run(workflow(run, []))
    ((same, context),) = seen
    assert same and (context.name, context.count, context.attempt) == ("a", 1, 1)
    assert (context.workflow, context.instance_id, context.run_number) == (row.workflow, row.instance_id, 1)
    assert context.config["timeout"] == 500.0 and context.config["rollback"] is True
    assert row.finished is not None and (context.deadline - row.finished).total_seconds() == 30


def test_a_failing_handler_does_not_stop_the_rest(workflows: Harness, undone: Undone) -> None:
    """LIF-16, design 7: b's handler has three attempts, is recorded as failed, and a is undone all the same."""
    undone.fails["b"] = [OSError(f"no {number}") for number in range(9)]
    row = workflows.run(three(undone))
    assert (row.status, undone.names) == (S.ROLLING_BACK, ["c", "b"]), "a retry delay holds no worker"
    assert row.lease_token is None and row.wake_at is not None
    workflows.advance(10)
    workflows.advance(20)
    assert undone.names == ["c", "b", "b", "b", "a"]
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "failed", "failed": ["b-1"]})
    assert row.error is not None and row.error["message"] == "no money", "the run's own error stays"
    steps = {step.name: step for step in row.steps.filter(kind="do")}
    assert [steps[name].rollback_status for name in "abcd"] == ["complete", "failed", "complete", ""]
    assert (steps["b"].rollback_attempts, steps["b"].rollback_error["message"]) == (3, "no 2")
    told = history_of(row, "rollback_attempt_errored")
    assert [(data["attempt"], data["error"]["message"]) for data in told] == [(1, "no 0"), (2, "no 1"), (3, "no 2")]
    assert [data.get("retry_delay") for data in told] == [10.0, 20.0, None]
    assert types_of(row)[-2:] == ["rollback_errored", "workflow_errored"]


def test_retry_runs_only_failed_handlers(workflows: Harness, undone: Undone) -> None:
    """LIF-16, design 7: an operator retries; budget anew, numbers go on, what was undone is not undone twice."""
    undone.fails["b"] = [OSError("no") for _ in range(4)]
    row = workflows.run(three(undone))
    workflows.advance("1 minute")
    assert row.rollback == {"outcome": "failed", "failed": ["b-1"]}
    row.retry()
    assert (row.status, row.rollback, row.finished) == (S.ROLLING_BACK, None, None)
    assert history_of(row, "rollback_started")[-1] == {"verb": "retry", "steps": ["b-1"]}
    workflows.run_due()
    assert row.status == S.ROLLING_BACK, "its fourth attempt fails, and is not the last"
    workflows.advance(10)
    assert undone.names == ["c", "b", "b", "b", "a", "b", "b"]
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
    step = row.steps.get(name="b")
    assert (step.rollback_status, step.rollback_attempts) == ("complete", 5)


def test_what_is_undone_cannot_be_retried(workflows: Harness, undone: Undone, superuser: Any) -> None:
    """Design 7: nothing is left to go on from; the message names the cure, and no button offers it."""
    row = workflows.run(three(undone))
    assert "retry" not in row.available_actions(superuser)
    with pytest.raises(InvalidTransition, match=r"has been undone.*start a new instance"):
        row.retry()
    undone.fails["b"] = [NonRetryableError("no")]
    row = workflows.run(three(undone))
    assert "retry" in row.available_actions(superuser)


def test_non_retryable_stops_the_retries_of_a_handler(workflows: Harness, undone: Undone) -> None:
    """Reference 8."""
    undone.fails["b"] = [NonRetryableError("never")]
    row = workflows.run(three(undone))
    assert undone.names == ["c", "b", "a"]
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "failed", "failed": ["b-1"]})


def test_no_rollback_where_the_error_was_caught(workflows: Harness, undone: Undone) -> None:
    """LIF-19, first run: complete, no rollback, no leftover."""

    def run(step: Step, log: list[str]) -> str:
        step.do("a", lambda: "A", rollback=undone)
        try:
            step.do("b", boom, rollback=undone)
        except NonRetryableError:
            return "fine"
        return "never"

    row = workflows.run(workflow(run, []))
    assert (row.status, row.output, row.error, row.rollback) == (S.COMPLETE, "fine", None, None)
    assert undone.calls == [] and "rollback_started" not in types_of(row)


def test_rollback_where_it_was_raised_again(workflows: Harness, undone: Undone) -> None:
    """LIF-19, second run: the handler sees the error that the workflow raised in the end."""

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=undone)
        try:
            step.do("b", boom, rollback=undone)
        except NonRetryableError as error:
            raise LookupError("gave up") from error

    row = workflows.run(workflow(run, []))
    assert row.status == S.ERRORED and undone.names == ["b", "a"]
    assert all(type(undo.error) is LookupError for undo in undone.calls)
    assert isinstance(undone.calls[0].error.__cause__, NonRetryableError)


def test_without_a_handler_it_ends_at_once(workflows: Harness) -> None:
    """Design 7: nothing to undo, no rollback: ``instance.rollback`` stays None, and ``retry()`` goes forward."""

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A")
        step.do("b", boom)

    row = workflows.run(workflow(run, []))
    assert (row.status, row.rollback) == (S.ERRORED, None)
    assert "rollback_started" not in types_of(row)
    row.retry()
    assert row.status == S.QUEUED


def test_a_step_that_never_started_is_not_undone(workflows: Harness, undone: Undone) -> None:
    def run(step: Step, log: list[str]) -> None:
        step.do("a", boom)
        step.do("b", lambda: None, rollback=undone)

    row = workflows.run(workflow(run, []))
    assert (row.status, row.rollback, undone.calls) == (S.ERRORED, None, [])


def test_after_max_duration(workflows: Harness, undone: Undone) -> None:
    """Design 5: a WorkflowTimeout is rolled back like any error; the rollback itself takes as long as it takes."""

    class Slow(Workflow[Any, Any]):
        class Meta:
            max_duration = "1 hour"

        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.do("a", lambda: "A", rollback=Rollback(undone, retries=Retries(limit=1, delay="2 hours")))
            step.wait_for_event("never", type="x", timeout=None)

    undone.fails["a"] = [OSError("no")]
    row = workflows.run(Slow)
    (wait,) = row.pending_events.all()
    workflows.advance("1 hour")
    assert row.status == S.ROLLING_BACK and undone.names == ["a"]
    wait.refresh_from_db()
    assert wait.status == "cancelled", "nobody can answer any more"
    workflows.advance("1 hour")
    assert undone.names == ["a"]
    workflows.advance("1 hour")
    assert undone.names == ["a", "a"] and type(undone.calls[0].error).__name__ == "WorkflowTimeout"
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
    assert [step.status for step in row.steps.order_by("seq")] == ["complete", "cancelled"]


def test_a_durable_call_in_a_handler_is_refused(workflows: Harness, undone: Undone) -> None:
    """Reference 8: refused as in a body, whether it is caught or not; the rest go on."""

    def run(step: Step, log: list[str]) -> None:
        def calls(undo: Undo[Any]) -> None:
            step.do("inside", lambda: log.append("inside"))

        def catches(undo: Undo[Any]) -> None:
            try:
                step.sleep("inside", 5)
            except Exception:
                log.append("caught")

        step.do("a", lambda: "A", rollback=undone)
        step.do("b", lambda: "B", rollback=calls)
        step.do("c", lambda: "C", rollback=catches)
        step.do("d", lambda: "D", rollback=undone)
        step.do("e", boom)

    log: list[str] = []
    row = workflows.run(workflow(run, log))
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "failed", "failed": ["c-1", "b-1"]})
    assert (log, undone.names) == (["caught"], ["d", "a"])
    error = row.steps.get(name="b").rollback_error
    assert "inside the rollback handler of step 'b-1'" in error["message"]
    assert not row.steps.filter(name="inside").exists()


def test_a_mock_of_a_step_is_none_of_its_handler(workflows: Harness, undone: Undone) -> None:
    workflows.mock_result("a", "mocked")
    workflows.mock_error("d", NonRetryableError("mocked"))
    row = workflows.run(three(undone))
    assert row.status == S.ERRORED and [undo.output for undo in undone.calls] == ["C", "B", "mocked"]


def test_a_sensitive_step_is_undone_in_secret(workflows: Harness, undone: Undone) -> None:
    """SEC-09: the handler gets the value, and what it says of it is not stored."""

    def handler(undo: Undo[str]) -> None:
        undone(undo)
        raise NonRetryableError(f"cannot revoke {undo.output}")

    def run(step: Step, log: list[str]) -> None:
        step.do("token", lambda: "s3cr3t-value", sensitive=True, rollback=handler)
        step.do("b", boom)

    row = workflows.run(workflow(run, []))
    assert undone.calls[0].output == "s3cr3t-value"
    stored = [row.steps.get(name="token").rollback_error, *history_of(row, "rollback_step_errored")]
    assert len(stored) == 2 and "s3cr3t" not in str(stored)


def test_the_options_of_a_handler_are_inherited(workflows: Harness, undone: Undone) -> None:
    """Reference 8: without options of its own it has Meta's, as a step has; the step's own are not the handler's."""

    class Inherits(Workflow[Any, Any]):
        class Meta:
            step_retries = Retries(limit=1, delay=7)

        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.do("a", lambda: "A", retries=5, rollback=undone)
            step.do("b", boom)

    undone.fails["a"] = [OSError("no") for _ in range(9)]
    row = workflows.run(Inherits)
    workflows.advance(7)
    assert undone.names == ["a", "a"] and row.rollback == {"outcome": "failed", "failed": ["a-1"]}
    (first, _second) = history_of(row, "rollback_attempt_errored")
    assert first["retry_delay"] == 7.0


def test_a_handler_that_could_never_run_is_refused_before_the_body(workflows: Harness, settings: Any) -> None:
    """RET-09: what is wrong with the handler's options is heard of before there is something to undo."""
    settings.DURABLEFLOW = {"LIMITS": {"retries": 10}}

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: log.append("a"), rollback=Rollback(lambda undo: None, retries=11))

    log: list[str] = []
    row = workflows.run(workflow(run, log))
    assert (row.status, log, row.rollback) == (S.ERRORED, [], None)
    assert row.error is not None and "rollback: retries: limit 11 is above" in row.error["message"]


def test_an_atomic_step_is_undone(workflows: Harness, undone: Undone) -> None:
    """A step with a handler has a start mark before its body, an atomic one too."""
    marks: list[str] = []

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: marks.append(StepRecord.objects.get(name="a").status), atomic=True, rollback=undone)
        step.do("b", boom)

    workflows.run(workflow(run, []))
    assert (marks, undone.names) == (["started"], ["a"])


def test_a_handler_may_return_anything_and_leave_nothing_open(workflows: Harness, undone: Undone) -> None:
    """What it returns need not be storable; a transaction that it leaves open is refused as in a body, and rolled back."""

    def leaves(undo: Undo[Any]) -> None:
        undone(undo)
        transaction.atomic().__enter__()
        Group.objects.create(name="left open")

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=lambda undo: (undone(undo), object()))
        step.do("b", lambda: "B", rollback=leaves)
        step.do("c", boom)

    row = workflows.run(workflow(run, []))
    assert (undone.names, row.rollback) == (["b", "a"], {"outcome": "failed", "failed": ["b-1"]})
    assert "open" in row.steps.get(name="b").rollback_error["message"]
    assert not Group.objects.exists()
