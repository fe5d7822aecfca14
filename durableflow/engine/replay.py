"""The replay core: identity, determinism and the sticky rules of suspension (design 6). Pure Python: neither Django nor
storage.

One ``Replay`` belongs to one execution. Each durable call *enters* (is it allowed here? what is its identity?) and then
*meets* its record, if there is one. What then happens (return, raise, execute, suspend) is the executor's. Scopes are
the branches of parallel work; the root has the name ''.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

from durableflow.core.exceptions import InvalidDurableCall, NonDeterminismError, SuspensionSwallowed
from durableflow.engine.journal import NOTIFY, PATCH, Identity, Record
from durableflow.engine.unwind import Block, Suspend, Unwind

MAX_REFUSED_CALLS: Final = 100
UNCOUNTED: Final = frozenset({NOTIFY, PATCH})
"""Kinds that a replay need not meet: they go with another record, or may be taken out of the program."""


class Scope:
    """One branch, as one pass over it sees it: which calls it has made, and which records it has not met yet.

    ``owner``: the thread that may make its calls. ``wrappers``: that thread's database connections, looked up once.
    ``replay``: whose scope it is. ``stop``: how this branch was suspended. ``lost``: where a thread of its own runs the branch:
    to be called when that thread is given up, with the moment from which the branch can go on.
    """

    def __init__(
        self,
        name: str,
        owner: int,
        records: Iterable[Record],
        *,
        replay: Replay | None = None,
        wrappers: Sequence[Any] = (),
    ) -> None:
        self.name = name
        self.owner = owner
        self.replay = replay
        self.wrappers = wrappers
        self.stop: Unwind | None = None
        self.lost: Callable[[Any], None] | None = None
        self.entrant: Any = None
        self.random: Any = None
        self.patches: dict[str, bool] = {}
        self.busy: Identity | None = None
        self.counts: dict[tuple[str, str], int] = {}
        self.ids = 0
        self.unmet = 0
        self._by_execution: dict[int, list[Record]] = {}
        self._position: dict[int, int] = {}
        self._kinds: dict[tuple[str, int], list[Record]] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take a recorded call into account; records come in the order of their ``seq``."""
        identity = record.identity
        if identity.kind not in UNCOUNTED:
            self._kinds.setdefault((identity.name, identity.count), []).append(record)
            if not record.freed:
                self._by_execution.setdefault(record.execution, []).append(record)
                self.unmet += 1

    def reserve(self, kind: str, name: str) -> Identity:
        """The identity of the next call of this kind and name."""
        count = self.counts.get((kind, name), 0) + 1
        self.counts[kind, name] = count
        return Identity(self.name, kind, name, count)

    def other_kind(self, identity: Identity) -> Record | None:
        """An unmet record under the same name and count but of another kind: the program was changed there (case
        ENG-04)."""
        for record in self._kinds.get((identity.name, identity.count), ()):
            if not record.met and not record.freed and record.identity.kind != identity.kind:
                return record
        return None

    def mark_met(self, record: Record) -> Record | None:
        """Mark it met; return the record that should have been met before it, if the program skipped one.

        Only records of one execution are compared: they were started in this order by one and the same code.
        """
        if record.met:
            return None
        record.met = True
        if record.freed or record.identity.kind in UNCOUNTED:
            return None
        self.unmet -= 1
        rows = self._by_execution[record.execution]
        position = self._position.get(record.execution, 0)
        while position < len(rows) and rows[position].met and rows[position] is not record:
            position += 1
        self._position[record.execution] = position
        return None if rows[position] is record else rows[position]

    def earlier_unmet(self, record: Record) -> Record | None:
        """What the same execution had started before ``record`` and this replay has not called yet. Changes nothing: another
        thread may be in ``mark_met``."""
        rows = self._by_execution.get(record.execution, ())
        position = self._position.get(record.execution, 0)
        while position < len(rows) and rows[position].met:
            position += 1
        return rows[position] if position < len(rows) and rows[position].seq < record.seq else None

    def forgive(self, before: int | None = None) -> None:
        """Take records that this replay has not met (those whose ``seq`` is below ``before``) for met: a task that the program has
        cancelled would have called them."""
        for rows in self._by_execution.values():
            for row in rows:
                if not row.met and (before is None or row.seq < before):
                    row.met = True
                    self.unmet -= 1

    def first_unmet(self) -> Record | None:
        """The earliest record that this replay has not met."""
        rows = [row for rows in self._by_execution.values() for row in rows if not row.met]
        return min(rows, key=lambda row: row.seq, default=None)


class Replay:
    """The journal of one run, met by one execution.

    ``where``: how messages name the instance. ``open_block``: names what transaction is open in the scope's thread where none
    may be, '' if none. ``give_up``: called when user code swallows the suspension for ever; it must not return. ``undoing``: what runs
    now is not the program but its rollback handlers.
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        where: str,
        owner: int,
        open_block: Callable[[Scope], str] = lambda scope: "",
        thread: Callable[[], int] = lambda: 0,
        give_up: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.records: dict[Identity, Record] = {}
        self.where = where
        self.stop: Unwind | None = None
        self.refusal: InvalidDurableCall | None = None
        self.refused_threads: set[int | None] = set()
        self.refused_calls = 0
        self.undoing = False
        self._open_block, self._thread, self.give_up = open_block, thread, give_up
        self._lock = threading.Lock()
        ordered = sorted(records, key=lambda record: record.seq)
        self.records = {record.identity: record for record in ordered}
        self.next_seq = ordered[-1].seq + 1 if ordered else 1
        self.root = Scope("", owner, (record for record in ordered if not record.identity.scope), replay=self)
        self._inner: dict[str, list[Record]] = {}
        for record in ordered:
            if record.identity.scope:
                self._inner.setdefault(record.identity.scope, []).append(record)

    def branch(self, name: str, owner: int, wrappers: Sequence[Any] = (), *, only: Identity | None = None) -> Scope:
        """A new pass over the scope ``name``, by the thread ``owner``: none of its records has been met yet. ``only``: over
        this one record (of a map, whose steps do not follow each other)."""
        if only is None:
            records = list(self._inner.get(name, ()))
        else:
            found = self.records.get(only)
            records = [] if found is None else [found]
        for record in records:
            record.met = False
        return Scope(name, owner, records, replay=self, wrappers=wrappers)

    def unmet(self, name: str) -> Record | None:
        """The earliest record of the scope ``name`` that the last pass over it has not met."""
        records = [record for record in self._inner.get(name, ()) if not (record.met or record.freed)]
        counted = [record for record in records if record.identity.kind not in UNCOUNTED]
        return min(counted, key=lambda record: record.seq, default=None)

    # Entering ---------------------------------------------------------------------------------------------------------

    def enter(self, scope: Scope, kind: str, name: str) -> Identity:
        """Check that a durable call is possible here and reserve its identity.

        Raises the sticky Unwind once the execution is stopping, InvalidDurableCall (sticky too) for a call from inside
        a body, from a thread that is not the scope's, or around an open transaction.
        """
        self.guard(scope, f"{kind} {name!r}")
        return scope.reserve(kind, name)

    def guard(self, scope: Scope, call: str) -> None:
        """The checks of ``enter`` for a call that has no identity of its own."""
        stop = self.stop or scope.stop
        if stop is not None:
            self._again(stop, call)
        if self.refusal is not None:
            self._count(self.refusal)
            raise self.refusal
        if scope.busy is not None:
            self.refuse(self.inside(call, scope.busy.label), scope.owner)
        if self._thread() != scope.owner:
            self.refuse(
                f"{call} of {self.where} was called from another thread. Durable calls belong to the thread that runs run(), or to "
                "that in which the engine runs a branch: use step.gather or step.map.",
                None,
            )
        if block := self._open_block(scope):
            self.refuse(
                f"{call} of {self.where} was called inside {block}. A suspension would roll that back: end the "
                "block before the call, or put "
                "it into a step's body."
            )

    def inside(self, call: str, label: str) -> str:
        """What is wrong with a durable call from the body of this step, or from its rollback handler."""
        if self.undoing:
            return (
                f"{call} was called inside the rollback handler of step {label!r} of {self.where}. A handler cannot make durable calls: "
                "do the work in the handler itself, or let it create() an instance of another workflow."
            )
        return (
            f"{call} was called inside the body of step {label!r} of {self.where}. A body cannot make durable calls: move the call to "
            "run(), after the step."
        )

    def refuse(self, message: str, *thread: int | None) -> NoReturn:
        """Refuse a call; the refusal is sticky, so that catching it does not help. ``thread``: whose code has made it, this one's if
        it is not said; None: nobody knows."""
        self.refusal = InvalidDurableCall(message)
        self.refused_threads.update(thread or (self._thread(),))
        raise self.refusal

    def refused_here(self) -> InvalidDurableCall | None:
        """The refusal, if code of this thread may have caused it; that of another branch is none of a body's that runs beside."""
        return self.refusal if self.refused_threads.intersection((self._thread(), None)) else None

    def forget_refusal(self) -> None:
        """What was refused has had its consequence."""
        self.refusal = None
        self.refused_threads.clear()

    def _again(self, stop: Unwind, call: str) -> NoReturn:
        """A durable call while the execution, or its branch, is stopping: from a ``finally`` it is unwound again, else the
        suspension was swallowed."""
        if isinstance(stop.outcome, Suspend) and not _in_flight(stop):
            error = SuspensionSwallowed(
                f"{self.where} was suspended at {stop.outcome.where}, but run() caught that and went on to "
                f"{call}. Catch Exception instead of "
                "BaseException, never use a bare except, and raise again what is not yours."
            )
            stop = self.stop = Unwind(Block(error))
        self._count(stop.outcome.error if isinstance(stop.outcome, Block) else SuspensionSwallowed(str(stop)))
        raise stop

    def _count(self, error: Exception) -> None:
        """One more call was refused; code that never stops calling is ended with its process."""
        self.refused_calls += 1
        if self.refused_calls > MAX_REFUSED_CALLS:
            self.give_up(error)

    # Meeting ----------------------------------------------------------------------------------------------------------

    def meet(self, scope: Scope, identity: Identity) -> Record | None:
        """The record of this call, or None if it is new. Raises Unwind(Block(NonDeterminismError)) when the program
        has changed."""
        record = self.records.get(identity)
        if record is None:
            other = None if identity.kind in UNCOUNTED else scope.other_kind(identity)
            if other is not None:
                self.halt(
                    NonDeterminismError(
                        f"{self.where} is recorded with {other.identity.kind} {identity.label!r}, but run() now calls {identity.kind} "
                        f"{identity.label!r}. Give the new call another name, or put the old code back, and resume the instance."
                    ),
                    other,
                )
            return None
        skipped = scope.mark_met(record)
        if skipped is not None:
            self.skipped(identity, skipped)
        return record

    def skipped(self, identity: Identity, missed: Record) -> NoReturn:
        """The program has come to ``identity`` without calling what it called before that."""
        self.halt(
            NonDeterminismError(
                f"{self.where} is recorded with {missed.identity.kind} {missed.identity.label!r} before {identity.kind} "
                f"{identity.label!r}, but run() did not call it this time. Steps must not depend on the clock, on random numbers or on "
                "anything else that is not recorded; put such a value into a step, or put the old code back, and resume the instance."
            ),
            missed,
        )

    def started(self, identity: Identity, execution: int, run_number: int) -> Record:
        """A new record in memory, met by the call that makes it."""
        with self._lock:
            record = Record(identity, self.next_seq, execution, run_number, "started", met=True)
            self.next_seq += 1
            self.records[identity] = record
            if identity.scope:
                self._inner.setdefault(identity.scope, []).append(record)
        return record

    def halt(self, error: Exception, missed: Record | None = None) -> NoReturn:
        """Stop the execution and leave the instance to a person. ``missed``: the record that the program should have met
        in place of what it did."""
        self.unwind(Unwind(Block(error, () if missed is None else self._astray(missed))))

    def _astray(self, missed: Record) -> tuple[int, ...]:
        return tuple(
            record.seq
            for record in list(self.records.values())  # other branches may add some
            if record.met and record.execution > missed.execution and record.identity.scope == missed.identity.scope
        )

    def unwind(self, stop: Unwind) -> NoReturn:
        """Stop the execution; from now on every durable call raises the same."""
        self.stop = stop
        raise stop

    def suspend(self, scope: Scope, stop: Unwind) -> NoReturn:
        """Suspend a branch, and at the root the whole execution; every later durable call of it raises the same."""
        scope.stop = stop
        if scope is self.root:
            self.stop = stop
        raise stop

    def replaying(self, scope: Scope) -> bool:
        """Whether the journal holds a record of this scope that this execution has not met yet (case OPS-02)."""
        return scope.unmet > 0

    def check_end(self) -> None:
        """``run`` has returned: every record of the root must have been met (case ENG-08). Raises
        Unwind(Block(NonDeterminismError))."""
        self.check_met(self.root, f"run() of {self.where} has returned")

    def check_met(self, scope: Scope, what: str) -> None:
        """The same for a scope of which ``what`` says that it is over."""
        missed = scope.first_unmet()
        if missed is not None:
            self.halt(
                NonDeterminismError(
                    f"{what}, but {missed.identity.kind} {missed.identity.label!r} is recorded and was not called "
                    "this time. Put the old code back, or branch on recorded values only, and resume the instance."
                ),
                missed,
            )


def swallowed(where: str, outcome: Suspend, raised: BaseException | None) -> SuspensionSwallowed:
    """What is wrong with code that was suspended and ended otherwise: it returned (None), or raised something else."""
    if raised is None or isinstance(raised, SuspensionSwallowed):
        detail = "but that was caught, and the code returned"
    else:
        detail = f"but {type(raised).__name__}: {raised} was raised in its place"
    error = SuspensionSwallowed(
        f"{where} was suspended at {outcome.where}, {detail}. Catch Exception instead of BaseException, never use a bare except or "
        "a return in finally, and raise again what is not yours."
    )
    error.__cause__ = raised
    return error


def _in_flight(stop: BaseException) -> bool:
    """Whether ``stop`` is still being raised: we are in a ``finally`` or an ``except`` block below it."""
    error = sys.exc_info()[1]
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if error is stop:
            return True
        seen.add(id(error))
        error = error.__context__
    return False
