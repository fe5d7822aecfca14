"""``replay_check``: does today's code fit what running instances have recorded? (design 5, 6; cases ENG-04, TST-06.)

``run`` is replayed over a recorded journal, without a write and without a body. What a worker would find out at its first
execution after a deploy is found out before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from durableflow.authoring.events import freeze
from durableflow.core import codec, registry
from durableflow.core.exceptions import CodecError, NonDeterminismError, SuspensionSwallowed
from durableflow.core.scopenames import groups_of
from durableflow.core.statuses import FINISHED, Status, StepKind
from durableflow.engine.dry import DryRun, dry_run
from durableflow.engine.journal import Identity, Record
from durableflow.engine.replay import UNCOUNTED
from durableflow.engine.timeouts import Deadline
from durableflow.models import WorkflowInstance
from durableflow.testing.recorded import RecordedRun, files, load, recorded_run
from durableflow.testing.stand_ins import Check

MOST_TOLD: Final = 5
MOST_SECONDS: Final = 30.0
"""For the replay of one run, in the main thread of the process; elsewhere nothing can end it."""
_KEEP: Final = (
    "Keep it for runs in progress: put the new code where step.patched(...) is true, and the old code where it is not."
)
_RENAME: Final = "Give the new call another name, or make it only where step.patched(...) is true."
_ACCEPT: Final = "Let run() accept what is recorded, or put the new code where step.patched(...) is true."
_ENDED_BY_ERROR: Final = frozenset({Status.ERRORED, Status.ROLLING_BACK})


@dataclass(frozen=True, kw_only=True)
class Break:
    """An instance that today's code cannot replay. ``step``: where; ``expected``: what is recorded; ``found``: what ``run`` does in
    its place; ``cure``: what to do about it."""

    workflow: str
    instance_id: str
    status: str
    step: str
    expected: str
    found: str
    message: str
    cure: str

    def __str__(self) -> str:
        return f"{self.workflow}/{self.instance_id} ({self.status}): {self.message} {self.cure}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Fit:
    """An instance that today's code can replay, as far as can be known. ``met`` of its ``recorded`` calls were met; ``inserted``: new
    calls, which would run; ``unchecked``: recorded calls behind ``needed``, whose value nobody knows yet; ``unhandled``: steps
    that began with a rollback handler and have none in today's code: a rollback would fail there."""

    workflow: str
    instance_id: str
    status: str
    recorded: int
    met: int
    inserted: tuple[str, ...] = ()
    needed: str = ""
    unchecked: int = 0
    unhandled: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What is worth telling of it, '' if nothing."""
        told = [f"new {call} would run here" for call in self.inserted[:MOST_TOLD]]
        if len(self.inserted) > MOST_TOLD:
            told.append(f"and {len(self.inserted) - MOST_TOLD} more")
        if self.unchecked:
            calls = "call after it was" if self.unchecked == 1 else "calls after it were"
            behind = f"run() depends on the value of {self.needed}, which is not known here"
            told.append(f"{behind if self.needed else 'behind that'}: {self.unchecked} recorded {calls} not checked")
        if self.unhandled:
            names = ", ".join(self.unhandled[:MOST_TOLD]) + (", ..." if len(self.unhandled) > MOST_TOLD else "")
            told.append(f"no rollback handler any more for {names}: a rollback would fail there; put rollback= back")
        return "; ".join(told)

    def __str__(self) -> str:
        note = f"; {self.note}" if self.note else ""
        return f"{self.workflow}/{self.instance_id} ({self.status}): {self.met} of {self.recorded} recorded calls met{note}"


@dataclass
class ReplayReport:
    """What a check has found; as a text, one line for each run."""

    fits: list[Fit] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([*(f"BREAKS  {found}" for found in self.breaks), *(f"fits    {found}" for found in self.fits)])


class ReplayBroken(NonDeterminismError, AssertionError):
    """Today's code does not fit recorded runs. ``report`` has each of them."""

    def __init__(self, report: ReplayReport) -> None:
        self.report = report
        super().__init__(
            f"{len(report.breaks)} of {len(report.breaks) + len(report.fits)} recorded runs do not fit today's code:\n"
            + "\n".join(f"- {found}" for found in report.breaks)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.report,))


def replay_check(path_or_instance: str | Path | WorkflowInstance) -> ReplayReport:
    """Check that today's code fits a recorded run: of a stored instance, of a JSON file that ``check-replay --save`` has written,
    or of each such file in a folder.

    Nothing is written, no body runs and nothing is sent. Code between the steps does run, as in every replay. Raises
    ReplayBroken (an AssertionError and a NonDeterminismError) that lists each break with its instance, what is recorded, what
    ``run`` does and the cure; ValueError for a file that is no recorded run.
    """
    if isinstance(path_or_instance, WorkflowInstance):
        runs = [recorded_run(path_or_instance)]
    else:
        runs = [load(file) for file in files(Path(path_or_instance))]
    report = ReplayReport()
    for recorded in runs:
        add(report, check(recorded))
    if report.breaks:
        raise ReplayBroken(report)
    return report


def add(report: ReplayReport, found: Fit | Break) -> None:
    """Put a result where it belongs."""
    if isinstance(found, Break):
        report.breaks.append(found)
    else:
        report.fits.append(found)


def check(recorded: RecordedRun) -> Fit | Break:
    """Whether today's code fits this run."""
    cls = registry.find(recorded.workflow)
    if cls is None:
        return _broken(recorded, message=f"No workflow is named {recorded.workflow!r} here.", cure=_NAMED)
    if recorded.code_version > cls.options.version:
        return _broken(
            recorded,
            expected=f"version {recorded.code_version}",
            found=f"version {cls.options.version}",
            message=f"It needs version {recorded.code_version} of its workflow, and Meta.version is {cls.options.version}.",
            cure="Older code must not run it: deploy the newer one.",
        )
    try:
        params = freeze(None if recorded.params is None else codec.loads(recorded.params))
    except CodecError as error:
        return _broken(recorded, message=f"Its params cannot be read: {error}")
    limit = Deadline(MOST_SECONDS)
    try:
        verdict = limit.run(lambda: _verdict(recorded, cls, params))
        if verdict is not None:
            return verdict
        message = f"run() has not come to its next call within {MOST_SECONDS:g} seconds."
        return _broken(recorded, found="nothing", message=message, cure="Nothing but a durable call may wait in run().")
    except SystemExit as error:
        said = f"SystemExit: {error}"
        return _broken(recorded, found=said, message=f"run() raises {said}.", cure="Take it out of run().")


def _verdict(recorded: RecordedRun, cls: type[Any], params: Any) -> Fit | Break:
    verdict = _judge(recorded, _replayed(recorded, cls, params, guess=False))
    if isinstance(verdict, Fit) and verdict.unchecked:
        # Perhaps the new call is a recorded one under another name: with its value, does run() go on without calling that?
        return _renamed(recorded, _replayed(recorded, cls, params, guess=True)) or verdict
    return verdict


_NAMED: Final = "Put its code back, or name the workflow in Meta.previous_names of the class that has followed it."


def _replayed(recorded: RecordedRun, cls: type[Any], params: Any, *, guess: bool) -> DryRun:
    make = partial(Check, left_out=recorded.left_out, guess=guess)
    return dry_run(recorded.claim(), cls, recorded.journal(), params, make=make)


def _judge(recorded: RecordedRun, dry: DryRun) -> Fit | Break:
    execution = cast(Check, dry.execution)
    error = dry.error or execution.replay.refusal
    if error is None and dry.returned and execution.replay.stop is not None and execution.stopped is None:
        error = SuspensionSwallowed("run() returned although it was suspended.")
    guessing = execution.handed_out and not isinstance(error, NonDeterminismError)
    ended_so = recorded.status in _ENDED_BY_ERROR and not dry.blocked
    if error is None and (left := _left_in_a_branch(recorded, execution)):
        return left
    if error is None or guessing or ended_so:
        return _fit(recorded, dry, cut=error is not None and guessing)
    if isinstance(error, NonDeterminismError):
        return _diverged(recorded, dry, error)
    last = _call(execution.last) if execution.last is not None else "its beginning"
    said = execution.describe(error, None, sensitive=False)
    found = f"{said['type']}: {said['message']}"
    if dry.blocked:
        return _broken(recorded, step=last, found=found, message=f"After {last} it would be blocked: {found}", cure="")
    message = f"run() raises {found} after {last}."
    return _broken(recorded, step=last, found=found, message=message, cure=_ACCEPT)


def _fit(recorded: RecordedRun, dry: DryRun, *, cut: bool) -> Fit:
    execution = cast(Check, dry.execution)
    known = execution.replay.records
    own = [known[record.identity] for record in recorded.records if not _within(record.identity, known)]
    counted = [record for record in own if record.identity.kind not in UNCOUNTED]
    behind: list[Record] = []
    needed = ""
    if execution.stopped is not None:
        identity, scope = execution.stopped
        needed = _call(identity)
        behind = [
            record for record in counted if record.identity.scope == scope.name and not (record.met or record.freed)
        ]
    elif cut or dry.new:
        scopes = {identity.scope for identity in dry.new} | {""}
        behind = [record for record in counted if record.identity.scope in scopes and not (record.met or record.freed)]
    return Fit(
        workflow=recorded.workflow,
        instance_id=recorded.instance_id,
        status=recorded.status,
        recorded=len(counted),
        met=sum(record.met for record in counted),
        inserted=tuple(_call(identity) for identity in dry.new) if recorded.status not in FINISHED else (),
        needed=needed,
        unchecked=len(behind),
        unhandled=() if recorded.status in FINISHED else _unhandled(own, dry),
    )


def _unhandled(records: list[Record], dry: DryRun) -> tuple[str, ...]:
    begun = [record for record in records if record.met and record.config is not None]
    return tuple(
        _call(record.identity)
        for record in begun
        if record.identity.kind == StepKind.DO
        and record.identity not in dry.handlers
        and codec.loads(record.config or "{}").get("rollback")
    )


def _within(identity: Identity, known: dict[Identity, Record]) -> bool:
    """Whether the call is answered with the record of a group around it: a child of a join, what a race has tried."""
    return any(
        Identity(scope, kind, name, count) in known
        for scope, name, count in groups_of(identity.scope)
        for kind in (StepKind.CHILD.value, StepKind.RACE.value)
    )


def _left_in_a_branch(recorded: RecordedRun, execution: Check) -> Break | None:
    """A branch that has ended without its records: a worker finds that out when the other branches have ended too."""
    records = execution.replay.records
    for record in recorded.records:
        identity = record.identity
        own = records[identity]
        if not identity.scope or own.met or own.freed or identity.kind in UNCOUNTED:
            continue
        outer, name, count = next(groups_of(identity.scope), ("", "", 0))
        group = records.get(Identity(outer, StepKind.GATHER.value, name, count))
        scope = execution.scopes.get(identity.scope)
        if group is not None and group.met and (scope is None or scope.stop is None):
            what = _call(identity)
            message = f"{what} is recorded, but its branch ends without calling it.{_new(execution, identity.scope)}"
            return _broken(
                recorded, step=identity.label, expected=what, found="the end of its branch", message=message, cure=_KEEP
            )
    return None


def _diverged(recorded: RecordedRun, dry: DryRun, error: Exception) -> Break:
    execution = cast(Check, dry.execution)
    missed, last = execution.missed, execution.skipped_by or execution.last
    found = "the end of run()" if dry.returned or last is None else _call(last)
    if missed is None:
        # A group that began otherwise, or a value that cannot be read: the engine's own words say it best.
        return _broken(recorded, step=found, found=found, message=str(error))
    what, cure = _call(missed.identity), _KEEP
    new = _new(execution, missed.identity.scope)
    if dry.returned:
        message = f"{what} is recorded, but run() returns without calling it.{new}"
    elif execution.skipped_by is not None:
        message = f"{what} is recorded before {found}, but run() does not call it.{new}"
    elif last is not None and missed.identity[2:] == last[2:] and missed.identity.kind != last.kind:
        message, cure = f"{what} is recorded, but run() calls {found} under its name.", _RENAME
    else:
        message, found = f"{what} is recorded, but its branch ends without calling it.{new}", "the end of its branch"
    return _broken(recorded, step=missed.identity.label, expected=what, found=found, message=message, cure=cure)


def _new(execution: Check, scope: str) -> str:
    new = [_call(identity) for identity in execution.new if identity.scope == scope][:MOST_TOLD]
    return f" It calls {', '.join(new)}, new here." if new else ""


def _renamed(recorded: RecordedRun, dry: DryRun) -> Break | None:
    """With the value of the recorded call in place of the new one, ``run`` came to a later record and had not called that one."""
    execution = cast(Check, dry.execution)
    records = execution.replay.records.values()
    for new, record in execution.guessed.items():
        behind = any(other.met and other.seq > record.seq and other.identity.scope == new.scope for other in records)
        if behind and not record.met:
            what, found = _call(record.identity), _call(new)
            message = f"{what} is recorded, but run() calls {found} in its place."
            label = record.identity.label
            return _broken(recorded, step=label, expected=what, found=found, message=message, cure=_KEEP)
    return None


def _broken(recorded: RecordedRun, *, message: str, cure: str = "", **where: str) -> Break:
    return Break(
        workflow=recorded.workflow,
        instance_id=recorded.instance_id,
        status=recorded.status,
        step=where.get("step", ""),
        expected=where.get("expected", ""),
        found=where.get("found", ""),
        message=message,
        cure=cure,
    )


def _call(identity: Identity) -> str:
    """``do 'load-1'``."""
    return f"{identity.kind} {identity.label!r}"
