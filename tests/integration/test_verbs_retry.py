"""``retry`` and ``resume`` (LIF-10, design 9)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from durableflow import EventTimeout, InvalidTransition, Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from tests.conftest import UserFactory
from tests.integration.conftest import StoppedClock

Status = WorkflowInstance.Status


class Repair:
    """What has run, and what fails until somebody repairs it."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int, str]] = []
        self.broken = {"b"}

    def body(self, name: str) -> Callable[[], str]:
        def run() -> str:
            context = get_step_context()
            self.ran.append((name, context.attempt, context.idempotency_key))
            if name in self.broken:
                raise OSError(f"{name} is broken")
            return name

        return run

    def count(self, name: str) -> int:
        return len([entry for entry in self.ran if entry[0] == name])


@pytest.fixture
def repair() -> Repair:
    return Repair()


def abc(repair: Repair, limit: int = 1) -> type[Workflow[Any, Any]]:
    class Abc(Workflow[Any, Any]):
        class Meta:
            step_retries = Retries(limit=limit, delay=10)

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return [step.do(name, repair.body(name)) for name in "abc"]

    return Abc


@pytest.mark.django_db
def test_only_the_failed_step_runs_again(workflows: Harness, user_factory: UserFactory, repair: Repair) -> None:
    """LIF-10: A may be a payment. B gets a fresh budget, its old attempts stay visible, C follows; who pressed is logged."""
    operator: User = user_factory("operator", permissions=["durableflow.operate_workflowinstance"])
    row = workflows.run(abc(repair))
    workflows.advance(10)
    assert row.status == Status.ERRORED and (repair.count("a"), repair.count("b")) == (1, 2)
    row.retry(by=operator, reason="disk was full", via="admin")
    assert (row.status, row.error, row.finished, row.run_number) == (Status.QUEUED, None, None, 1)
    entry = row.history.filter(type="workflow_queued").latest("id")
    assert (entry.actor, entry.reason, entry.via) == (operator, "disk was full", "admin")
    assert entry.data == {"verb": "retry", "steps": ["b-1"]}
    workflows.run_due()
    assert row.status == Status.WAITING, "a fresh budget: the third attempt is not the last"
    repair.broken.clear()
    workflows.advance(10)
    assert (row.status, row.output) == (Status.COMPLETE, ["a", "b", "c"])
    assert repair.count("a") == 1
    assert [(number, key) for name, number, key in repair.ran if name == "b"] == [
        (number, repair.ran[1][2]) for number in (1, 2, 3, 4)
    ], "numbers go on rising, the key stays"
    assert row.history.filter(type="attempt_errored").count() == 3


@pytest.mark.django_db
def test_errors_that_were_caught_stay_caught(workflows: Harness, repair: Repair) -> None:
    class Caught(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            try:
                step.do("b", repair.body("b"), retries=0)
            except OSError:
                pass
            step.do("d", repair.body("d"), retries=0)

    repair.broken.add("d")
    row = workflows.run(Caught)
    repair.broken.clear()
    row.retry()
    workflows.run_due()
    assert row.status == Status.COMPLETE
    assert (repair.count("b"), repair.count("d")) == (1, 2)


@pytest.mark.django_db
def test_an_error_of_run_itself_just_goes_on(workflows: Harness, repair: Repair) -> None:
    """Design 9: with no failed record the run goes on from where it is."""
    broken = [True]

    class Own(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            value = step.do("a", repair.body("a"))
            if broken:
                raise KeyError("a bug of the workflow")
            return value

    row = workflows.run(Own)
    assert row.status == Status.ERRORED
    broken.clear()
    row.retry()
    workflows.run_due()
    assert (row.status, row.output, repair.count("a")) == (Status.COMPLETE, "a", 1)


@pytest.mark.django_db
@pytest.mark.parametrize("how", ["cause", "context", "group"])
def test_the_failed_step_is_found_behind_the_error(workflows: Harness, repair: Repair, how: str) -> None:
    """Design 9: through its cause or context; all the failed ones of a group."""
    repair.broken.add("d")

    class Wrapped(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            errors: list[Exception] = []
            for name in "bd":
                try:
                    step.do(name, repair.body(name), retries=0)
                except OSError as error:
                    if how == "cause" and name == "d":
                        raise LookupError("wrapped") from error
                    if how == "context" and name == "d":
                        raise LookupError("wrapped")  # noqa: B904
                    errors.append(error)
            if errors:
                raise ExceptionGroup("both", errors)
            return "out"

    row = workflows.run(Wrapped)
    assert row.status == Status.ERRORED
    repair.broken.clear()
    row.retry()
    workflows.run_due()
    assert repair.count("d") == 2 and repair.count("b") == (2 if how == "group" else 1)
    # A caught error stays caught, and this run() raises it in the end.
    assert row.status == (Status.COMPLETE if how == "group" else Status.ERRORED)


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["event", "approval"])
def test_a_timed_out_wait_opens_anew(workflows: Harness, kind: str) -> None:
    """Design 9: with a new deadline and a new pending event; the old one stays timed out."""

    class Timed(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if kind == "event":
                return step.wait_for_event("ok", type="ok", timeout=60).payload
            return step.wait_for_approval("ok", title="Ok?", timeout=60).approved

    row = workflows.run(Timed)
    first = workflows.pending(row)
    workflows.advance("1 hour")
    assert row.status == Status.ERRORED and row.error is not None and row.error["step"] == "ok-1"
    row.retry()
    workflows.run_due()
    second = workflows.pending(row)
    assert second.pk != first.pk and first.status == "timed_out"
    assert second.deadline == second.opened + timedelta(seconds=60) and second.opened == first.deadline + timedelta(
        seconds=3540
    )
    if kind == "event":
        row.send_event("ok", True)
        workflows.run_due()
    else:
        workflows.approve(row)
    assert (row.status, row.output) == (Status.COMPLETE, True)


@pytest.mark.django_db
def test_max_duration_starts_again(workflows: Harness, repair: Repair) -> None:
    """Design 5 and 9: the end by WorkflowTimeout leaves no failed step; what it cancelled goes on."""

    class Limited(Workflow[Any, Any]):
        class Meta:
            max_duration = "1 hour"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.do("a", repair.body("a"))
            step.wait_for_event("ok", type="ok", timeout=None)
            return "out"

    row = workflows.run(Limited)
    workflows.advance("2 hours")
    assert row.status == Status.ERRORED and row.error is not None
    assert row.error["type"].endswith("WorkflowTimeout")
    assert row.pending_events.get().status == "cancelled"
    row.retry()
    workflows.run_due()
    assert row.status == Status.WAITING and repair.count("a") == 1
    assert row.deadline_at is not None and row.wake_at == row.deadline_at
    row.send_event("ok")
    workflows.run_due()
    assert (row.status, row.output) == (Status.COMPLETE, "out")


@pytest.mark.django_db
def test_a_decision_that_max_duration_overtook_counts_after_retry(workflows: Harness) -> None:
    """Promise 1: an accepted decision is never lost."""

    class Limited(Workflow[Any, Any]):
        class Meta:
            max_duration = "1 hour"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.wait_for_approval("ok", title="Ok?", timeout=None).comment

    row = workflows.run(Limited)
    pending = workflows.pending(row)
    WorkflowInstance.objects.filter(pk=row.pk).update(deadline_at=row.created)
    pending.approve(by=None, comment="yes")
    workflows.run_due()
    assert row.status == Status.ERRORED and pending.status == "received"
    row.retry()
    workflows.run_due()
    assert (row.status, row.output) == (Status.COMPLETE, "yes")


@pytest.mark.django_db
def test_steps_after_the_failed_one_are_kept_but_need_not_come_again(workflows: Harness, repair: Repair) -> None:
    """Design 9: records started after a reset one are exempt from the end check."""

    class Branch(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            error: Exception | None = None
            try:
                step.do("b", repair.body("b"), retries=0)
            except OSError as failed:
                error = failed
                step.do("clean up", repair.body("clean up"))
            if error is not None:
                raise error
            return step.do("c", repair.body("c"))

    row = workflows.run(Branch)
    assert row.status == Status.ERRORED
    repair.broken.clear()
    row.retry()
    workflows.run_due()
    assert (row.status, row.output) == (Status.COMPLETE, "c")
    assert repair.count("clean up") == 1


@pytest.mark.django_db(transaction=True)
def test_retry_opens_the_wait_that_ended_the_run_and_no_other(stopped_clock: StoppedClock) -> None:
    """A time-out that was caught stays one, although an event for it came since."""

    class Timed(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            try:
                return step.wait_for_event("ok", type="ok", timeout=60).payload
            except EventTimeout:
                step.wait_for_event("other", type="other", timeout=60)

    row = Timed.create()
    drain()
    stopped_clock.advance(61)
    row.send_event("ok", "late")
    drain()
    stopped_clock.advance(61)
    drain()
    row.refresh_from_db()
    assert row.status == Status.ERRORED and row.error is not None and row.error["step"] == "other-1"
    row.retry()
    row.send_event("other")
    drain()
    row.refresh_from_db()
    assert row.status == Status.COMPLETE and row.sent_events.get(type="ok").consumed_by == ""


@pytest.mark.django_db
def test_resume_tries_a_blocked_instance_again(workflows: Harness, repair: Repair) -> None:
    """Design 6: nothing is lost, nothing that finished runs again; blocked again if the cause is still there."""
    extra: list[int] = [1]

    class Changed(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if extra:
                step.do("a", repair.body("a"))
            step.wait_for_event("x", type="x")
            return step.do("c", repair.body("c"))

    row = workflows.run(Changed)
    extra.clear()
    row.send_event("x")
    workflows.run_due()
    assert row.status == Status.PAUSED and "NonDeterminismError" in row.blocked and row.paused_at is not None
    assert row.wake_at is None and row.lease_token is None
    row.resume()
    workflows.run_due()
    assert row.status == Status.PAUSED, "the cause is still there"
    extra.append(1)
    row.resume(reason="old code is back")
    assert (row.blocked, row.paused_at) == ("", None)
    workflows.run_due()
    assert (row.status, row.output, repair.count("a")) == (Status.COMPLETE, "c", 1)
    with pytest.raises(InvalidTransition):
        row.resume()


@pytest.mark.django_db
def test_the_clock_of_a_blocked_instance_stands_still(workflows: Harness, repair: Repair) -> None:
    """Design 6, "Pause": resume() gives what was left of ``max_duration``, of deadlines and of retry delays."""
    removed: list[int] = []

    class Slow(Workflow[Any, Any]):
        class Meta:
            max_duration = "3 hours"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if not removed:
                step.do("a", repair.body("a"))
            return step.wait_for_event("x", type="x", timeout="2 hours").type

    row = workflows.run(Slow)
    pending, deadline = workflows.pending(row), row.deadline_at
    assert pending.deadline is not None and deadline is not None
    ends = pending.deadline
    workflows.advance("1 hour")
    removed.append(1)
    row.send_event("y")  # no answer, but a reason to look
    workflows.run_due()
    assert row.status == Status.PAUSED
    workflows.advance("2 days")
    removed.clear()
    row.resume()
    workflows.run_due()
    paused = timedelta(days=2)
    assert (row.status, row.deadline_at, pending.deadline) == (Status.WAITING, deadline + paused, ends + paused)
    assert row.wake_at == pending.deadline == row.steps.get(kind="wait_for_event").wake_at
    workflows.advance("59 minutes")
    row.send_event("x")
    workflows.run_due()
    assert (row.status, row.output) == (Status.COMPLETE, "x")


@pytest.mark.django_db
def test_an_event_for_a_blocked_instance_waits_for_resume(workflows: Harness) -> None:
    """People do not see the block: what they send is kept, and executed no sooner."""

    class Ask(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.wait_for_approval("ok", title="Ok?").comment

    row = workflows.run(Ask)
    pending = workflows.pending(row)
    WorkflowInstance.objects.filter(pk=row.pk).update(status="paused", blocked="x", wake_at=None)
    pending.approve(by=None, comment="kept")
    workflows.run_due()
    row.refresh_from_db()
    assert row.status == Status.PAUSED and row.history.filter(type="decided").count() == 1
    row.resume()
    workflows.run_due()
    assert (row.status, row.output) == (Status.COMPLETE, "kept")
