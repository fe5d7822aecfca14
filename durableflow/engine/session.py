"""What one execution of one instance knows and can do, for everything that answers its durable calls (design 6)."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn, Protocol

from django.db import connections

from durableflow.core import atomicity, codec, failures
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import CodecError, LimitExceeded, NonDeterminismError, WorkflowTimeout
from durableflow.core.statuses import StepKind
from durableflow.engine import endings, replacement, shutdown, watcher
from durableflow.engine.atomic import run_atomically
from durableflow.engine.interception import PASS, Interceptor
from durableflow.engine.isolation import room
from durableflow.engine.journal import FAILED, PENDING, STARTED, Identity, Record
from durableflow.engine.lease import Claim
from durableflow.engine.quiet import Quiet
from durableflow.engine.replay import Replay, Scope
from durableflow.engine.scopes import current
from durableflow.engine.secrecy import StepSecrets
from durableflow.engine.steps import Entry, StepWrite, correct_group, write_step
from durableflow.engine.unwind import Drop, Expire, GiveBack, LeaseLost, Pause, Suspend, Unwind, WriteFailed

_UNREADABLE: Final = (CodecError, LookupError, TypeError, ValueError, AttributeError)


class Refused(Protocol):
    """A body that broke a rule of the engine: its step has failed only if the instance ends by it."""

    def fail_refused(self) -> None:
        """Record that the step has failed."""


class InFlight:
    """Threads of their own that are in branches of the instance at this moment."""

    def __init__(self) -> None:
        self._state = threading.Lock()
        self._threads: dict[threading.Thread, int] = {}

    def enter(self) -> None:
        """This thread is in one more."""
        me = threading.current_thread()
        with self._state:
            self._threads[me] = self._threads.get(me, 0) + 1

    def leave(self) -> None:
        """It has left one, unless it was given up."""
        me = threading.current_thread()
        with self._state:
            if me in self._threads:
                self._threads[me] -= 1
                if not self._threads[me]:
                    del self._threads[me]

    def give_up(self, thread: threading.Thread) -> bool:
        """Wait for this thread no longer; whether it was in one."""
        with self._state:
            return self._threads.pop(thread, None) is not None

    def others(self, thread: threading.Thread) -> bool:
        """Whether there are any but this one."""
        with self._state:
            return any(other is not thread for other in self._threads)


class Session:
    """Journal, replay, limits, secrets and the way out of one claim."""

    dry = False
    """Whether nothing may be run or written (``engine.dry``)."""
    body_run: type[Any]
    """Runs the bodies of steps (``bodies.BodyRun``)."""

    def __init__(self, claim: Claim, cls: type[Any], records: list[Record], interceptor: Interceptor = PASS) -> None:
        self.claim = claim
        self.lease = claim.lease
        self.options = cls.options
        self.interceptor = interceptor
        self._room = room()  # this process's: nothing that a fork copies goes on with it
        self.instance_id, self.run_number = claim.instance_id, claim.run_number
        self.replay = Replay(
            records,
            where=claim.label,
            owner=threading.get_ident(),
            open_block=lambda scope: atomicity.opened(scope.wrappers),
            thread=threading.get_ident,
            give_up=self._give_up,
        )
        # Looked up once: each durable call asks them what is open.
        self.replay.root.wrappers = list(connections.all())
        self.branches = InFlight()
        self._news = 0
        self.quiet = Quiet()
        # What is no Exception, and was raised by the code of a branch, with the outcome that stops the other branches meanwhile.
        self.leaving: tuple[BaseException, object] | None = None
        self._lock = threading.Lock()
        self.errors: list[tuple[BaseException, Identity]] = []
        # Of groups: what their branches have raised.
        self.broken: list[tuple[BaseException, Identity]] = []
        self.refused: Refused | None = None
        kinds = Counter(record.identity.kind for record in records)
        # Numbers of steps: taking the next one needs no lock, whatever threads do it.
        self._step_numbers = itertools.count(kinds[StepKind.DO] + 1)
        self._bytes = sum(_size(record.output or "") for record in records)
        marked = any(record.status == STARTED for record in records)
        self.lease.children |= StepKind.CHILD in kinds
        self._charge = claim.lost_token is not None and not marked
        self._shaken = bool(claim.interruptions or claim.give_backs)
        self.secrets = StepSecrets()

    @property
    def shaken(self) -> bool:
        """Whether the counts of interruptions and give-backs are still to be cleared: the first checkpoint does."""
        return self._shaken

    @shaken.setter
    def shaken(self, value: bool) -> None:
        self._shaken = value
        if not value:
            room().calm(self.lease)

    @property
    def _charge(self) -> bool:
        """Whether a takeover is still to be charged to a step."""
        return self.claim.uncharged

    @_charge.setter
    def _charge(self, value: bool) -> None:
        self.claim.uncharged = value

    def new_record(self, identity: Identity) -> Record:
        """A record for a new call; raises LimitExceeded at the limits of steps and records (case ENG-12)."""
        limits = get_settings().LIMITS
        if identity.kind == StepKind.DO:
            steps = next(self._step_numbers)
            if steps > limits.steps:
                raise self.too_much("the number of steps", steps, limits.steps, "steps")
        if len(self.replay.records) >= limits.records:
            raise self.too_much("the journal", len(self.replay.records) + 1, limits.records, "records")
        return self.replay.started(identity, self.claim.execution, self.run_number)

    def require_room(self, identity: Identity, steps: int) -> None:
        """Raise LimitExceeded where ``steps`` more steps of a group cannot be recorded: before the first of them runs."""
        limits, known = get_settings().LIMITS, self.replay.records
        made = sum(own.kind == StepKind.DO for own in known) + steps
        records = len(known) + 1 + steps
        for unit, size, most in (("steps", made, limits.steps), ("records", records, limits.records)):
            if size > most:
                what = f"the number of {unit} with the {steps:,} items of {identity.label!r}"
                raise self.too_much(what, size, most, unit)

    def encode(self, value: Any, identity: Identity) -> str:
        """A step's value as text, within the limits. Raises CodecError, LimitExceeded: neither is retried (case
        SER-02)."""
        limits = get_settings().LIMITS
        text = codec.dumps(
            value, what=f"output of step {identity.label!r} of {self.claim.label}", max_bytes=limits.output
        )
        with self._lock:
            total = self._bytes + _size(text)
            if total <= limits.bytes:
                self._bytes = total
        if total > limits.bytes:
            raise self.too_much("the sum of all outputs", total, limits.bytes, "bytes")
        return text

    def too_much(self, what: str, size: int, limit: int, unit: str) -> LimitExceeded:
        """The error for a run that has more than one run may have, with what helps (case ENG-12)."""
        cure = "Go on in a new run, which begins with an empty journal: step.continue_as_new(params)."
        return LimitExceeded.of(what, size, limit, unit=unit, hint=cure, instance=self.claim.label)

    def decode(self, text: str, identity: Identity) -> Any:
        """A stored value; an unreadable journal blocks the instance, it does not end it (case OPS-13)."""
        try:
            return codec.loads(text)
        except _UNREADABLE as error:
            self._halt_unreadable(identity, error)

    @contextmanager
    def reading(self, identity: Identity) -> Iterator[None]:
        """Block the instance where a record has not the shape that the engine has written."""
        try:
            yield
        except _UNREADABLE as error:
            self._halt_unreadable(identity, error)

    def _halt_unreadable(self, identity: Identity, error: Exception) -> NoReturn:
        self.replay.halt(
            NonDeterminismError(f"{self.claim.label}: the record of {identity.label!r} cannot be read: {error!r}")
        )

    def scope(self) -> Scope:
        """The scope that this thread or task is in."""
        found = current.get()
        return found if found is not None and found.replay is self.replay else self.replay.root

    def suspend(self, scope: Scope, wake_at: Any, identity: Identity) -> NoReturn:
        """Unwind ``run``, or a branch of it, until ``wake_at`` (None: until an event)."""
        self.replay.suspend(scope, Unwind(Suspend(wake_at, identity.label)))

    def failure(self, record: Record) -> Exception:
        """The error of a failed record, rebuilt, as every replay raises it."""
        described = self.decode(record.error or "{}", record.identity)
        with self.reading(record.identity):
            described["type"]
        error = failures.rebuild(described)
        if record.sensitive:
            failures.mark_sensitive(error)
        self.errors.append((error, record.identity))
        return error

    def recorded(self, record: Record) -> Any:
        """What a finished record gives: its value, or its error is raised."""
        if record.status == FAILED:
            raise self.failure(record)
        value: Any = None if record.output is None else self.decode(record.output, record.identity)
        if record.sensitive:
            self.secrets.add(value)
        return value

    def describe(self, error: BaseException, identity: Identity | None, sensitive: bool) -> dict[str, Any]:
        """An error as it is stored. Texts that a sensitive step has returned are masked in the message and traceback
        of any other step (case SEC-09)."""
        return self.secrets.describe(error, identity.label if identity else None, sensitive)

    def block(self, error: BaseException, astray: Sequence[int] = ()) -> None:
        """Leave the instance to a person."""
        reason = self.secrets.mask(f"{type(error).__name__}: {error}")
        endings.block(self.lease, reason, astray, lost=self.claim.lost_mark)

    def take_charge(self, record: Record) -> bool:
        """Whether a takeover is charged to this record: once, and not if the dead worker had recorded its attempt
        and was about to wait."""
        charge, self._charge = self._charge, False
        return charge and not (record.status == PENDING and record.token == self.claim.lost_token)

    @property
    def interrupted(self) -> bool:
        """Whether workers were lost since the last checkpoint: then a start mark comes before each body (design 6)."""
        return self.shaken and (self.claim.interruptions > 0 or self.claim.lost_token is not None)

    def atomically(self, attempt: Callable[[], str], record: Record, *, again: bool) -> str:
        """Run an attempt with its checkpoint in one transaction."""
        return run_atomically(self.lease, self.run_number, attempt, record, again=again)

    def write(
        self,
        record: Record,
        *entries: Entry,
        wake_in: float | None = None,
        wake_at: Any = None,
        later: bool = False,
    ) -> Any:
        """Write a record of a call that has no body; its ``wake_at``. ``later``: see ``StepWrite``."""
        written = write_step(
            self.lease,
            StepWrite(
                record=record,
                run_number=self.run_number,
                started=self.claim.db_now(),
                entries=entries,
                wake_in=wake_in,
                wake_at=wake_at,
                unshaken=record.finished and self.shaken,
                later=later,
            ),
        )
        if record.finished:
            self.shaken = False
        return written

    def correct(self, record: Record) -> None:
        """Write how a recorded group has ended this time."""
        correct_group(self.lease, self.run_number, record)

    def take_news(self) -> None:
        """Count it in ``news`` if something has arrived for the instance. Whoever waited before may go on: what is taken here
        wakes nobody else any more."""
        if endings.take_woken(self.lease):
            with self._lock:
                self._news += 1

    @property
    def news(self) -> int:
        """How often something has arrived for the instance while it was executed, be it that somebody has told of it, or that this
        execution has taken delivery of it."""
        return self._news + self.lease.arrived

    def check_alive(self) -> None:
        """No durable call returns once the process must stop, the lease is lost, a pause is asked for or ``max_duration`` is
        over."""
        if shutdown.requested():
            self.replay.unwind(Unwind(GiveBack()))
        if replacement.wanted() or self._room.unwanted(self.lease):
            self.replay.unwind(Unwind(GiveBack(stop=False)))
        if self.lease.lost:
            self.replay.unwind(Unwind(Drop(self.lease.label)))
        if self.lease.pausing:
            self.replay.unwind(Unwind(Pause()))
        deadline = self.claim.deadline_at
        if deadline is not None and self.claim.db_now() >= deadline:
            self.replay.unwind(
                Unwind(
                    Expire(
                        WorkflowTimeout(
                            f"{self.claim.label} did not finish by {deadline:%Y-%m-%d %H:%M:%S %Z} (max_duration)."
                        )
                    )
                )
            )

    def _give_up(self, error: Exception) -> NoReturn:
        """User code swallows the suspension in a loop that nothing can leave: block the instance and end the process
        (design 6)."""
        try:
            atomicity.abandon_opened()  # the loop may be inside of a block that will never be committed
            self.block(error)
        except (Exception, LeaseLost, WriteFailed):
            logging.getLogger("durableflow.engine").exception("%s could not be blocked", self.claim.label)
        self.interceptor.before_exit()
        keeper = watcher.current(self.lease)
        if keeper is not None:  # others leave at their next durable call, and bodies in flight have the grace
            replacement.want("swallowed", str(error))
            end = time.monotonic() + get_settings().SHUTDOWN_GRACE
            while keeper.held() > 1 and time.monotonic() < end:
                time.sleep(0.02)
        replacement.end(replacement.STUCK, str(error))


def _size(text: str) -> int:
    """Bytes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
