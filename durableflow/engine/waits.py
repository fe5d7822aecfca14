"""Waits: opening them, matching the inbox, timing out, cancelling; each one fenced transaction (design 4, 5, 8)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections

from durableflow.authoring.calls import ApprovalCall, Default, WaitCall
from durableflow.core import clock, codec, failures
from durableflow.core.answers import Event
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import EventTimeout
from durableflow.core.fields import Unreadable
from durableflow.core.statuses import PendingStatus, SentKind, StepKind, StepStatus, Via
from durableflow.engine.delivery import deliver_own
from durableflow.engine.fence import Fence, fenced
from durableflow.engine.journal import Record
from durableflow.engine.lease import Claim, Lease
from durableflow.engine.patience import patient
from durableflow.engine.people import People, look_up_people
from durableflow.engine.sql import INSTANCE, run
from durableflow.models import HistoryEntry, PendingEvent, SentEvent, StepRecord

LOCKED_AGAIN: Final = timedelta(seconds=1)  # until the next look at a wait that somebody is deciding right now


class UnreadableAnswer(Exception):
    """What was sent cannot be decoded: the instance is blocked, as with any unreadable journal (design 6)."""


@dataclass(frozen=True)
class Answer:
    """What a look at a wait gave: a settled ``output`` or ``error`` (texts), or neither, and then when to look
    again."""

    pending_event: int
    output: str | None = None
    error: str | None = None
    wake_at: datetime | None = None

    @property
    def settled(self) -> bool:
        """Whether the wait is over."""
        return self.output is not None or self.error is not None


@patient
def attend(lease: Lease, claim: Claim, record: Record, call: WaitCall) -> Answer:
    """Open the wait where it is not open yet, and match the inbox to it (cases EVT-01, EVT-03, EVT-04).

    The record and the PendingEvent are written first and the deadline counts from here; past it the wait times out.
    Raises InvalidConfig, CodecError for a context that cannot be stored, UnreadableAnswer.
    """
    with fenced(lease) as fence:
        pending = _latest(lease, claim, record)
        if pending is not None and pending.status != PendingStatus.OPEN:
            # A look whose COMMIT was answered by a lost connection is repeated: it must not take a second message.
            settled = _own(lease, claim, record, pending)
            if settled is not None:
                return settled
        if pending is None or pending.status in (PendingStatus.CANCELLED, PendingStatus.TIMED_OUT):
            pending = _open(lease, claim, record, call, fence)
        return _look(lease, claim, record, pending, fence)


def _latest(lease: Lease, claim: Claim, record: Record) -> PendingEvent | None:
    identity = record.identity
    return (
        PendingEvent.objects.using(lease.using)
        .filter(instance=lease.pk, run_number=claim.run_number, step__scope=identity.scope)
        .filter(kind=identity.kind, name=identity.name, count=identity.count)
        .order_by("-id")
        .first()
    )


def _open(lease: Lease, claim: Claim, record: Record, call: WaitCall, fence: Fence) -> PendingEvent:
    people = look_up_people(lease, claim, call) if isinstance(call, ApprovalCall) else None
    timeout = get_settings().event_timeout if isinstance(call.timeout, Default) else call.timeout
    deadline = None if timeout is None else fence.now + timeout
    step = _save_record(lease, claim, record, fence, deadline)
    pending = _open_pending(lease, claim, record, call, people, step, fence, deadline)
    data: dict[str, Any] = {"pending_event": pending.pk, "types": list(call.types), "deadline": deadline}
    _history(lease, claim, record, "wait_started", data, fence)
    return pending


def _own(lease: Lease, claim: Claim, record: Record, pending: PendingEvent) -> Answer | None:
    """What this very lease has already settled, or None."""
    step = _step(lease, claim, record)
    if step.token != lease.token or step.status not in (StepStatus.COMPLETE, StepStatus.FAILED):
        return None
    if step.status == StepStatus.COMPLETE:
        return Answer(pending.pk, output=codec.dumps(step.raw_output))
    return Answer(pending.pk, error=codec.dumps(step.error_data))


@patient
def load_pending(lease: Lease, pk: int) -> PendingEvent:
    """The pending event that ``notify`` gets."""
    pending: PendingEvent = PendingEvent.objects.using(lease.using).get(pk=pk)
    return pending


@patient
def cancel_wait(lease: Lease, claim: Claim, record: Record, pk: int, error: str) -> Answer:
    """``notify`` has finally failed: a wait that nobody heard of must not stay silent (design 5).

    An answer that was accepted all the same still counts. While somebody decides at this moment, the result is not
    settled and says when to look again.
    """
    with fenced(lease) as fence:
        pending = PendingEvent.objects.using(lease.using).get(pk=pk)
        settled = None if pending.status == PendingStatus.OPEN else _own(lease, claim, record, pending)
        if settled is not None:
            return settled
        deliver_own(lease.using, lease.pk)
        sent = _match(lease, claim, pending)
        if sent is not None:
            return _consume(lease, claim, record, pending, sent, fence)
        if not _close_open(lease, pending, PendingStatus.CANCELLED, fence):
            return Answer(pending.pk, wake_at=fence.now + LOCKED_AGAIN)
        _settle(lease, claim, record, StepStatus.FAILED, fence, error=error)
        _history(lease, claim, record, "wait_cancelled", {"error": failures.public(codec.loads(error))}, fence)
        return Answer(pending.pk, error=error)


def _look(lease: Lease, claim: Claim, record: Record, pending: PendingEvent, fence: Fence) -> Answer:
    deliver_own(lease.using, lease.pk)
    sent = _match(lease, claim, pending)
    if sent is not None:
        return _consume(lease, claim, record, pending, sent, fence)
    if pending.deadline is None or pending.deadline > fence.now:
        return Answer(pending.pk, wake_at=pending.deadline)
    if not _close_open(lease, pending, PendingStatus.TIMED_OUT, fence):
        # A decision holds the row at this moment, or was made just before: it is in the inbox at the next look.
        return Answer(pending.pk, wake_at=fence.now + LOCKED_AGAIN)
    error = codec.dumps(failures.describe(_timeout_error(claim, record, pending), step=record.identity.label))
    _settle(lease, claim, record, StepStatus.FAILED, fence, error=error)
    _history(lease, claim, record, "wait_timed_out", {"pending_event": pending.pk}, fence)
    return Answer(pending.pk, error=error)


def _match(lease: Lease, claim: Claim, pending: PendingEvent) -> SentEvent | None:
    """The lowest unconsumed message for this wait that was accepted before its deadline, in order of acceptance
    (case EVT-07)."""
    inbox = SentEvent.objects.using(lease.using).filter(instance=lease.pk, run_number=claim.run_number, consumed_by="")
    if pending.kind == StepKind.WAIT_FOR_APPROVAL:
        # A decision names its wait: it can never open a later one (case EVT-13), and no event can open an approval.
        inbox = inbox.filter(kind=SentKind.DECISION, pending_event=pending.pk)
    else:
        inbox = inbox.filter(kind=SentKind.EVENT, type__in=pending.types)
        if pending.deadline is not None:
            inbox = inbox.filter(sent_at__lte=pending.deadline)
    return inbox.order_by("id").first()


def _consume(
    lease: Lease, claim: Claim, record: Record, pending: PendingEvent, sent: SentEvent, fence: Fence
) -> Answer:
    if isinstance(sent.payload, Unreadable):
        raise UnreadableAnswer(
            f"{claim.label}: event {sent.pk}, sent to {record.identity.label!r}, cannot be read: {sent.payload.reason}"
        )
    if sent.kind == SentKind.DECISION:
        output = codec.dumps(sent.payload)
    else:
        event = Event(type=sent.type, payload=sent.payload, sent_at=sent.sent_at, sent_by=sent.sent_by_name)
        output = codec.dumps(event.to_stored())
        PendingEvent.objects.using(lease.using).filter(pk=pending.pk).update(
            status=PendingStatus.RECEIVED,
            closed=fence.now,
            decided_by_name=sent.sent_by_name,  # the name alone: a reference would wait for whoever holds that user's row
        )
    SentEvent.objects.using(lease.using).filter(pk=sent.pk).update(
        consumed_by=record.identity.text, consumed_run=claim.run_number
    )
    _settle(lease, claim, record, StepStatus.COMPLETE, fence, output=output)
    _history(lease, claim, record, "wait_completed", {"pending_event": pending.pk, "event": sent.pk}, fence)
    return Answer(pending.pk, output=output)


def _close_open(lease: Lease, pending: PendingEvent, status: str, fence: Fence) -> bool:
    """Close it without an answer, unless somebody holds the row or has decided it."""
    rows = PendingEvent.objects.using(lease.using).filter(pk=pending.pk, status=PendingStatus.OPEN)
    if connections[lease.using].vendor == "postgresql":
        rows = rows.select_for_update(skip_locked=True, no_key=True)
    if not list(rows.values_list("pk", flat=True)):
        return False
    PendingEvent.objects.using(lease.using).filter(pk=pending.pk).update(status=status, closed=fence.now)
    return True


def _timeout_error(claim: Claim, record: Record, pending: PendingEvent) -> EventTimeout:
    what = "decision" if pending.kind == StepKind.WAIT_FOR_APPROVAL else f"event of type {', '.join(pending.types)}"
    return EventTimeout(
        f"{claim.label}: {record.identity.label!r} got no {what} before its deadline {pending.deadline:%Y-%m-%d %H:%M:%S %Z}."
    )


# Rows -----------------------------------------------------------------------------------------------------------------


def _save_record(lease: Lease, claim: Claim, record: Record, fence: Fence, deadline: datetime | None) -> StepRecord:
    identity = record.identity
    step, _created = StepRecord.objects.using(lease.using).update_or_create(
        instance_id=lease.pk,
        run_number=claim.run_number,
        scope=identity.scope,
        kind=identity.kind,
        name=identity.name,
        count=identity.count,
        defaults={"status": StepStatus.PENDING, "wake_at": deadline, "token": lease.token, "finished": None},
        create_defaults={
            "seq": record.seq,
            "execution": record.execution,
            "key_run": record.key_run,
            "status": StepStatus.PENDING,
            "wake_at": deadline,
            "token": lease.token,
            "started": fence.now,
        },
    )
    return step


def _open_pending(
    lease: Lease,
    claim: Claim,
    record: Record,
    call: WaitCall,
    people: People | None,
    step: StepRecord,
    fence: Fence,
    deadline: Any,
) -> PendingEvent:
    shown: dict[str, Any] = {}
    if isinstance(call, ApprovalCall) and people is not None:
        shown = {
            "title": call.title,
            "description": call.description,
            "context": call.context,
            "form": call.form,
            "permission": call.permission,
            "restricted": bool(people.users or people.groups or call.permission),
            "allow_requester": call.allow_requester,
        }
    pending: PendingEvent = PendingEvent.objects.using(lease.using).create(
        instance_id=lease.pk,
        run_number=claim.run_number,
        step=step,
        kind=call.kind,
        name=record.identity.name,
        count=record.identity.count,
        types=list(call.types),
        deadline=deadline,
        opened=fence.now,
        **shown,
    )
    if people is not None:
        pending.users.set(people.users)
        pending.groups.set(people.groups)
    return pending


def _step(lease: Lease, claim: Claim, record: Record) -> StepRecord:
    identity = record.identity
    return StepRecord.objects.using(lease.using).get(
        instance_id=lease.pk,
        run_number=claim.run_number,
        scope=identity.scope,
        kind=identity.kind,
        name=identity.name,
        count=identity.count,
    )


def _settle(
    lease: Lease,
    claim: Claim,
    record: Record,
    status: str,
    fence: Fence,
    *,
    output: str | None = None,
    error: str | None = None,
) -> None:
    """Finish the wait's record, and drop a ``notify`` of it that has not ended."""
    if claim.interruptions or claim.give_backs:  # progress was made
        run(lease.using, f"UPDATE {INSTANCE} SET interruptions = 0, give_backs = 0 WHERE id = %s", [lease.pk])
    identity = record.identity
    steps = StepRecord.objects.using(lease.using).filter(
        instance_id=lease.pk,
        run_number=claim.run_number,
        scope=identity.scope,
        name=identity.name,
        count=identity.count,
    )
    steps.filter(kind=identity.kind).update(
        status=status,
        raw_output=None if output is None else codec.loads(output),
        error_data=None if error is None else codec.loads(error),
        finished=fence.now,
        wake_at=None,
        token=lease.token,
    )
    steps.filter(kind=StepKind.NOTIFY, status__in=(StepStatus.PENDING, StepStatus.STARTED)).update(
        status=StepStatus.CANCELLED, finished=fence.now, wake_at=None
    )


def _history(lease: Lease, claim: Claim, record: Record, type: str, data: dict[str, Any], fence: Fence) -> None:
    HistoryEntry.objects.using(lease.using).create(
        instance_id=lease.pk,
        run_number=claim.run_number,
        type=type,
        kind=record.identity.kind,
        step=record.identity.label,
        data=data,
        via=Via.ENGINE,
        at=clock.expression(connections[lease.using].vendor),
    )
