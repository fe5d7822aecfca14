"""Undoing what a run has done: its steps' handlers, the step that started last first (design 7, "Rollback"; case LIF-15).

The rollback begins with a commit: the error and the status ``rolling_back``. From then on whoever claims the instance finds the
handlers by a dry replay of ``run`` and goes on with the first that has not ended. Each runs as a step does: in attempts of its
own, with retries, a timeout and a start mark; what has ended never runs again. One that fails for good is recorded, and the rest
go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn

from django.db import Error

from durableflow.authoring.context import Lazy, StepContext, idempotency_key
from durableflow.authoring.undo import AnyRollback, Undo
from durableflow.core import failures
from durableflow.core.exceptions import HandlerMissing, InvalidConfig, StepTimeout, Terminated
from durableflow.core.outages import passes
from durableflow.core.retries import Retries
from durableflow.engine import endings, rollback_writes
from durableflow.engine.bodies import BodyRun
from durableflow.engine.bodyoptions import BodyOptions, resolve
from durableflow.engine.dry import DryRun, dry_run
from durableflow.engine.interception import Interceptor
from durableflow.engine.journal import COMPLETE, Identity, Record
from durableflow.engine.lease import Claim, Lease
from durableflow.engine.rollback_writes import Handler, State, Undoing
from durableflow.engine.session import Session
from durableflow.engine.steps import Entry, load_journal
from durableflow.engine.watcher import let_go

logger = logging.getLogger("durableflow.engine")
KIND: Final = "rollback"
"""What interceptors see in place of the step's kind."""


class HandlerFailed(Exception):
    """A handler has failed for good, and that is recorded."""


class Handlers(Interceptor):
    """What intercepts bodies sees that these are handlers: a mock of the step is none of its handler."""

    def __init__(self, interceptor: Interceptor) -> None:
        self._interceptor = interceptor

    def body(self, workflow: str, identity: Identity, attempt: int, body: Callable[[], Any]) -> Callable[[], Any]:
        """See ``Interceptor``."""
        return self._interceptor.body(workflow, identity._replace(kind=KIND), attempt, body)

    def before_checkpoint(self, workflow: str, identity: Identity, attempt: int) -> None:
        """See ``Interceptor``."""
        self._interceptor.before_checkpoint(workflow, identity._replace(kind=KIND), attempt)

    def before_exit(self) -> None:
        """See ``Interceptor``."""
        self._interceptor.before_exit()


class HandlerRun(BodyRun):
    """One handler's way to its end or to the suspension until its next attempt: a body whose writes go to the columns of the
    rollback."""

    def __init__(self, session: Session, forward: Record, handler: Handler, options: BodyOptions) -> None:
        record = Record(
            handler.identity,
            forward.seq,
            session.claim.execution,
            forward.key_run,
            handler.state.status,
            attempts=handler.state.attempts,
            attempts_before_retry=handler.used_before,
            wake_at=handler.wake_at,
            token=session.lease.token,  # whoever wrote an open start mark: its attempt was lost
            config="",
        )
        super().__init__(session, session.replay.root, handler.identity, record, options)
        self._forward, self._written = forward, handler.state

    @property
    def always_marked(self) -> bool:
        """No handler begins without a start mark."""
        return True

    def write(
        self,
        started: Any,
        *entries: Entry,
        record: Record | None = None,
        wake_in: float | None = None,
        unshaken: bool = False,
    ) -> Any:
        """See ``StepRun``."""
        wanted = record or self.record
        run_number = self.session.claim.run_number
        wake_at = rollback_writes.write_handler(
            self.lease, run_number, wanted, self._written, entries, wake_in, unshaken
        )
        self._written = State(wanted.status, wanted.attempts)
        return wake_at

    def context(self, started: datetime) -> Lazy:
        """That of the step: the attempt that it reached, the same idempotency key; the deadline is the handler's."""
        claim, identity, forward = self.session.claim, self.identity, self._forward
        return Lazy(
            lambda: StepContext(
                name=identity.name,
                count=identity.count,
                attempt=forward.attempts,
                instance_id=claim.instance_id,
                workflow=claim.workflow,
                run_number=claim.run_number,
                idempotency_key=idempotency_key(claim.seed, forward.key_run, *identity),
                deadline=started + timedelta(seconds=self.options.timeout),
                config=self.session.decode(forward.config or "{}", identity),
            )
        )

    def undo(self, rollback: AnyRollback, error: Exception) -> None:
        """Make one attempt, or unwind until the next. Raises HandlerFailed after the last."""
        forward = self._forward
        completed = forward.status == COMPLETE
        output = self.session.recorded(forward) if completed else None

        def body() -> None:
            rollback.handler(Undo(completed=completed, output=output, error=error, context=self._context()))

        self.run(body)

    def describe(self, error: BaseException) -> dict[str, Any]:
        """For people alone: nobody rebuilds a handler's error. Of a sensitive step nothing but its type is kept."""
        return self.shown(super().describe(error))

    def timeout_error(self) -> StepTimeout:
        """See ``StepRun``."""
        return StepTimeout(
            f"{self.lease.label}: the rollback handler of step {self.identity.label!r} took longer than its timeout of "
            f"{self.options.timeout:g} seconds."
        )

    def mark_running(self) -> None:
        """It is marked already."""

    def _failed(self, error: BaseException) -> Any:
        self.session.replay.refusal = None  # it fails this handler, which is not tried again, and nothing else
        return super()._failed(error)

    def raise_failed(self) -> NoReturn:
        """The handler has failed; nothing is raised into ``run``."""
        raise HandlerFailed


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
    records = {record.identity: record for record in load_journal(claim.lease, claim.run_number)}
    dry = dry_run(claim, cls, list(records.values()), params)
    if dry.error is not None and isinstance(dry.error, Error) and passes(dry.error):
        raise dry.error  # the database is away: nobody knows which handlers there are
    session = _ready(dry, interceptor)
    for handler in left:
        Session.check_alive(session)
        forward, rollback = records[handler.identity], dry.handlers.get(handler.identity)
        if rollback is None:
            _missing(session, forward, handler, dry.error)
        else:
            _undo(session, forward, handler, rollback, undone)


def _ready(dry: DryRun, interceptor: Interceptor) -> Session:
    """The dry replay's session, for the handlers: what ``step`` they hold refuses their durable calls as it does a body's."""
    session = dry.execution
    session.replay.stop = session.replay.root.stop = session.replay.refusal = None
    session.interceptor = Handlers(interceptor)
    return session


def _undo(session: Session, forward: Record, handler: Handler, rollback: AnyRollback, undone: Undoing) -> None:
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


def _missing(session: Session, forward: Record, handler: Handler, error: Exception | None) -> None:
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


def _fail(session: Session, forward: Record, handler: Handler, error: Exception) -> None:
    """A handler fails without an attempt."""
    run = HandlerRun(session, forward, handler, BodyOptions(Retries(limit=0), 0.0, forward.sensitive, False, True))
    logger.error("%s", error, extra=_extra(session))
    run.write_failed(run.describe(error), session.claim.db_now())
