"""The rows of a wait, in SQL: its record, its pending event, what the inbox has for it (design 2, 4). Each function is
a part of a fenced transaction."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from durableflow.authoring.calls import ApprovalCall, WaitCall
from durableflow.core import codec
from durableflow.core.statuses import PendingStatus, SentKind, StepKind
from durableflow.engine.inbox import undelivered
from durableflow.engine.journal import Record
from durableflow.engine.lease import Claim, Lease
from durableflow.engine.people import People
from durableflow.engine.sql import (
    HISTORY,
    INSTANCE,
    PENDING,
    SENT,
    STEP,
    is_postgres,
    moment,
    now_of,
    run,
    stored,
    together,
)
from durableflow.models import PendingEvent

Statement = tuple[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Pending:
    """What a look needs of a pending event."""

    pk: int
    status: str
    kind: str
    types: tuple[str, ...]
    deadline: datetime | None


@dataclass(frozen=True, slots=True)
class Stored:
    """A wait as it is stored: its record, and its latest pending event. ``output`` and ``error`` are texts."""

    step: int
    status: str
    token: int | None
    output: str | None
    error: str | None
    pending: Pending | None


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that answers a wait. ``payload`` is a text."""

    pk: int
    kind: str
    type: str
    payload: str | None
    sent_at: datetime
    sent_by_name: str


_IDENTITY: Final = "instance_id = %s AND run_number = %s AND scope = %s AND kind = %s AND name = %s AND count = %s"


def read(lease: Lease, claim: Claim, record: Record) -> Stored | None:
    """The wait as it is stored, or None before it was opened for the first time."""
    rows = run(
        lease.using,
        f"""SELECT s.id, s.status, s.token, s.output, s.error, p.id, p.status, p.kind, p.types, p.deadline
            FROM (SELECT * FROM {STEP} WHERE {_IDENTITY}) AS s
            LEFT JOIN {PENDING} AS p ON p.id = (SELECT max(x.id) FROM {PENDING} AS x WHERE x.step_id = s.id)""",
        [lease.pk, claim.run_number, *record.identity],
    )
    if not rows:
        return None
    step, status, token, output, error, *pending = rows[0]
    return Stored(step, status, token, output, error, None if pending[0] is None else _pending(*pending))


def _pending(pk: int, status: str, kind: str, types: Any, deadline: Any) -> Pending:
    return Pending(pk, status, kind, tuple(json.loads(types) if isinstance(types, str) else types), moment(deadline))


def open_wait(
    lease: Lease, claim: Claim, record: Record, call: WaitCall, people: People | None, now: datetime, deadline: Any
) -> Stored:
    """Write the record, a new pending event and the history. Raises CodecError for a context that cannot be stored."""
    using = lease.using
    step_sql, step_params = _step(lease, claim, record, now, deadline)
    columns, values = _columns(lease, claim, record, call, people, now, deadline)
    insert = f"INSERT INTO {PENDING} ({', '.join(columns)}, step_id) VALUES ({', '.join(['%s'] * len(values))}, "
    if is_postgres(using):
        sql = f"WITH s AS ({step_sql}) {insert}(SELECT id FROM s)) RETURNING step_id, id"
        ((step, pk),) = run(using, sql, [*step_params, *values])
    else:
        ((step,),) = run(using, step_sql, step_params)
        ((pk,),) = run(using, f"{insert}%s) RETURNING id", [*values, step])
    if people is not None and (people.users or people.groups):
        row = PendingEvent(pk=pk)
        row._state.db, row._state.adding = using, False
        row.users.set(people.users)
        row.groups.set(people.groups)
    told = {"pending_event": pk, "types": list(call.types), "deadline": deadline}
    together(using, [history(lease, claim, record, "wait_started", told)])
    pending = Pending(pk, PendingStatus.OPEN, call.kind, call.types, deadline)
    return Stored(step, "pending", lease.token, None, None, pending)


def _step(lease: Lease, claim: Claim, record: Record, now: datetime, deadline: Any) -> Statement:
    values = [
        lease.pk, claim.run_number, *record.identity, record.seq, record.execution, record.key_run,
        stored(lease.using, deadline), lease.token, stored(lease.using, now),
    ]  # fmt: skip
    sql = f"""
        INSERT INTO {STEP} (instance_id, run_number, scope, kind, name, count, seq, execution, key_run, wake_at, token, started,
            status, sensitive, attempts, attempts_before_retry, freed, rollback_status, rollback_attempts)
        VALUES ({", ".join(["%s"] * len(values))}, 'pending', false, 0, 0, false, '', 0)
        ON CONFLICT (instance_id, run_number, scope, kind, name, count) DO UPDATE SET
            status = 'pending', wake_at = excluded.wake_at, token = excluded.token, finished = NULL
        RETURNING id"""
    return sql, values


def _columns(
    lease: Lease, claim: Claim, record: Record, call: WaitCall, people: People | None, now: datetime, deadline: Any
) -> tuple[list[str], list[Any]]:
    values: dict[str, Any] = {
        "instance_id": lease.pk,
        "run_number": claim.run_number,
        "kind": call.kind,
        "name": record.identity.name,
        "count": record.identity.count,
        "types": json.dumps(list(call.types)),
        "deadline": stored(lease.using, deadline),
        "status": PendingStatus.OPEN.value,
        "title": "",
        "description": "",
        "context": None,
        "form": "",
        "permission": "",
        "restricted": False,
        "allow_requester": True,
        "comment": "",
        "decided_by_name": "",
        "via": "",
        "opened": stored(lease.using, now),
    }
    if isinstance(call, ApprovalCall) and people is not None:
        values |= {
            "title": call.title,
            "description": call.description,
            "context": None if call.context is None else codec.dumps(call.context, what="context"),
            "form": call.form,
            "permission": call.permission,
            "restricted": bool(people.users or people.groups or call.permission),
            "allow_requester": call.allow_requester,
        }
    return list(values), list(values.values())


def match(lease: Lease, claim: Claim, pending: Pending) -> tuple[bool, Sent | None]:
    """Whether something lies undelivered in the instance's inbox; and the lowest unconsumed message for this wait that
    was accepted before its deadline, in order of acceptance (case EVT-07)."""
    using = lease.using
    params: list[Any] = [lease.pk, lease.pk, claim.run_number]
    if pending.kind == StepKind.WAIT_FOR_APPROVAL:
        # A decision names its wait: it can never open a later one (case EVT-13), and no event can open an approval.
        wanted = "kind = 'decision' AND pending_event_id = %s"
        params.append(pending.pk)
    else:
        wanted = f"kind = 'event' AND type IN ({', '.join(['%s'] * len(pending.types))})"
        params += pending.types
        if pending.deadline is not None:
            wanted += " AND sent_at <= %s"
            params.append(stored(using, pending.deadline))
    ((new, pk, kind, type, payload, sent_at, sender),) = run(
        using,
        f"""SELECT u.new, e.id, e.kind, e.type, e.payload, e.sent_at, e.sent_by_name
            FROM (SELECT EXISTS (SELECT 1 FROM {SENT} WHERE instance_id = %s AND {undelivered(using)}) AS new) AS u
            LEFT JOIN (SELECT * FROM {SENT} WHERE instance_id = %s AND run_number = %s AND consumed_by = '' AND {wanted}
                ORDER BY id LIMIT 1) AS e ON true""",
        params,
    )
    accepted = moment(sent_at)
    return bool(new), None if accepted is None else Sent(pk, kind, type, payload, accepted, sender)


def consume(lease: Lease, claim: Claim, record: Record, found: Stored, sent: Sent, output: str, now: datetime) -> None:
    """Answer the wait with a message."""
    assert found.pending is not None  # noqa: S101
    at = stored(lease.using, now)
    statements: list[Statement] = [
        (
            f"UPDATE {SENT} SET consumed_by = %s, consumed_run = %s WHERE id = %s",
            [record.identity.text, claim.run_number, sent.pk],
        )
    ]
    if sent.kind != SentKind.DECISION:  # the decision itself has closed its own
        # The sender's name alone: a reference would wait for whoever holds that user's row.
        sql = f"UPDATE {PENDING} SET status = 'received', closed = %s, decided_by_name = %s WHERE id = %s"
        statements.append((sql, [at, sent.sent_by_name, found.pending.pk]))
    data = {"pending_event": found.pending.pk, "event": sent.pk}
    settle(lease, claim, record, found, "complete", now, statements, ("wait_completed", data), output=output)


def settle(
    lease: Lease,
    claim: Claim,
    record: Record,
    found: Stored,
    status: str,
    now: datetime,
    statements: list[Statement],
    entry: tuple[str, dict[str, Any]],
    *,
    output: str | None = None,
    error: str | None = None,
) -> None:
    """Finish the wait's record with ``statements`` and a history entry, and drop a ``notify`` of it that has not
    ended."""
    at = stored(lease.using, now)
    if claim.interruptions or claim.give_backs:  # progress was made
        statements.append((f"UPDATE {INSTANCE} SET interruptions = 0, give_backs = 0 WHERE id = %s", [lease.pk]))
    sql = f"UPDATE {STEP} SET status = %s, output = %s, error = %s, finished = %s, wake_at = NULL, token = %s WHERE id = %s"
    statements.append((sql, [status, output, error, at, lease.token, found.step]))
    told = record.identity._replace(kind=StepKind.NOTIFY.value)
    sql = f"""UPDATE {STEP} SET status = 'cancelled', finished = %s, wake_at = NULL
              WHERE {_IDENTITY} AND status IN ('pending', 'started')"""
    statements.append((sql, [at, lease.pk, claim.run_number, *told]))
    together(lease.using, [*statements, history(lease, claim, record, *entry)])


def close(lease: Lease, pending: Pending, status: str, now: datetime) -> bool:
    """Close an open wait without an answer, unless somebody holds the row or has decided it."""
    lock = "FOR NO KEY UPDATE SKIP LOCKED" if is_postgres(lease.using) else ""
    sql = f"SELECT id FROM {PENDING} WHERE id = %s AND status = 'open' {lock}"
    if not run(lease.using, sql, [pending.pk]):
        return False
    sql = f"UPDATE {PENDING} SET status = %s, closed = %s WHERE id = %s"
    run(lease.using, sql, [status, stored(lease.using, now), pending.pk])
    return True


def bind(lease: Lease, pending: Pending, deadline: datetime | None) -> None:
    """Change the deadline of an open wait, unless somebody holds the row."""
    lock = "FOR NO KEY UPDATE SKIP LOCKED" if is_postgres(lease.using) else ""
    if run(lease.using, f"SELECT id FROM {PENDING} WHERE id = %s AND status = 'open' {lock}", [pending.pk]):
        run(
            lease.using,
            f"UPDATE {PENDING} SET deadline = %s WHERE id = %s",
            [stored(lease.using, deadline), pending.pk],
        )


def history(lease: Lease, claim: Claim, record: Record, type: str, data: dict[str, Any]) -> Statement:
    """The statement that writes a history entry of the wait."""
    now, at = now_of(lease.using)
    sql = f"""INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, data, actor_name, via, reason, at)
              VALUES (%s, %s, %s, %s, %s, %s, '', 'engine', '', {now})"""
    text = codec.dumps(data, what="data")
    return sql, [lease.pk, claim.run_number, type, record.identity.kind, record.identity.label, text, *at]
