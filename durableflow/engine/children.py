"""Answering the calls that start other workflows: ``run_workflow``, ``run_workflows``, ``start_workflow`` (design 7).

A parent that waits holds nothing: the child's end is a message to its inbox, and delivery writes the outcome into the
record that this module reads at the next replay (``engine.outcomes``).
"""

from __future__ import annotations

from typing import Any, Final

from durableflow.authoring.group_calls import ChildCall, ChildrenCall, StartCall
from durableflow.core import codec
from durableflow.core.exceptions import NonDeterminismError
from durableflow.engine import child_writes as writes
from durableflow.engine.child_plans import adopt, planned, refuse, stale
from durableflow.engine.child_writes import Start
from durableflow.engine.joins import run_children
from durableflow.engine.journal import COMPLETE, PENDING, Identity, Record
from durableflow.engine.replay import Scope
from durableflow.engine.session import Session

AnyChildCall = ChildCall | ChildrenCall | StartCall
CALLS: Final = {"run": "run_workflow", "join": "run_workflows", "start": "start_workflow"}


def answer(session: Session, scope: Scope, identity: Identity, record: Record | None, call: AnyChildCall) -> Any:
    """Answer a call of one of the three, also where its record is finished."""
    session.lease.children = True
    session.claim.uncharged = False  # nothing was in a body when the worker was lost
    if isinstance(call, ChildrenCall):
        check_way(session, record, "join")
        return run_children(session, scope, identity, record, call)
    if isinstance(call, StartCall):
        check_way(session, record, "start")
        return start_child(session, scope, identity, record, call)
    check_way(session, record, "run")
    return run_child(session, scope, identity, record, call)


def check_way(session: Session, record: Record | None, way: str) -> None:
    """All three are of one kind, but none can take another's record: the program was changed there (case ENG-04)."""
    if record is None:
        return
    with session.reading(record.identity):
        recorded = codec.loads(record.config or "{}")["as"]
    if recorded != way:
        label = record.identity.label
        session.replay.halt(
            NonDeterminismError(
                f"{session.claim.label} is recorded with {CALLS.get(recorded, recorded)} {label!r}, but run() now calls {CALLS[way]} "
                f"{label!r}. Give the new call another name, or put the old code back, and resume the instance."
            ),
            record,
        )


def run_child(session: Session, scope: Scope, identity: Identity, record: Record | None, call: ChildCall) -> Any:
    """Start a child, wait for it, and return its output. Raises WorkflowFailed, WorkflowTimeout, InstanceAlreadyExists, and
    whatever is wrong with the child's params."""
    if record is None:
        record = _begin(session, identity, call, "run")
        session.suspend(scope, record.wake_at, identity)
    if not record.finished:
        if stale(session, record):
            _look(session, record, call)
        if not record.finished:
            session.suspend(scope, record.wake_at, identity)
    return session.recorded(record)


def open_child(session: Session, identity: Identity, record: Record | None, call: ChildCall) -> Record:
    """The record of a child that several branches race for: the child is started where it is not yet, and not waited for. What
    has become of it is read anew; whether its time is over is for the race to decide."""
    session.lease.children = True
    session.claim.uncharged = False
    check_way(session, record, "run")
    if record is None:
        return _begin(session, identity, call, "run")
    if not record.finished:
        _look(session, record, call, expires=False)
    return record


def start_child(session: Session, scope: Scope, identity: Identity, record: Record | None, call: StartCall) -> Any:
    """Start a child and return its instance_id."""
    if record is None or not record.finished:  # not finished: retry() wants what could not start to start after all
        record = _begin(session, identity, call, "start", record)
    return session.recorded(record)


def _begin(
    session: Session, identity: Identity, call: ChildCall | StartCall, way: str, record: Record | None = None
) -> Record:
    record = record or session.new_record(identity)
    record.config = codec.dumps({"as": way, "workflow": call.workflow.options.name})
    waited = isinstance(call, ChildCall)
    try:
        start = Start(
            plan=planned(session, record, call.workflow, call.params, call.instance_id),
            waited=waited,
            timeout=call.timeout if isinstance(call, ChildCall) else None,
            on_parent_end="terminate" if isinstance(call, ChildCall) else call.on_parent_end,
        )
        writes.start(session.lease, session.claim, record, start)
    except Exception as error:
        refuse(session, record, error)
    record.status = PENDING if waited else COMPLETE
    record.attempts = 1
    if not waited:
        record.output = codec.dumps(start.plan.row.instance_id)
        session.shaken = False
    return record


def _look(session: Session, record: Record, call: ChildCall, *, expires: bool = True) -> None:
    """What has become of the child: delivery may have written it after the journal was loaded."""
    found = writes.read(session.lease, session.claim, record.identity)
    if found is not None and found.reset:
        try:
            again = planned(session, record, call.workflow, call.params, call.instance_id, attempts=found.attempts)
            found = writes.take_up(session.lease, session.claim, record, again, call.timeout)
        except Exception as error:
            refuse(session, record, error)
    elif (
        expires
        and found is not None
        and found.status == PENDING
        and found.wake_at is not None
        and found.wake_at <= session.claim.db_now()
    ):
        found = writes.give_up(session.lease, session.claim, record)
        session.shaken = False
    adopt(record, found)
