"""Executing a claim from its first line to its exit (design 4 "Executor exits", 6)."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, Final

from django.db import Error, connections

from durableflow.authoring.events import freeze
from durableflow.core import atomicity, codec, dispatch, failures, registry
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import CodecError, InvalidDurableCall, SuspensionSwallowed, WorkflowTimeout
from durableflow.core.outages import passes
from durableflow.engine import branches, continuing, endings, rollback, rollback_writes, shutdown, starvation
from durableflow.engine.blame import broken_groups, failed_steps
from durableflow.engine.execution import Execution
from durableflow.engine.interception import PASS, Interceptor
from durableflow.engine.isolation import hand_back, room, turn_away
from durableflow.engine.lease import Claim, Lease
from durableflow.engine.program import run_program
from durableflow.engine.replay import swallowed
from durableflow.engine.session import Session
from durableflow.engine.steps import load_journal
from durableflow.engine.timeouts import clean_connections, fresh
from durableflow.engine.unwind import (
    Block,
    Drop,
    Expire,
    GiveBack,
    LeaseLost,
    Pause,
    ProcessDied,
    Renew,
    Suspend,
    Unwind,
    WriteFailed,
)
from durableflow.engine.watcher import held, let_go, watcher
from durableflow.models.undoing import HAS_HANDLER

logger = logging.getLogger("durableflow.engine")
MAX_INTERRUPTIONS: Final = 10
MAX_GIVE_BACKS: Final = 10
HINT_WITHIN: Final = 1.5  # seconds: a broker looks once a second anyway


def execute(claim: Claim, *, interceptor: Interceptor = PASS, renew: bool = True) -> None:
    """Run a claimed instance until it suspends, ends, is blocked or given back, and let it go.

    Whatever goes wrong with one instance stays with it (case CON-07). Raises KeyboardInterrupt and SystemExit after
    giving it back.
    """
    if not renew:
        _contained(claim, interceptor)
    else:
        with watcher().holding(claim.lease), room().entered(claim) as admitted:
            if admitted:
                _contained(claim, interceptor)
            else:
                _turn_away(claim)
        if not held():
            branches.rest()
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _contained(claim: Claim, interceptor: Interceptor) -> None:
    try:
        with atomicity.baseline():
            try:
                with shutdown.interruptible():
                    _execute(claim, interceptor)
            except (KeyboardInterrupt, SystemExit):
                clean_connections()  # it may have hit in the middle of a query or of a transaction
                raise
    except LeaseLost:
        logger.info(
            "%s: the lease was lost; this execution's work is dropped",
            claim.label,
            extra={"instance": claim.lease.pk},
        )
    except ProcessDied:
        raise
    except (KeyboardInterrupt, SystemExit):
        _give_back_after_signal(claim)
        raise
    except WriteFailed as failed:
        _block_after_failure(claim, failed.error)
    except MemoryError as error:
        starvation.leave(claim, error)
    except Exception as error:
        if isinstance(error, Error) and passes(error):
            _give_back_after_outage(claim, error)
        else:
            _block_after_failure(claim, error)


def _turn_away(claim: Claim) -> None:
    """Another instance is to be alone in this process."""
    try:
        turn_away(claim)
    except (Exception, LeaseLost, WriteFailed):
        logger.exception("%s could not be given back; its lease will expire", claim.label)


def _give_back_after_signal(claim: Claim) -> None:
    """A signal may hit between any two lines of ours: nobody shall wait for the lease to end (design 4, "Executor exits")."""
    try:
        hand_back(claim, uncharged=claim.uncharged)
    except LeaseLost:
        pass  # run() was left in an orderly way, and the instance has been given back already
    except (Exception, WriteFailed):
        logger.exception("%s could not be given back; its lease will expire", claim.label)


def _give_back_after_outage(claim: Claim, error: Error) -> None:
    """The database was away where nobody tries again. No person is needed for that, unless it goes on (case CON-07)."""
    logger.warning("%s is given back, the database failed: %s", claim.label, error, extra={"instance": claim.lease.pk})
    try:
        hand_back(claim, uncharged=claim.uncharged, delay=1, count=True)
    except (Exception, LeaseLost, WriteFailed):
        logger.exception("%s could not be given back; its lease will expire", claim.label)


def _block_after_failure(claim: Claim, error: Exception) -> None:
    logger.error("%s: the engine failed", claim.label, extra={"instance": claim.lease.pk}, exc_info=error)
    reason = f"The engine failed: {type(error).__name__}: {error}"
    try:
        try:
            endings.block(claim.lease, reason, lost=claim.lost_mark)
        except WriteFailed:  # the body may have left its session in a state in which nothing can be written
            fresh(claim.lease.using)
            endings.block(claim.lease, reason, lost=claim.lost_mark)
    except (Exception, LeaseLost, WriteFailed):
        logger.exception("%s could not be blocked; its lease will expire", claim.label)


def _execute(claim: Claim, interceptor: Interceptor) -> None:
    if claim.lease.pausing:  # whoever was to pause it is gone
        _pause(claim)
        return
    cls = registry.find(claim.workflow)
    reason = _refusal(claim, cls)
    if reason or cls is None:
        endings.block(claim.lease, reason, lost=claim.lost_mark)
        return
    if claim.rolling_back:
        _roll_back(claim, interceptor)
        return
    if claim.deadline_at is not None and claim.now >= claim.deadline_at:
        error = WorkflowTimeout(
            f"{claim.label} did not finish by {claim.deadline_at:%Y-%m-%d %H:%M:%S %Z} (max_duration)."
        )
        claim.lease.children = not claim.first
        _fail(claim, interceptor, failures.describe(error), leftovers=True, undo=not claim.first)
        return
    records = [] if claim.first else load_journal(claim.lease, claim.run_number, ordered=cls.run_is_async)
    try:
        params = _params(claim)
    except CodecError as unreadable:
        endings.block(claim.lease, f"The params cannot be read: {unreadable}", lost=claim.lost_mark)
        return
    execution = Execution(claim, cls, records, interceptor)
    try:
        output = run_program(cls, params, execution)
        _check_end(execution)
        text = codec.dumps(output, what=f"output of {claim.label}", max_bytes=get_settings().LIMITS.output)
    except (ProcessDied, LeaseLost, WriteFailed):
        raise
    except BaseException as raised:
        _leave(execution, raised)
    else:
        leftovers = _leftovers(execution)
        let_go(claim.lease, lambda: endings.complete(claim.lease, text, leftovers=leftovers))


def _params(claim: Claim) -> Any:
    return freeze(None if claim.params is None else codec.loads(claim.params))


def _roll_back(claim: Claim, interceptor: Interceptor) -> None:
    """Go on with the rollback, up to the end of the instance."""
    cls: Any = registry.find(claim.workflow)  # this process knows it
    try:
        params = _params(claim)
    except CodecError as unreadable:
        endings.block(claim.lease, f"The params cannot be read: {unreadable}", lost=claim.lost_mark)
        return
    session = Session(claim, cls, [])
    claim.uncharged = False  # a lost attempt of a handler is known by its start mark
    try:
        rollback.roll_back(claim, cls, params, interceptor)
    except Unwind as stop:
        _apply(session, stop.outcome)
    else:
        let_go(claim.lease, lambda: rollback_writes.finish(claim.lease))


def _refusal(claim: Claim, cls: type[Any] | None) -> str:
    """Why this process must not run the instance, '' if it may."""
    if cls is None:
        known = ", ".join(registry.names()) or "none"
        return f"No workflow is named {claim.workflow!r} here (known: {known}). Put its code back, or rename it back, and resume."
    if claim.code_version > cls.options.version:
        return (
            f"It needs version {claim.code_version} of workflow {claim.workflow!r}; this worker has version "
            f"{cls.options.version}. Deploy it and resume."
        )
    if claim.interruptions >= MAX_INTERRUPTIONS:
        return f"Its worker was lost {claim.interruptions} times in a row without progress. See what kills the process, then resume."
    if claim.give_backs >= MAX_GIVE_BACKS:
        return (
            f"It was given back, or cut off by a stop, {claim.give_backs} times in a row without progress. "
            "See what ends the process, then resume."
        )
    return ""


def _check_end(execution: Execution) -> None:
    """``run`` has returned. Was it allowed to?"""
    replay = execution.replay
    if replay.stop is not None or replay.refusal is not None:
        return_after = SuspensionSwallowed(f"{replay.where}: run() returned although it was stopped.")
        raise return_after
    if block := atomicity.opened():
        atomicity.abandon_opened()
        raise InvalidDurableCall(f"run() of {replay.where} left {block} open: what it wrote there is rolled back.")
    replay.check_end()


def _leave(execution: Execution, raised: BaseException) -> None:
    """``run`` ended with an exception: an unwinding of ours, an error, or a signal to stop."""
    replay, claim = execution.replay, execution.claim
    if atomicity.opened():
        atomicity.abandon_opened()
    stop = replay.stop
    if isinstance(raised, KeyboardInterrupt) and shutdown.requested():
        raise raised  # execute() gives the instance back
    if stop is not None:
        outcome = stop.outcome
        if isinstance(outcome, Suspend) and raised is not stop:
            outcome = Block(swallowed(replay.where, outcome, raised))
        _apply(execution, outcome)
    elif replay.refusal is not None and not _contains(raised, replay.refusal):
        execution.block(replay.refusal)
    elif isinstance(raised, KeyboardInterrupt | SystemExit | GeneratorExit):
        hand_back(claim, uncharged=claim.uncharged, delay=1, count=True)
        if not isinstance(raised, GeneratorExit):
            raise raised
    else:
        _end_with_error(execution, raised)


def _apply(execution: Session, outcome: Any) -> None:
    lease = execution.lease
    if isinstance(outcome, Suspend):
        let_go(lease, lambda: _suspend(lease, outcome.wake_at))
    elif isinstance(outcome, Block):
        execution.block(outcome.error, outcome.astray)
    elif isinstance(outcome, Expire):
        claim = execution.claim
        _fail(claim, execution.interceptor, failures.describe(outcome.error), leftovers=True, undo=_undoable(execution))
    elif isinstance(outcome, GiveBack):
        hand_back(execution.claim, uncharged=execution.claim.uncharged)
        if outcome.stop:
            raise KeyboardInterrupt
    elif isinstance(outcome, Pause):
        _pause(execution.claim)
    elif isinstance(outcome, Renew):
        let_go(lease, lambda: continuing.renew(lease, execution.run_number, outcome))
    elif isinstance(outcome, Drop):
        raise LeaseLost(lease.label)


def _end_with_error(execution: Execution, raised: BaseException) -> None:
    if execution.refused is not None:
        execution.refused.fail_refused()
    described = execution.describe(raised, None, sensitive=False)
    found = failed_steps(raised, execution.errors)
    if found:
        described["step"] = found[0].label
        described["steps"] = [list(identity) for identity in found]
    groups = broken_groups(raised, execution.broken, execution.errors)
    if groups:
        described["groups"] = [list(identity) for identity in groups]
    leftovers, undo = _leftovers(execution), _undoable(execution)
    _fail(execution.claim, execution.interceptor, described, leftovers=leftovers, undo=undo)


def _fail(claim: Claim, interceptor: Interceptor, described: dict[str, Any], *, leftovers: bool, undo: bool) -> None:
    """End the instance with an error. ``undo``: there may be steps to undo before."""
    if not undo:
        let_go(claim.lease, lambda: endings.fail(claim.lease, described, leftovers=leftovers))
    elif rollback.fail(claim.lease, described, leftovers=leftovers):
        claim.lease.pausing = False  # what is being undone is not paused
        _roll_back(claim, interceptor)


def _pause(claim: Claim) -> None:
    """Let go of an instance that is to be paused; where that was taken back in the meantime it is due at once."""

    def ending() -> None:
        if endings.give_back(claim.lease, lost=claim.lost_mark):
            dispatch.hint(claim.lease.using)

    let_go(claim.lease, ending)


def _suspend(lease: Lease, wake_at: datetime | None) -> None:
    seconds = endings.suspend(lease, wake_at)
    if seconds is not None and seconds < HINT_WITHIN:
        dispatch.hint(lease.using)


def _contains(raised: BaseException, wanted: BaseException) -> bool:
    """Whether ``wanted`` is ``raised``, one of its causes or contexts, or a member of a group among them."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [raised]
    while todo:
        error = todo.pop()
        if error is None or id(error) in seen:
            continue
        if error is wanted:
            return True
        seen.add(id(error))
        todo += [error.__cause__, error.__context__]
        if isinstance(error, BaseExceptionGroup):
            todo += error.exceptions
    return False


def _undoable(execution: Session) -> bool:
    """Whether a step that may have started has a rollback handler."""
    return any(HAS_HANDLER in (record.config or "") for record in execution.replay.records.values())


def _leftovers(execution: Execution) -> bool:
    return any(not record.finished for record in execution.replay.records.values())
