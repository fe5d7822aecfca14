"""Undoing what a run has done: its steps' handlers, the step that started last first (design 7, "Rollback"; case LIF-15).

The rollback begins with a commit: the error and the status ``rolling_back``. From then on whoever claims the instance finds the
handlers by a dry replay of ``run`` and goes on with the first that has not ended. Each runs as a step does: in attempts of its
own, with retries, a timeout and a start mark; what has ended never runs again. One that fails for good is recorded, and the rest
go on.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any, NoReturn

from django.db import Error

from durableflow.authoring.undo import AnyRollback
from durableflow.core import failures
from durableflow.core.exceptions import HandlerMissing, InvalidConfig, Terminated
from durableflow.core.outages import passes
from durableflow.core.retries import Retries
from durableflow.engine import endings, rollback_writes
from durableflow.engine.bodyoptions import BodyOptions, resolve
from durableflow.engine.dry import Dry, DryRun, dry_run
from durableflow.engine.execution import Execution
from durableflow.engine.interception import Interceptor
from durableflow.engine.journal import CANCELLED, PENDING, Record
from durableflow.engine.lease import Claim, Lease
from durableflow.engine.rollback_handlers import HandlerFailed, HandlerRun, Handlers
from durableflow.engine.rollback_writes import Handler, Undoing
from durableflow.engine.session import Session
from durableflow.engine.steps import load_journal
from durableflow.engine.watcher import let_go

logger = logging.getLogger("durableflow.engine")


class Search(Dry):
    """The dry replay that finds the handlers. A program that never ends in it is left to a person, as in any replay."""

    def _give_up(self, error: Exception) -> NoReturn:
        Session._give_up(self, error)


def fail(lease: Lease, described: dict[str, Any], *, leftovers: bool) -> bool:
    """End the instance with an error, or begin its rollback if something is to be undone: whether this thread goes on with that.

    Where somebody holds the instance's row both are left to the watcher, and the rollback to whoever claims then.
    """
    begun: list[bool] = []
    thread = threading.get_ident()

    def ending() -> None:
        if not rollback_writes.begin(lease, described):
            endings.fail(lease, described, leftovers=leftovers)
        elif threading.get_ident() == thread:
            begun.append(True)
        else:
            endings.give_back(lease)

    let_go(lease, ending)
    return bool(begun)


def roll_back(claim: Claim, cls: type[Any], params: Any, interceptor: Interceptor) -> None:
    """Run the handlers that have not ended. All have ended when this returns.

    Raises Unwind where the instance has to be let go before: suspended until a handler's next attempt, given back, blocked.
    """
    undone = rollback_writes.load(claim.lease, claim.run_number)
    left = [handler for handler in undone.handlers if not handler.ended]
    if not left:
        return
    records = {
        record.identity: record for record in load_journal(claim.lease, claim.run_number, ordered=cls.run_is_async)
    }
    dry = dry_run(claim, cls, [_as_it_was(record) for record in records.values()], params, make=Search)
    _check_database(dry, left)
    session = _ready(dry, interceptor)
    for handler in left:
        Session.check_alive(session)
        forward, rollback = records[handler.identity], dry.handlers.get(handler.identity)
        if rollback is None:
            _missing(session, forward, handler, dry.error)
        else:
            _undo(session, forward, handler, rollback, undone)


def _check_database(dry: DryRun, left: list[Handler]) -> None:
    """Raise what kept the replay from finding handlers, where that passes by itself: the database is away, and nobody knows
    which handlers there are. A failure that is recorded is none of that."""
    error = dry.error
    if all(handler.identity in dry.handlers for handler in left) or not isinstance(error, Error):
        return
    if passes(error) and not any(error is known for known, _ in dry.execution.errors):
        raise error


def _as_it_was(record: Record) -> Record:
    """A record without the cancellation that an earlier end of this rollback has made: what was open is not recorded, but the
    branches of a group are."""
    return replace(record, status=PENDING) if record.status == CANCELLED else record


def _ready(dry: DryRun, interceptor: Interceptor) -> Execution:
    """The dry replay's session, for the handlers: what ``step`` they hold refuses their durable calls as it does a body's."""
    session = dry.execution
    session.replay.stop = session.replay.root.stop = None
    session.replay.forget_refusal()
    session.interceptor = Handlers(interceptor)
    session.dry, session.replay.undoing = False, True
    return session


def _undo(session: Execution, forward: Record, handler: Handler, rollback: AnyRollback, undone: Undoing) -> None:
    try:
        run = HandlerRun(session, forward, handler, _options(session, forward, rollback))
    except InvalidConfig as error:
        _fail(session, forward, handler, error)
        return
    try:
        run.undo(rollback, _error(session, undone))
    except HandlerFailed:
        label = forward.identity.label
        logger.error("%s: the rollback of step %s failed", session.claim.label, label, extra=_extra(session))


def _error(session: Session, undone: Undoing) -> Exception:
    """What ended the run, for a handler of its own: it may change it."""
    if undone.error is None:
        return Terminated(f"{session.claim.label} was terminated with rollback.")
    return failures.rebuild(undone.error)


def _extra(session: Session) -> dict[str, Any]:
    return {"instance": session.lease.pk}


def _options(session: Session, forward: Record, rollback: AnyRollback) -> BodyOptions:
    """Those of today's code: an operator may have to change what a handler that fails has. ``Rollback`` over Meta over the
    settings."""
    retries: Any = rollback.retries
    timeout: Any = rollback.timeout
    label = f"{forward.identity.label} (rollback)"
    return replace(resolve(session, label, None, retries, timeout, forward.sensitive, False), rollback=True)


def _missing(session: Execution, forward: Record, handler: Handler, error: Exception | None) -> None:
    """Today's code gives no handler for a step that is to be undone."""
    why = "" if error is None else f" (run() came no further than {type(error).__name__}: {error})"
    label = forward.identity.label
    _fail(
        session,
        forward,
        handler,
        HandlerMissing(
            f"Step {label!r} of {session.claim.label} is to be undone, but today's run() gives no rollback handler for it{why}. "
            "Put rollback= back into that call, and retry() the instance: only the handlers that failed run then."
        ),
    )


def _fail(session: Execution, forward: Record, handler: Handler, error: Exception) -> None:
    """A handler fails without an attempt."""
    run = HandlerRun(session, forward, handler, BodyOptions(Retries(limit=0), 0.0, forward.sensitive, False, True))
    logger.error("%s", error, extra=_extra(session))
    run.write_failed(run.describe(error), session.claim.db_now())
