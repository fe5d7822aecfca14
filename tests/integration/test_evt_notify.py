"""``notify``: telling somebody of a wait, once, durably (design 5)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from durableflow import EventTimeout, NonRetryableError, Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.engine import execution as execution_module
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.engine.unwind import LeaseLost
from durableflow.models import PendingEvent, StepRecord, WorkflowInstance
from tests.integration.conftest import StoppedClock

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


def flow(
    notify: Callable[[PendingEvent], object], *, kind: str = "approval", timeout: Any = 60
) -> type[Workflow[Any, Any]]:
    """Waits for an approval or an event, after telling somebody."""

    class NotifyFlow(Workflow[Any, Any]):
        class Meta:
            step_retries = Retries(limit=2, delay=10, backoff="constant")

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if kind == "approval":
                return step.wait_for_approval("ok", title="Ok?", timeout=timeout, notify=notify).approved
            return step.wait_for_event("ok", type="ok", timeout=timeout, notify=notify).payload

    return NotifyFlow


class Mails:
    """What was sent; the first ``failing`` calls raise."""

    def __init__(self, failing: int = 0) -> None:
        self.sent: list[int] = []
        self.failing = failing
        self.calls = 0

    def __call__(self, pending: PendingEvent) -> object:
        self.calls += 1
        if self.calls <= self.failing:
            raise OSError("no mail server")
        self.sent.append(pending.pk)
        return object()  # what it returns need not be storable


def state(row: WorkflowInstance) -> tuple[str, Any]:
    row.refresh_from_db()
    return row.status, row.output


def notify_record(row: WorkflowInstance) -> StepRecord:
    return row.steps.get(kind="notify")


@pytest.mark.parametrize("kind", ["approval", "event"])
def test_it_is_told_once_and_the_wait_is_there_before(kind: str) -> None:
    seen: list[tuple[str, bool]] = []

    def tell(pending: PendingEvent) -> None:
        fresh = PendingEvent.objects.get(pk=pending.pk)
        seen.append((fresh.status, fresh.deadline == pending.deadline))

    row = flow(tell, kind=kind).create()
    drain()
    WorkflowInstance.objects.update(wake_at=row.created)  # woken for nothing
    drain()
    assert seen == [("open", True)]
    assert notify_record(row).status == "complete"
    if kind == "approval":
        PendingEvent.objects.get().approve(by=None)
    else:
        row.send_event("ok", True)
    drain()
    assert state(row) == (Status.COMPLETE, True)
    assert len(seen) == 1


@pytest.mark.parametrize("timeout", [60, 0, None])
def test_it_is_skipped_when_the_answer_is_there(timeout: Any) -> None:
    mails = Mails()
    row = flow(mails, kind="event", timeout=timeout).create()
    row.send_event("ok", 5)
    drain()
    assert state(row) == (Status.COMPLETE, 5)
    assert mails.calls == 0 and not row.steps.filter(kind="notify").exists()


def test_it_is_retried_with_the_steps_retries(stopped_clock: StoppedClock) -> None:
    mails = Mails(failing=2)
    row = flow(mails).create()
    drain()
    record = notify_record(row)
    assert (record.name, record.count, record.status, record.attempts) == ("ok", 1, "pending", 1)
    assert PendingEvent.objects.open().count() == 1, "the wait is open while nobody could be told yet"
    for _ in range(2):
        stopped_clock.advance(10)
        drain()
    assert len(mails.sent) == 1 and notify_record(row).attempts == 3
    PendingEvent.objects.get().reject(by=None)
    drain()
    assert state(row) == (Status.COMPLETE, False)
    drain()
    assert mails.calls == 3


def test_an_answer_during_its_retry_delay_settles_the_wait(stopped_clock: StoppedClock) -> None:
    mails = Mails(failing=9)
    row = flow(mails).create()
    drain()
    PendingEvent.objects.get().approve(by=None)
    drain()
    assert state(row) == (Status.COMPLETE, True)
    assert notify_record(row).status == "cancelled"
    stopped_clock.advance("1 hour")
    assert drain() == 0 and mails.calls == 1


def test_the_deadline_counts_on_during_its_retry_delay(stopped_clock: StoppedClock) -> None:
    mails = Mails(failing=9)
    row = flow(mails, timeout=15).create()
    drain()
    stopped_clock.advance(10)
    drain()
    assert mails.calls == 2
    stopped_clock.advance(5)
    drain()
    assert state(row)[0] == Status.ERRORED and mails.calls == 2
    assert row.error is not None and row.error["type"].endswith("EventTimeout")
    assert notify_record(row).status == "cancelled"


def test_its_final_failure_cancels_the_wait_and_retry_opens_it_anew(stopped_clock: StoppedClock) -> None:
    """A wait that nobody heard of must not stay silent."""
    mails = Mails(failing=3)
    row = flow(mails).create()
    drain()
    for _ in range(2):
        stopped_clock.advance(10)
        drain()
    assert state(row)[0] == Status.ERRORED
    assert row.error is not None and (row.error["type"], row.error["step"]) == ("OSError", "ok-1")
    first = PendingEvent.objects.get()
    assert first.status == PendingEvent.Status.CANCELLED
    assert row.history.filter(type="wait_cancelled").count() == 1

    row.retry()
    assert row.history.get(type="workflow_queued", via="code", data__contains="retry").data["steps"] == ["ok-1"]
    drain()
    second = PendingEvent.objects.open().get()
    assert second.pk != first.pk and mails.sent == [second.pk]
    second.approve(by=None)
    drain()
    assert state(row) == (Status.COMPLETE, True)


def test_a_caught_failure_of_it_stays_caught(stopped_clock: StoppedClock) -> None:
    def tell(pending: PendingEvent) -> None:
        raise NonRetryableError("nobody is there")

    class CaughtFlow(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            try:
                step.wait_for_event("ok", type="ok", notify=tell)
            except NonRetryableError as error:
                step.sleep("on", 5)
                return str(error)

    row = CaughtFlow.create()
    drain()
    stopped_clock.advance(5)
    drain()
    assert state(row) == (Status.COMPLETE, "nobody is there")
    assert PendingEvent.objects.get().status == "cancelled"


def test_a_wait_that_times_out_and_is_retried_is_told_again(stopped_clock: StoppedClock) -> None:
    """The new pending event is another one: the link in the first mail is stale."""
    mails = Mails()
    row = flow(mails).create()
    drain()
    stopped_clock.advance(60)
    drain()
    assert state(row)[0] == Status.ERRORED
    row.retry()
    drain()
    first, second = PendingEvent.objects.order_by("id")
    assert (first.status, second.status) == ("timed_out", "open")
    assert mails.sent == [first.pk, second.pk]


def test_a_wait_that_max_duration_cut_off_is_told_again_after_retry(stopped_clock: StoppedClock) -> None:
    mails = Mails(failing=1)

    class LimitedFlow(Workflow[Any, Any]):
        class Meta:
            max_duration = 30
            step_retries = Retries(limit=2, delay=100)

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.wait_for_event("ok", type="ok", notify=mails).payload

    row = LimitedFlow.create()
    drain()
    stopped_clock.advance(30)
    drain()
    assert state(row)[0] == Status.ERRORED and notify_record(row).status == "cancelled"
    row.retry()
    drain()
    pending = PendingEvent.objects.open().get()
    assert mails.sent == [pending.pk]


def test_an_answer_that_came_during_the_last_attempt_counts() -> None:
    """What was accepted is never lost: neither a decision nor an event."""
    for kind in ("approval", "event"):
        own: list[WorkflowInstance] = []

        def tell(pending: PendingEvent, kind: str = kind, own: list[WorkflowInstance] = own) -> None:
            if kind == "approval":
                PendingEvent.objects.get(pk=pending.pk).approve(by=None)
            else:
                own[0].send_event("ok", True)
            raise NonRetryableError("and then the mail server failed")

        row = flow(tell, kind=kind).create()
        own.append(row)
        drain()
        assert state(row) == (Status.COMPLETE, True), kind
        assert row.pending_events.get().status == "received"


def test_a_worker_lost_between_its_failure_and_the_cancelling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next execution cancels the wait: it must not stay open with nobody told."""

    def tell(pending: PendingEvent) -> None:
        raise NonRetryableError("no")

    row = flow(tell).create()

    def die(*args: Any) -> None:
        raise LeaseLost("gone")

    monkeypatch.setattr(execution_module, "cancel_wait", die)
    deliver("default")
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    assert notify_record(row).status == "failed" and PendingEvent.objects.get().status == "open"
    monkeypatch.undo()
    WorkflowInstance.objects.update(wake_at=row.created, suspect=True)
    drain()
    assert state(row)[0] == Status.ERRORED
    assert PendingEvent.objects.get().status == "cancelled"


def test_a_worker_lost_at_a_wait_that_was_told_of_costs_no_attempt() -> None:
    """Nothing was in a body then: neither the notify nor the next step is charged with a lost attempt."""

    class NextFlow(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.wait_for_event("ok", type="ok", notify=mails)
            return step.do("next", lambda: "done")

    mails = Mails()
    row = NextFlow.create()
    drain()
    WorkflowInstance.objects.update(wake_at=row.created)
    claim("default")  # and this worker is never heard of again
    row.send_event("ok")
    WorkflowInstance.objects.update(wake_at=row.created, suspect=True)
    drain()
    assert state(row) == (Status.COMPLETE, "done") and mails.calls == 1
    assert not row.history.filter(type="attempt_lost").exists()
    assert row.steps.get(name="next").attempts == 1


def test_a_database_error_while_it_is_prepared_is_no_failure_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4: infrastructure errors never count as attempts, and cancel nothing."""
    mails = Mails()
    row = flow(mails).create()
    get, failed = PendingEvent.objects.__class__.get_queryset, []

    def failing(self: Any) -> Any:
        if row.pending_events.model is PendingEvent and StepRecord.objects.filter(kind="wait_for_approval").exists():
            if not failed:
                failed.append(True)
                raise OperationalError("server closed the connection unexpectedly")
        return get(self)

    monkeypatch.setattr(PendingEvent.objects.__class__, "get_queryset", failing)
    drain()
    monkeypatch.undo()
    assert failed and mails.calls == 1
    assert PendingEvent.objects.get().status == "open"


def test_event_timeout_zero_with_notify_tells_nobody() -> None:
    """The wait is over before anybody could be told."""
    mails = Mails()

    class AskFlow(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            try:
                step.wait_for_event("ok", type="ok", timeout=0, notify=mails)
            except EventTimeout:
                return "nothing"

    row = AskFlow.create()
    began = time.monotonic()
    drain()
    assert state(row) == (Status.COMPLETE, "nothing") and mails.calls == 0
    assert time.monotonic() - began < 30
