"""``run_workflows``: one join over the children of one call, however many they are (design 7, case OPS-11).

The join has a record, and each child one of its own in the join's scope, with its position as count. Delivery writes the
outcomes there and counts how many are still to come; it wakes the parent with the last one. The values of a finished join
are those of its children's records: they are not stored a second time.
"""

from __future__ import annotations

import hashlib
from typing import Any

from durableflow.authoring.group_calls import ChildrenCall
from durableflow.core import codec
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import NonDeterminismError
from durableflow.core.statuses import StepKind
from durableflow.engine import child_writes as writes
from durableflow.engine.child_plans import adopt, planned, refuse
from durableflow.engine.child_writes import Join
from durableflow.engine.journal import COMPLETE, FAILED, PENDING, Identity, Record
from durableflow.engine.replay import Scope
from durableflow.engine.scopes import inner
from durableflow.engine.session import Session
from durableflow.engine.steps import Entry

DIGEST = 12
"""Hex digits that are kept of the digest of a child's params."""


def run_children(session: Session, scope: Scope, identity: Identity, record: Record | None, call: ChildrenCall) -> Any:
    """Start a child for each of the params, wait for all, and return their outputs in that order.

    Raises an ExceptionGroup of what failed, or puts it into the list (``return_exceptions``); LimitExceeded, and whatever is
    wrong with the params of one of them. Params that are others than at the first execution stop the instance.
    """
    if record is None:
        record = _begin(session, identity, call)
        if not record.finished:
            session.suspend(scope, None, identity)
    elif record.status == FAILED and record.error is not None:
        raise session.failure(record)  # it could not start
    elif not _changed(session, record, call):
        _again_or_wait(session, scope, record, call)
    return _outcome(session, record, call)


def _begin(session: Session, identity: Identity, call: ChildrenCall, record: Record | None = None) -> Record:
    limits = get_settings().LIMITS
    records = len(session.replay.records) + 1 + len(call.params)
    if records > limits.records:
        raise session.too_much("the journal", records, limits.records, "records")
    record = record or session.new_record(identity)
    record.config = _config(call, [])
    try:
        children = _children(session, identity, len(call.params))
        plans = _plans(session, record, call, range(1, len(children) + 1))
        record.config = _config(call, [_digest(plan.text) for plan in plans])
        if children:
            join = Join(record=record, children=children, plans=plans, window=call.concurrency)
            writes.start_all(session.lease, session.claim, join)
    except Exception as error:
        refuse(session, record, error)
    record.attempts = 1
    record.status = PENDING if children else COMPLETE
    if not children:
        session.write(record, Entry("step_completed"))
    return record


def _plans(session: Session, record: Record, call: ChildrenCall, positions: Any) -> list[Any]:
    return [
        planned(session, record, call.workflow, call.params[position - 1], position=position) for position in positions
    ]


def _config(call: ChildrenCall, digests: list[str]) -> str:
    config = {"as": "join", "workflow": call.workflow.options.name, "window": call.concurrency, "params": digests}
    return codec.dumps(config)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]


def _positions(identity: Identity, count: int) -> list[Identity]:
    scope = inner(identity)
    return [Identity(scope, StepKind.CHILD.value, identity.name, position) for position in range(1, count + 1)]


def _children(session: Session, identity: Identity, count: int) -> list[Record]:
    """The records of the children, in memory: those that are known already, new ones for the others."""
    known = session.replay.records
    return [known.get(own) or session.new_record(own) for own in _positions(identity, count)]


def _changed(session: Session, record: Record, call: ChildrenCall) -> bool:
    """Stop where the params are not those of the first execution; False."""
    with session.reading(record.identity):
        recorded = list(codec.loads(record.config or "{}")["params"])
    given = [_digest(codec.dumps(params)) for params in call.params]
    if given == recorded or (not recorded and record.status == PENDING):
        return False
    if len(given) != len(recorded):
        what = f"{len(given)} params, but {len(recorded)} children were started"
    else:
        place = next(number for number, pair in enumerate(zip(given, recorded, strict=True), 1) if pair[0] != pair[1])
        what = f"other params for child {place} than it was started with"
    label = record.identity.label
    session.replay.halt(
        NonDeterminismError(
            f"{session.claim.label}: run_workflows {label!r} now gets {what}. What it is given must not depend on anything that is "
            "not recorded (time, queries, the order of a set): make the list in a step before it, or put the old code back, and "
            "resume the instance."
        ),
        record,
    )


def _again_or_wait(session: Session, scope: Scope, record: Record, call: ChildrenCall) -> None:
    """Return once all children have ended; see to those that ``retry()`` wants anew."""
    known = session.replay.records
    children = [known.get(own) for own in _positions(record.identity, len(call.params))]
    if record.status == PENDING and call.params and all(child is None for child in children):
        _begin(session, record.identity, call, record)  # retry() wants what could not start to start after all
        session.suspend(scope, None, record.identity)
    there = [child for child in children if child is not None]
    with session.reading(record.identity):
        if len(there) != len(children):
            raise LookupError(f"{len(children) - len(there)} of its children have no record")
    reset = [child for child in there if child.status == PENDING and child.used == 0]
    if reset:
        join = Join(
            record=record,
            children=reset,
            plans=_take_up_plans(session, record, call, reset),
            window=call.concurrency,
        )
        try:
            while writes.take_up_some(session.lease, session.claim, join):
                session.check_alive()
        except Exception as error:
            refuse(session, record, error)
        record.status = PENDING
        for child in reset:
            child.attempts += 1
    if all(child.finished for child in there):
        return
    found = writes.read(session.lease, session.claim, record.identity) if session.news or reset else None
    if found is None or found.remaining:
        session.suspend(scope, None, record.identity)
    stored = writes.read_all(session.lease, session.claim, there[0].identity.scope, record.identity.name)
    for child in there:
        adopt(child, stored.get(child.identity.count))
    if not all(child.finished for child in there):
        session.suspend(scope, None, record.identity)


def _take_up_plans(session: Session, record: Record, call: ChildrenCall, reset: list[Record]) -> list[Any]:
    return [
        planned(
            session,
            record,
            call.workflow,
            call.params[child.identity.count - 1],
            position=child.identity.count,
            attempts=child.attempts,
        )
        for child in reset
    ]


def _outcome(session: Session, record: Record, call: ChildrenCall) -> Any:
    """The values and errors of the children, in order; the first time that is recorded."""
    values: list[Any] = []
    errors: list[Exception] = []
    for own in _positions(record.identity, len(call.params)):
        child = session.replay.records[own]
        if child.status == FAILED:
            errors.append(session.failure(child))
            values.append(errors[-1])
        else:
            values.append(session.recorded(child))
    failed = bool(errors) and not call.return_exceptions
    told = f"{len(errors)} of {len(values)} children of {record.identity.label!r} of {session.claim.label} failed"
    if not record.finished:
        record.status = FAILED if failed else COMPLETE
        session.write(
            record, Entry("step_errored", {"error": _told(told, record)}) if failed else Entry("step_completed")
        )
    if failed:
        raise ExceptionGroup(told, errors)
    return values


def _told(message: str, record: Record) -> dict[str, str]:
    """What the history shows of the group: each child's error stands with its own record."""
    return {"type": "ExceptionGroup", "message": message, "traceback": "", "step": record.identity.label}
