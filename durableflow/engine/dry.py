"""A replay that writes nothing: ``run`` over its records, up to what is not recorded (design 7 "Rollback"; ``replay_check``).

It is an ordinary replay, in which the first unfinished call of each scope unwinds that scope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from logging import LoggerAdapter
from typing import Any, NoReturn

from durableflow.authoring import calls
from durableflow.authoring.group_calls import MapCall, RaceCall
from durableflow.authoring.undo import AnyRollback
from durableflow.core import atomicity
from durableflow.core.statuses import StepKind
from durableflow.engine import replacement
from durableflow.engine.execution import Execution
from durableflow.engine.journal import CANCELLED, Identity, Record
from durableflow.engine.lease import Claim
from durableflow.engine.logs import ReplayLogger
from durableflow.engine.program import run_program
from durableflow.engine.racing import check_names
from durableflow.engine.replay import Scope
from durableflow.engine.scopes import inner
from durableflow.engine.unwind import Block, Suspend, Unwind


class Dry(Execution):
    """Answers durable calls from the journal alone. ``handlers``: the rollback handlers of the steps that were met, finished or
    not. ``new``: calls that have no record, where a replay would go on."""

    dry = True

    def __init__(self, claim: Claim, cls: type[Any], records: list[Record]) -> None:
        super().__init__(claim, cls, records)
        self.handlers: dict[Identity, AnyRollback] = {}
        self.new: list[Identity] = []

    def answer_as(self, scope: Scope, identity: Identity, call: calls.Call) -> Any:
        """A recorded answer; else the scope is unwound."""
        self.note(scope, identity, call)
        return super().answer_as(scope, identity, call)

    def note(self, scope: Scope, identity: Identity, call: calls.Call) -> None:
        """Take its handlers, and stop at what is not recorded."""
        if call.kind == StepKind.PATCH:
            return
        known = self.replay.records.get(identity)
        self.made(identity, call)
        if known is None or not (known.finished or call.kind in GROUPS):
            self.replay.meet(scope, identity)  # raises where the program has changed
            if known is not None and isinstance(call, RaceCall):
                check_names(self, identity, known, list(call.branches))
            self._stop_at(scope, identity, known)

    def made(self, identity: Identity, call: calls.Call) -> None:
        """Take its handlers when it is made: a task that a sibling's recorded failure cancels never comes to its answer."""
        super().made(identity, call)
        if isinstance(call, calls.DoCall) and call.rollback is not None:
            self.handlers[identity] = call.rollback
        if isinstance(call, MapCall) and call.rollback is not None:
            for number in range(1, len(call.items) + 1):
                self.handlers[Identity(inner(identity), StepKind.DO.value, call.name, number)] = call.rollback

    def _stop_at(self, scope: Scope, identity: Identity, known: Record | None) -> None:
        if known is None:
            self.new.append(identity)
        self.suspend(scope, None, identity)

    def _give_up(self, error: Exception) -> NoReturn:
        replacement.end(replacement.STUCK, str(error))

    @property
    def logger(self) -> LoggerAdapter[Any]:
        """Silent: whoever executes the instance writes its lines. Rollback handlers, which run after the replay, may speak."""
        return ReplayLogger(self.claim, lambda: self.dry)

    def check_alive(self) -> None:
        """A dry replay has no end but its own."""

    def set_progress(self, value: Any) -> None:
        """Nothing is shown of it."""
        self.replay.guard(self.scope(), "set_progress()")

    def write(self, record: Record, *entries: Any, **options: Any) -> Any:
        """Nothing is written."""

    def correct(self, record: Record) -> None:
        """Nor here."""


GROUPS = frozenset({StepKind.GATHER.value, StepKind.MAP.value})


@dataclass
class DryRun:
    """How a dry replay ended. ``error``: why it could not go on (NonDeterminismError ...), or what ``run`` raised. ``returned``:
    whether ``run`` came to its end; ``finished``: and had met all records. ``new``: where it would go on. ``unmet``: records that
    it has not met."""

    execution: Dry
    error: Exception | None = None
    blocked: bool = False
    returned: bool = False
    finished: bool = False
    output: Any = None
    new: list[Identity] = field(default_factory=list)
    unmet: list[Record] = field(default_factory=list)

    @property
    def handlers(self) -> dict[Identity, AnyRollback]:
        """Those of ``Dry``, but for the ones that would undo something else than their step has done."""
        traps = self.execution.traps
        if traps is None or not traps.trapped:
            return self.execution.handlers
        items = {inner(identity) for identity in traps.trapped if identity.kind == StepKind.MAP}
        handlers = self.execution.handlers.items()
        return {key: value for key, value in handlers if key not in traps.trapped and key.scope not in items}


def dry_run(
    claim: Claim,
    cls: type[Any],
    records: Sequence[Record],
    params: Any,
    *,
    make: Callable[[Claim, type[Any], list[Record]], Dry] = Dry,
) -> DryRun:
    """Replay ``run`` over copies of ``records``; ``params`` are frozen. Cancelled records count as unfinished. ``make``: of
    these, what answers the calls.

    Nothing is written and no body runs. Raises KeyboardInterrupt and SystemExit of a stop.
    """
    copies = [replace(record, met=False) for record in records if record.status != CANCELLED]
    execution = make(replace(claim, deadline_at=None), cls, copies)
    result = DryRun(execution)
    try:
        with atomicity.baseline():
            result.output = run_program(cls, params, execution)
            result.returned = True
            execution.replay.check_end()
        result.finished = True
    except Unwind as stop:
        _unwound(result, stop)
    except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:
        if not isinstance(error, GeneratorExit):
            raise
    except Exception as error:
        result.error = error
    result.new = execution.new
    result.unmet = [record for record in copies if not record.met and not record.freed]
    return result


def _unwound(result: DryRun, stop: Unwind) -> None:
    known = result.execution.replay.stop
    outcome = stop.outcome if known is None else known.outcome
    if isinstance(outcome, Block):
        result.error, result.blocked = outcome.error, True
    elif not isinstance(outcome, Suspend):
        raise stop
