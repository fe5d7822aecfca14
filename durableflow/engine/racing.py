"""``race``: branches that only wait; the one that is settled first wins, by the time at which it was settled (design 7).

Every branch is entered, so that its wait opens; it is unwound there. Then one transaction decides (``race_writes``). The record
names the winner, so that no replay finds another one (case ENG-07), and from then on its branch alone runs, over what is
recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from durableflow.authoring.calls import ApprovalCall, Call, Default, SleepCall, SleepUntilCall, WaitCall
from durableflow.authoring.group_calls import ChildCall, RaceCall
from durableflow.authoring.undo import Winner
from durableflow.core.exceptions import NonDeterminismError, NonRetryableError
from durableflow.engine import scopes
from durableflow.engine.children import open_child
from durableflow.engine.gathering import begin
from durableflow.engine.journal import PENDING, Identity, Record
from durableflow.engine.race_writes import Standing, Verdict, decide, stored_records
from durableflow.engine.replay import Scope, swallowed
from durableflow.engine.unwind import Drop, Suspend, Unwind
from durableflow.engine.waits import Answer, Outlook, UnreadableAnswer, open_wait

if TYPE_CHECKING:
    from durableflow.engine.execution import Execution

WAITS: Final = (WaitCall, ApprovalCall, SleepCall, SleepUntilCall, ChildCall)
CURE: Final = (
    "Each branch of a race makes one call, which only waits: wait_for_event, wait_for_approval, sleep, sleep_until or run_workflow. "
    "What follows belongs after the race. A race of bodies belongs inside one step, whose function starts them, returns the "
    "first result and stops the others."
)


class Entrant:
    """One branch in a race. ``identity``, ``record`` and ``call``: of its one durable call, when it has made it. ``decided``: the
    call gets its recorded answer."""

    def __init__(self, race: Identity, name: str, branch: Callable[[], Any], *, decided: bool) -> None:
        self.race, self.name, self.branch = race, name, branch
        self.scope = scopes.inner(race, name)
        self.decided = decided
        self.identity: Identity | None = None
        self.record: Record | None = None
        self.call: Any = None
        self.own: Scope | None = None
        self.pending_event = 0
        self.error: Exception | None = None

    def check(self, execution: Execution, identity: Identity, call: Call) -> None:
        """Refuse (sticky) what is no wait, and a second call."""
        where = f"race {self.race.label!r} of {execution.claim.label}: branch {self.name!r}"
        if not isinstance(call, WAITS):
            execution.replay.refuse(f"{where} calls {call.kind} {call.name!r}. {CURE}")
        if self.identity not in (None, identity):
            execution.replay.refuse(f"{where} makes a second call, {call.kind} {call.name!r}. {CURE}")
        self.identity, self.call = identity, call

    def enter(self, execution: Execution, scope: Scope, identity: Identity, call: Any) -> NoReturn:
        """The branch has come to its call: it is unwound there."""
        self.record, self.own = execution.replay.meet(scope, identity), scope
        execution.suspend(scope, None, identity)

    def open(self, execution: Execution, timed: bool) -> datetime | None:
        """Open what the branch waits for; the moment at which it wants to be looked at, None where it waits for something else.
        ``timed``: whether a sleep races, so that a wait needs no time of its own. Raises what keeps it from waiting."""
        identity, call, record = self.identity, self.call, self.record
        assert identity is not None  # noqa: S101
        if isinstance(call, ChildCall):
            self.record = record = open_child(execution, identity, record, call)
            return None if record.finished else record.wake_at
        if record is not None and record.finished:
            execution.recorded(record)
            return None
        if isinstance(call, WaitCall):
            self.record = record = record or execution.new_record(identity)
            if timed and isinstance(call.timeout, Default):
                call = replace(call, timeout=None)
            outlook = _opened(execution, record, call)
            record.status = PENDING
            if outlook.opened:
                record.wake_at = outlook.pending.deadline
            self.pending_event = outlook.pending.pk
            return record.wake_at
        if record is None or record.wake_at is None:
            record = execution.open_sleep(identity, call, record)
        self.record = record
        return record.wake_at

    def tell(self, execution: Execution) -> datetime | None:
        """Tell somebody of the wait, where the call says so; when to try that again, None where it is done."""
        if self.identity is None or self.own is None or not isinstance(self.call, WaitCall) or self.call.notify is None:
            return None
        wake_at = None if self.record is None else self.record.wake_at
        try:
            execution.tell(self.own, self.identity, self.call, Answer(self.pending_event, wake_at=wake_at))
        except Unwind as stop:
            if stop is not self.own.stop or not isinstance(stop.outcome, Suspend):
                raise
            again: datetime | None = stop.outcome.wake_at
            return again
        return None


def _opened(execution: Execution, record: Record, call: WaitCall) -> Outlook:
    try:
        return open_wait(execution.lease, execution.claim, record, call)
    except UnreadableAnswer as error:
        execution.replay.halt(error)
    except NonRetryableError as error:  # an unknown group, a context that cannot be stored
        execution.wait_refused(record, error)


def race(execution: Execution, scope: Scope, identity: Identity, record: Record | None, call: RaceCall) -> Winner[Any]:
    """The winner, or its error is raised. Raises NonDeterminismError (by Unwind) for other branches than are recorded,
    InvalidDurableCall (sticky) for a branch that does not just wait."""
    names = list(call.branches)
    record = begin(execution, identity, record, {"branches": names})
    if not record.finished:
        check_names(execution, identity, record, names)
        settle(
            execution,
            scope,
            record,
            entrants_of(identity, call, decided=False),
            lambda entrant, _scope: entrant.branch(),
        )
    entrant = winner_of(execution, identity, record, call)
    return Winner(entrant.name, _finish(execution, scope, entrant))


def settle(
    execution: Execution,
    scope: Scope,
    record: Record,
    entrants: list[Entrant],
    visit: Callable[[Entrant, Scope], Any],
) -> None:
    """Open all waits and decide; suspends the scope around the race where nothing is settled yet. May be called again then.

    ``visit``: makes the one call of a branch in the scope that it is given: by running the branch, or by answering the call that
    it has made (``Execution.answer_as``).
    """
    for entrant in entrants:
        _enter(execution, scope, entrant, visit)
    timed = any(isinstance(entrant.call, SleepCall | SleepUntilCall) for entrant in entrants)
    moments = [_attempt(execution, scope, entrant, partial(entrant.open, execution, timed)) for entrant in entrants]
    verdict = _judge(execution, record, entrants)
    if not verdict.decided:  # and nobody has an answer yet
        moments += [_attempt(execution, scope, entrant, partial(entrant.tell, execution)) for entrant in entrants]
        if any(entrant.error is not None for entrant in entrants):
            verdict = _judge(execution, record, entrants)
    if not verdict.decided:
        moments.append(verdict.wake_at)
        wake_at = min((moment for moment in moments if moment is not None), default=None)
        execution.suspend(scope, wake_at, record.identity)


def entrants_of(identity: Identity, call: RaceCall, *, decided: bool) -> list[Entrant]:
    """The branches, in their order."""
    return [Entrant(identity, name, branch, decided=decided) for name, branch in call.branches.items()]


def check_names(execution: Execution, identity: Identity, record: Record, names: list[str]) -> None:
    """Stop where the race was begun with other branches."""
    begun = execution.decode(record.config or "null", identity).get("branches")
    if begun != names:
        execution.replay.halt(
            NonDeterminismError(
                f"{execution.claim.label}: race {identity.label!r} began with the branches {', '.join(begun or ())}, but run() gives it "
                f"{', '.join(names)} now. Give the changed call another name, or put the old code back, and resume the instance."
            )
        )


def winner_of(execution: Execution, identity: Identity, record: Record, call: RaceCall) -> Entrant:
    """The recorded winner. Raises the recorded error of a race that failed."""
    name = execution.recorded(record)
    for entrant in entrants_of(identity, call, decided=True):
        if entrant.name == name:
            return entrant
    return execution.replay.halt(
        NonDeterminismError(
            f"{execution.claim.label}: branch {name!r} has won race {identity.label!r}, but run() gives it no such branch now. Put the "
            "old code back, and resume the instance."
        )
    )


def _judge(execution: Execution, record: Record, entrants: list[Entrant]) -> Verdict:
    """Decide the race, if it can be, and take what is decided over into memory."""
    broken = next((entrant.error for entrant in entrants if entrant.error is not None), None)
    error = None if broken is None else execution.describe(broken, record.identity, False)
    standings = [
        Standing(entrant.name, entrant.record, entrant.call)
        for entrant in entrants
        if entrant.record is not None and (entrant.error is None or not entrant.record.finished)
    ]
    names = [entrant.scope for entrant in entrants]
    try:
        verdict = decide(execution.lease, execution.claim, record, names, standings, error)
    except UnreadableAnswer as unreadable:
        execution.replay.halt(unreadable)
    if verdict.decided:
        execution.shaken = False
        for identity, status, output, text in stored_records(execution.lease, execution.claim, record.identity, names):
            known = execution.replay.records.get(identity)
            if known is not None:
                known.status, known.output, known.error, known.wake_at = status, output, text, None
    return verdict


def _attempt(
    execution: Execution, around: Scope, entrant: Entrant, work: Callable[[], datetime | None]
) -> datetime | None:
    """Do ``work`` for a branch; what is wrong with it is noted."""
    if entrant.error is not None:
        return None
    try:
        return work()
    except Exception as error:
        if execution.replay.stop is not None or error is execution.replay.refusal:
            raise
        entrant.error = error
        return None
    finally:
        if entrant.own is not None:
            _follow(around, entrant.own)


def _enter(execution: Execution, around: Scope, entrant: Entrant, visit: Callable[[Entrant, Scope], Any]) -> None:
    """Bring a branch to its call."""
    entrant.error = None
    scope = _scope(execution, around, entrant)
    replay = execution.replay
    try:
        with scopes.inside(scope):
            visit(entrant, scope)
    except Unwind as stop:
        if stop is not scope.stop or not isinstance(stop.outcome, Suspend):
            raise
        return
    except Exception as error:
        if replay.stop is not None or error is replay.refusal:
            raise
        if scope.stop is not None and isinstance(scope.stop.outcome, Suspend):
            replay.halt(swallowed(replay.where, scope.stop.outcome, error))
        entrant.error = error
        return
    finally:
        _follow(around, scope)
    if scope.stop is not None and isinstance(scope.stop.outcome, Suspend):
        replay.halt(swallowed(replay.where, scope.stop.outcome, None))
    replay.refuse(
        f"race {entrant.race.label!r} of {execution.claim.label}: branch {entrant.name!r} has returned without waiting for "
        f"anything. {CURE}"
    )


def _finish(execution: Execution, around: Scope, entrant: Entrant) -> Any:
    """Run the winner's branch, over its recorded answer."""
    scope = _scope(execution, around, entrant)
    with scopes.inside(scope):
        value = entrant.branch()
    check_met(execution, entrant)
    return value


def check_met(execution: Execution, entrant: Entrant) -> None:
    """The winner's branch is over: it must have asked for what was recorded."""
    missed = execution.replay.unmet(entrant.scope)
    if missed is not None:
        execution.replay.halt(
            NonDeterminismError(
                f"{execution.claim.label}: branch {entrant.name!r} of race {entrant.race.label!r} is over, but {missed.identity.kind} "
                f"{missed.identity.label!r} is recorded in it and was not called this time. Put the old code back, and resume the "
                "instance."
            ),
            missed,
        )


def _scope(execution: Execution, around: Scope, entrant: Entrant) -> Scope:
    scope = execution.replay.branch(entrant.scope, around.owner, around.wrappers)
    scope.lost, scope.entrant = around.lost, entrant
    return scope


def _follow(around: Scope, scope: Scope) -> None:
    """A thread that was given up in a branch has nothing more to do around it either."""
    if scope.stop is not None and isinstance(scope.stop.outcome, Drop):
        around.stop = scope.stop
