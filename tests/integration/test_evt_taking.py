"""The answer of an open wait is taken in two statements (PostgreSQL): what may happen between them (design 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.db import transaction

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.authoring.calls import event_call
from durableflow.engine import wait_taking, waits
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.journal import Record
from durableflow.engine.lease import Claim, Lease
from durableflow.engine.steps import load_journal
from durableflow.engine.unwind import LeaseLost
from durableflow.engine.wait_rows import Sent
from durableflow.engine.wait_taking import Found
from durableflow.models import PendingEvent, SentEvent, StepRecord, WorkflowInstance
from tests.integration.fence_flows import blocked
from tests.support.concurrency import Gate, Task, eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql_only]
CALL = event_call("note", "note", None, None)


class Taker(Workflow[Any, Any]):
    class Meta:
        name = "evt-taker"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.wait_for_event("note", type="note", timeout=None).payload


class Asker(Workflow[Any, Any]):
    class Meta:
        name = "evt-asker"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.wait_for_approval("ok", timeout=None).approved


class Claimed(NamedTuple):
    """An instance that was claimed for the events in its inbox."""

    lease: Lease
    claim: Claim
    record: Record
    events: list[SentEvent]

    def found(self, number: int) -> Found:
        """As if a read had found this event."""
        found = wait_taking.find(self.lease, self.claim, self.record)
        assert found is not None and found.sent.pk == self.events[0].pk
        event = self.events[number]
        return Found(found.step, found.pending, Sent(event.pk, "event", event.type, None, event.sent_at, ""))

    def take(self, found: Found) -> bool:
        return wait_taking.take(self.lease, self.claim, self.record, found, "null")


def claimed(count: int) -> Claimed:
    row = Taker.create()
    drain(30)
    events = [row.send_event("note", number) for number in range(count)]
    deliver("default")
    (taken,) = claim("default")
    (record,) = load_journal(taken.lease, 1)
    return Claimed(taken.lease, taken, record, events)


def overtaken(by: Callable[[], Any], late: Callable[[], Any]) -> Any:
    """What ``late`` returns, which waits for a transaction that does ``by`` and commits after ``late`` has begun."""
    gate = Gate()

    def first() -> None:
        with transaction.atomic():
            by()
            gate.stop_here()

    holder = Task(first)
    gate.wait_until_reached()
    second = Task(late)
    eventually(blocked, "the second at the lock")
    gate.open()
    holder.result()
    return second.result()


def test_a_wait_that_is_answered_meanwhile_takes_no_second_message() -> None:
    """Promise 1: a look whose COMMIT is still on its way is repeated, and finds another message."""
    it = claimed(2)
    second = it.found(1)
    assert overtaken(lambda: waits._attend(it.lease, it.claim, it.record, CALL), lambda: it.take(second)) is False
    assert [row.consumed_by != "" for row in SentEvent.objects.order_by("pk")] == [True, False]
    answer = waits.attend(it.lease, it.claim, it.record, CALL)
    assert answer.output is not None and '"payload":0' in answer.output


def test_a_message_that_is_consumed_meanwhile_answers_no_second_wait() -> None:
    """Promise 1: an event is never applied twice."""
    it = claimed(1)
    first = it.found(0)

    def consume() -> None:
        WorkflowInstance.objects.select_for_update().get()
        SentEvent.objects.update(consumed_by="/wait_for_event:other#1", consumed_run=1)

    assert overtaken(consume, lambda: it.take(first)) is False
    assert StepRecord.objects.get().status == "pending"
    assert SentEvent.objects.get().consumed_by == "/wait_for_event:other#1"


def test_a_wait_that_is_closed_meanwhile_takes_no_message() -> None:
    """Promise 1: whoever closed its pending event has told people so."""
    it = claimed(1)
    first = it.found(0)

    def close() -> None:
        WorkflowInstance.objects.select_for_update().get()
        PendingEvent.objects.update(status="timed_out")

    assert overtaken(close, lambda: it.take(first)) is False
    assert (StepRecord.objects.get().status, SentEvent.objects.get().consumed_by) == ("pending", "")


def test_a_message_of_an_earlier_run_answers_nothing() -> None:
    """Design 2: what could not move to this run, since its dedupe key is used here, stays with its own."""
    it = claimed(2)
    SentEvent.objects.filter(pk=it.events[0].pk).update(run_number=7)
    found = wait_taking.find(it.lease, it.claim, it.record)
    assert found is not None and found.sent.pk == it.events[1].pk
    SentEvent.objects.update(run_number=7)
    assert wait_taking.find(it.lease, it.claim, it.record) is None


def test_a_wait_that_is_settled_meanwhile_takes_no_decision() -> None:
    """Promise 1: a decision has closed its pending event itself, so the state of the record alone tells that the wait is
    over."""
    row = Asker.create()
    drain(30)
    row.pending_events.get().approve(by=None)
    deliver("default")
    (taken,) = claim("default")
    (record,) = load_journal(taken.lease, 1)
    found = wait_taking.find(taken.lease, taken, record)
    assert found is not None and found.sent.kind == "decision"

    def settle() -> None:
        WorkflowInstance.objects.select_for_update().get()
        StepRecord.objects.update(status="complete", raw_output='"settled"')

    assert overtaken(settle, lambda: wait_taking.take(taken.lease, taken, record, found, "null")) is False
    assert (StepRecord.objects.get().raw_output, SentEvent.objects.get().consumed_by) == ('"settled"', "")


def test_a_lost_lease_takes_nothing() -> None:
    """CON-02: the token alone fences, and it is looked at again when the row is locked."""
    it = claimed(1)
    first = it.found(0)
    with pytest.raises(LeaseLost):
        overtaken(lambda: WorkflowInstance.objects.update(lease_token=4711), lambda: it.take(first))
    assert (StepRecord.objects.get().status, SentEvent.objects.get().consumed_by) == ("pending", "")


def test_what_is_undelivered_is_left_to_the_closer_look() -> None:
    """Design 4: the history shows an event before it is consumed."""
    it = claimed(1)
    SentEvent.objects.update(delivered=False)
    assert wait_taking.find(it.lease, it.claim, it.record) is None
    assert waits.attend(it.lease, it.claim, it.record, CALL).settled


def test_it_is_two_statements(django_assert_num_queries: Any) -> None:
    """Design 4: one read, one fenced write."""
    it = claimed(1)
    with django_assert_num_queries(2):
        assert waits.attend(it.lease, it.claim, it.record, CALL).settled
    step, event = StepRecord.objects.get(), SentEvent.objects.get()
    pending = event.instance.pending_events.get()
    assert (step.status, step.token, step.wake_at) == ("complete", it.lease.token, None)
    assert (pending.status, pending.closed) == ("received", step.finished)
    assert (event.consumed_by, event.consumed_run) == (it.record.identity.text, 1)
    last = event.instance.history.order_by("-pk")[0]
    assert (last.type, last.data) == ("wait_completed", {"pending_event": pending.pk, "event": event.pk})
