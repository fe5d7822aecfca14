"""Waits: opening them, matching the inbox, timing out, cancelling; each one fenced transaction (design 4, 5, 8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from durableflow.authoring.calls import ApprovalCall, Default, WaitCall
from durableflow.core import codec, failures
from durableflow.core.answers import Event
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import CodecError, EventTimeout
from durableflow.core.statuses import PendingStatus, SentKind, StepKind, StepStatus
from durableflow.engine import wait_rows as rows
from durableflow.engine.delivery import deliver_own
from durableflow.engine.fence import Fence, fenced
from durableflow.engine.journal import Record
from durableflow.engine.lease import Claim, Lease
from durableflow.engine.patience import patient
from durableflow.engine.people import look_up_people
from durableflow.engine.sql import is_postgres
from durableflow.engine.wait_rows import Pending, Sent, Stored
from durableflow.engine.wait_taking import find, take
from durableflow.models import PendingEvent

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
    if record.status == StepStatus.PENDING and is_postgres(lease.using):
        found = find(lease, claim, record)
        if found is not None and take(lease, claim, record, found, output := _output(claim, record, found.sent)):
            return Answer(found.pending, output=output)
    return _attend(lease, claim, record, call)


def _attend(lease: Lease, claim: Claim, record: Record, call: WaitCall) -> Answer:
    with fenced(lease) as fence:
        # A statement of its own under the lock, not a part of it: when a look whose COMMIT was answered by a lost
        # connection is repeated, that COMMIT may still be on its way when this one begins to wait for the row.
        found = rows.read(lease, claim, record)
        if found is not None and found.pending is not None and found.pending.status != PendingStatus.OPEN:
            settled = _own(lease, found, found.pending)
            if settled is not None:
                return settled  # by that look: it must not take a second message
        if found is None or found.pending is None or found.pending.status in _OVER:
            found = _open(lease, claim, record, call, fence)
        return _look(lease, claim, record, found, fence)


_OVER: Final = (PendingStatus.CANCELLED, PendingStatus.TIMED_OUT)


def _open(lease: Lease, claim: Claim, record: Record, call: WaitCall, fence: Fence) -> Stored:
    people = look_up_people(lease, claim, call) if isinstance(call, ApprovalCall) else None
    timeout = get_settings().event_timeout if isinstance(call.timeout, Default) else call.timeout
    deadline = None if timeout is None else fence.now + timeout
    return rows.open_wait(lease, claim, record, call, people, fence.now, deadline)


def _own(lease: Lease, found: Stored, pending: Pending) -> Answer | None:
    """What this very lease has already settled, or None."""
    if found.token != lease.token or found.status not in (StepStatus.COMPLETE, StepStatus.FAILED):
        return None
    if found.status == StepStatus.COMPLETE:
        return Answer(pending.pk, output=found.output or "null")
    return Answer(pending.pk, error=found.error or "null")


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
        found = rows.read(lease, claim, record)
        pending = found.pending if found is not None else None
        if found is None or pending is None:
            raise RuntimeError(f"{claim.label}: the open wait {pk} of {record.identity.label!r} is gone.")
        settled = None if pending.status == PendingStatus.OPEN else _own(lease, found, pending)
        if settled is not None:
            return settled
        sent = _match(lease, claim, pending)
        if sent is not None:
            return _consume(lease, claim, record, found, sent, fence)
        if not rows.close(lease, pending, PendingStatus.CANCELLED, fence.now):
            return Answer(pending.pk, wake_at=fence.now + LOCKED_AGAIN)
        entry = ("wait_cancelled", {"error": failures.public(codec.loads(error))})
        rows.settle(lease, claim, record, found, StepStatus.FAILED.value, fence.now, [], entry, error=error)
        return Answer(pending.pk, error=error)


@dataclass(frozen=True)
class Outlook:
    """An open wait under the lock, for those who settle several at once (a race). ``at``: when it was settled: by ``sent``, or
    else by its deadline; None if it is not. ``opened``: by this very look."""

    found: Stored
    at: datetime | None = None
    sent: Sent | None = None
    opened: bool = False

    @property
    def pending(self) -> Pending:
        """Its pending event."""
        assert self.found.pending is not None  # noqa: S101
        return self.found.pending


@patient
def open_wait(lease: Lease, claim: Claim, record: Record, call: WaitCall) -> Outlook:
    """Open the wait where it is not open yet, and say how it stands; nothing is settled. Raises as ``attend``."""
    with fenced(lease) as fence:
        found = rows.read(lease, claim, record)
        closed = found is None or found.pending is None or found.pending.status in _OVER
        if closed:
            _open(lease, claim, record, call, fence)
        return replace(outlook(lease, claim, record, fence), opened=closed)


def outlook(lease: Lease, claim: Claim, record: Record, fence: Fence) -> Outlook:
    """How an open wait stands. A part of a fenced transaction, as ``settle`` and ``withdraw``."""
    found = rows.read(lease, claim, record)
    if found is None or found.pending is None:
        raise RuntimeError(f"{claim.label}: the open wait of {record.identity.label!r} is gone.")
    sent = _match(lease, claim, found.pending)
    if sent is not None:
        return Outlook(found, sent.sent_at, sent)
    deadline = found.pending.deadline
    return Outlook(found, deadline if deadline is not None and deadline <= fence.now else None)


def settle(lease: Lease, claim: Claim, record: Record, outlook: Outlook, fence: Fence) -> bool:
    """Answer a wait with what has settled it; False if somebody decides it at this moment."""
    if outlook.sent is not None:
        _consume(lease, claim, record, outlook.found, outlook.sent, fence)
        return True
    return _time_out(lease, claim, record, outlook.found, fence) is not None


def bind(lease: Lease, outlook: Outlook, deadline: datetime | None) -> None:
    """Have everybody see the deadline of a wait that something else ends (a race): past it nobody's answer is accepted. A row
    that somebody holds is left for the next look."""
    if outlook.pending.deadline != deadline:
        rows.bind(lease, outlook.pending, deadline)


def withdraw(lease: Lease, outlook: Outlook, fence: Fence) -> bool:
    """Close a wait that nobody shall answer any more; False if somebody decides it at this moment."""
    decided = outlook.pending.kind == StepKind.WAIT_FOR_APPROVAL and outlook.sent is not None
    return decided or rows.close(lease, outlook.pending, PendingStatus.CANCELLED, fence.now)


def _look(lease: Lease, claim: Claim, record: Record, found: Stored, fence: Fence) -> Answer:
    pending = found.pending
    assert pending is not None  # noqa: S101
    sent = _match(lease, claim, pending)
    if sent is not None:
        return _consume(lease, claim, record, found, sent, fence)
    if pending.deadline is None or pending.deadline > fence.now:
        return Answer(pending.pk, wake_at=pending.deadline)
    error = _time_out(lease, claim, record, found, fence)
    return Answer(pending.pk, error=error, wake_at=None if error else fence.now + LOCKED_AGAIN)


def _time_out(lease: Lease, claim: Claim, record: Record, found: Stored, fence: Fence) -> str | None:
    """The deadline has passed: the error, or None where a decision holds the row at this moment, or was made just before: it
    is in the inbox at the next look."""
    pending = found.pending
    assert pending is not None  # noqa: S101
    if not rows.close(lease, pending, PendingStatus.TIMED_OUT, fence.now):
        return None
    error = codec.dumps(failures.describe(_timeout_error(claim, record, pending), step=record.identity.label))
    entry = ("wait_timed_out", {"pending_event": pending.pk})
    rows.settle(lease, claim, record, found, StepStatus.FAILED.value, fence.now, [], entry, error=error)
    return error


def _match(lease: Lease, claim: Claim, pending: Pending) -> Sent | None:
    """The message that answers this wait. What lies undelivered is delivered first: the history shows it before it is
    consumed, and what was sent to an earlier run has come over."""
    new, sent = rows.match(lease, claim, pending)
    if not new:
        return sent
    deliver_own(lease)
    return rows.match(lease, claim, pending)[1]


def _consume(lease: Lease, claim: Claim, record: Record, found: Stored, sent: Sent, fence: Fence) -> Answer:
    assert found.pending is not None  # noqa: S101
    output = _output(claim, record, sent)
    rows.consume(lease, claim, record, found, sent, output, fence.now)
    return Answer(found.pending.pk, output=output)


def _output(claim: Claim, record: Record, sent: Sent) -> str:
    """What the wait returns, as it is stored."""
    try:
        payload = None if sent.payload is None else codec.loads(sent.payload)
    except CodecError as error:
        raise UnreadableAnswer(
            f"{claim.label}: event {sent.pk}, sent to {record.identity.label!r}, cannot be read: {error}"
        ) from error
    if sent.kind != SentKind.DECISION:
        payload = Event(type=sent.type, payload=payload, sent_at=sent.sent_at, sent_by=sent.sent_by_name).to_stored()
    return codec.dumps(payload)


def _timeout_error(claim: Claim, record: Record, pending: Pending) -> EventTimeout:
    what = "decision" if pending.kind == StepKind.WAIT_FOR_APPROVAL else f"event of type {', '.join(pending.types)}"
    return EventTimeout(
        f"{claim.label}: {record.identity.label!r} got no {what} before its deadline {pending.deadline:%Y-%m-%d %H:%M:%S %Z}."
    )
