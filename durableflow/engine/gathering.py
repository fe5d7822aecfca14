"""``gather`` and ``map``: their records, their branches, and what they return (design 7).

The record of a group stands from its start to its end, and says how it began: how many branches, which items. Its values are
not recorded; a replay runs the branches over their own records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NoReturn

from durableflow.authoring.group_calls import GatherCall, MapCall
from durableflow.core import codec, failures
from durableflow.core.exceptions import NonDeterminismError
from durableflow.core.statuses import StepKind
from durableflow.engine import scopes
from durableflow.engine.bodyoptions import options_of
from durableflow.engine.branch import Branch
from durableflow.engine.groups import Group
from durableflow.engine.journal import COMPLETE, FAILED, PENDING, Identity, Record
from durableflow.engine.replay import Scope
from durableflow.engine.session import Session

DIGEST: int = 16
"""Hex digits of an item's digest."""
FIRST_FAILURE: int = 500
"""Characters that the message of a group has for the first of its failures."""


Plan = Generator[tuple[list[Branch], bool], None, Any]
"""A group's way to its value: it yields the branches that have to be settled before it goes on, and whether they have been
before. Who settles them is left open: threads, or the tasks of an event loop."""


def gather(session: Session, scope: Scope, identity: Identity, record: Record | None, call: GatherCall) -> Any:
    """Run the branches, each in a scope of its own; a tuple of what they return, in their order.

    All are settled before an ExceptionGroup of the failures is raised (case ENG-11). Raises NonDeterminismError (by Unwind) for
    another number of branches than is recorded, InvalidDurableCall, LimitExceeded.
    """
    return _settled(session, scope, identity, call, plan_gather(session, identity, record, call))


def plan_gather(session: Session, identity: Identity, record: Record | None, call: GatherCall) -> Plan:
    """``gather`` without the settling."""
    made = [
        Branch(scopes.inner(identity, position), _run_in_scope(branch))
        for position, branch in enumerate(call.branches, start=1)
    ]
    record = begin(session, identity, record, {"branches": len(made)})
    begun = session.decode(record.config or "null", identity)
    if begun.get("branches") != len(made):
        session.replay.halt(
            NonDeterminismError(
                f"{session.claim.label}: gather {identity.label!r} began with {begun.get('branches')} branches, but run() gives it "
                f"{len(made)} now. Give the changed call another name, or put the old code back, and resume the instance."
            )
        )
    yield made, record.finished
    for branch in made:
        _check_met(session, branch.scope, identity)
    return tuple(end(session, identity, record, made, call.return_exceptions))


def map_items(session: Session, scope: Scope, identity: Identity, record: Record | None, call: MapCall) -> list[Any]:
    """One step per item, in one scope; the list of their values in the order of the items.

    An item is known by its position, and its digest is recorded: one that has changed is refused at a replay. Errors as
    ``gather``; CodecError for an item that cannot be stored.
    """
    found: list[Any] = _settled(session, scope, identity, call, plan_map(session, identity, record, call))
    return found


def plan_map(session: Session, identity: Identity, record: Record | None, call: MapCall) -> Plan:
    """``map_items`` without the settling."""
    inner = scopes.inner(identity)
    if record is None:
        session.require_room(identity, len(call.items))
    digests = [digest(item, f"item {number} of {identity.label!r}") for number, item in enumerate(call.items, start=1)]
    record = begin(session, identity, record, {"items": digests})
    check_digests(session, identity, record, digests, "items")
    made: list[Branch] = []
    todo: list[Branch] = []
    for number, item in enumerate(call.items, start=1):
        own = Identity(inner, StepKind.DO.value, identity.name, number)
        known = session.replay.records.get(own)
        branch = Branch(inner, _run_item(session, own, call, item), only=own)
        made.append(branch)
        if known is not None and known.finished:
            _settle_recorded(session, known, branch)
        else:
            todo.append(branch)
    if todo:
        yield todo, False
    return end(session, identity, record, made, call.return_exceptions)


def _settled(session: Session, scope: Scope, identity: Identity, call: GatherCall | MapCall, plan: Plan) -> Any:
    """Follow a plan, with threads that help."""
    try:
        while True:
            made, replayed = next(plan)
            Group(session, scope, identity, made, call.concurrency, replayed=replayed).settle()
    except StopIteration as over:
        return over.value


def begin(session: Session, identity: Identity, record: Record | None, config: dict[str, Any]) -> Record:
    """The record of a group, which is written before anything of it begins."""
    if record is not None:
        return record
    record = session.new_record(identity)
    record.status, record.config = PENDING, codec.dumps(config)
    session.write(record)
    return record


def end(
    session: Session, identity: Identity, record: Record, made: Sequence[Branch], return_exceptions: bool
) -> list[Any]:
    """Finish the record, and give what the branches gave or raise how they failed. Where a call was refused the others have not come
    to their ends: the group stays open, and goes on when the program is put right.

    What a branch itself raises is recorded nowhere: where a recorded group ends otherwise than it did, its record follows."""
    errors = [branch.error for branch in made if branch.error is not None]
    status = FAILED if errors and not return_exceptions else COMPLETE
    if record.status != status and session.replay.refusal is None:
        ended, record.status = record.finished, status
        if ended:
            session.correct(record)
        else:
            session.write(record)
    if errors and not return_exceptions:
        raise_group(session, identity, errors, len(made))
    return [branch.value if branch.error is None else branch.error for branch in made]


def raise_group(session: Session, identity: Identity, errors: list[Exception], of: int) -> NoReturn:
    """Raise the failures of a group; its message says what the first one is."""
    session.broken += [(error, identity) for error in errors]
    what = f"{len(errors)} of {of} branches of {identity.label!r} of {session.claim.label} failed. The first: "
    raise ExceptionGroup(what + _told(errors[0]), errors) from None


def _told(error: Exception) -> str:
    """A failure in one line, without what a sensitive step says."""
    shown = failures.public(failures.describe(error))
    words = [shown["step"], shown["type"], shown["message"]]
    return ": ".join(word for word in words if word)[:FIRST_FAILURE]


def digest(value: Any, what: str) -> str:
    """What tells two values apart. Raises CodecError that says ``what`` cannot be stored."""
    return hashlib.sha256(codec.dumps(value, what=what).encode()).hexdigest()[:DIGEST]


def check_digests(session: Session, identity: Identity, record: Record, digests: list[str], what: str) -> None:
    """Stop where a group was begun with other values than it is given now."""
    begun = session.decode(record.config or "null", identity).get(what) or []
    if begun == digests:
        return
    changed = next(
        (number for number, pair in enumerate(zip(begun, digests, strict=False), start=1) if pair[0] != pair[1]),
        min(len(begun), len(digests)) + 1,
    )
    session.replay.halt(
        NonDeterminismError(
            f"{session.claim.label}: {identity.kind} {identity.label!r} began with {len(begun)} {what}, and run() gives it {len(digests)} "
            f"now; number {changed} is another one. Take {what} from params or from what a step returned, or put the old code back, "
            "and resume the instance."
        )
    )


def _run_in_scope(branch: Callable[[], Any]) -> Callable[[Scope], Any]:
    return lambda scope: branch()


def _run_item(session: Session, identity: Identity, call: MapCall, item: Any) -> Callable[[Scope], Any]:
    def run(scope: Scope) -> Any:
        session.replay.guard(scope, f"{call.kind} {call.name!r}")
        session.check_alive()
        record = session.replay.meet(scope, identity)
        if record is not None and record.finished:
            return session.recorded(record)
        if session.dry:
            session.suspend(scope, None, identity)
        options = options_of(session, identity.label, record, call)
        return session.body_run(session, scope, identity, record, options).run(partial(call.fn, item))

    return run


def _settle_recorded(session: Session, record: Record, branch: Branch) -> None:
    """Without a pass of its own: most items of a replay are recorded."""
    record.met = True
    if record.status == FAILED:
        branch.error = session.failure(record)
    else:
        branch.value = session.recorded(record)


def _check_met(session: Session, name: str, identity: Identity) -> None:
    missed = session.replay.unmet(name)
    if missed is not None and session.replay.refusal is None:  # after one no branch gets further
        session.replay.halt(
            NonDeterminismError(
                f"{session.claim.label}: gather {identity.label!r} is over, but {missed.identity.kind} {missed.identity.label!r} "
                "is recorded in one of its branches and was not called this time. Branch on recorded values only, or put the "
                "old code back, and resume the instance."
            ),
            missed,
        )
