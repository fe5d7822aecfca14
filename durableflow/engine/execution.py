"""One execution of one instance: it answers the durable calls of ``run`` (design 6)."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging import LoggerAdapter
from typing import Any, Final, NoReturn
from uuid import UUID

from durableflow.authoring import calls
from durableflow.authoring.context import derive
from durableflow.core import atomicity, codec, failures
from durableflow.core.answers import Decision, Event
from durableflow.core.conf import get_settings
from durableflow.core.durations import TEN_YEARS
from durableflow.core.exceptions import (
    CodecError,
    InvalidConfig,
    LimitExceeded,
    NonDeterminismError,
    NonRetryableError,
    WorkflowTimeout,
)
from durableflow.core.statuses import StepKind
from durableflow.engine import endings, shutdown
from durableflow.engine.atomic import run_atomically
from durableflow.engine.bodies import BodyOptions, BodyRun, resolve
from durableflow.engine.interception import PASS, Interceptor
from durableflow.engine.journal import COMPLETE, FAILED, NOTIFY, PENDING, STARTED, Identity, Record
from durableflow.engine.lease import Claim
from durableflow.engine.logs import ReplayLogger
from durableflow.engine.replay import Replay, Scope
from durableflow.engine.secrecy import StepSecrets
from durableflow.engine.steps import Entry, StepWrite, write_step
from durableflow.engine.unwind import Drop, Expire, GiveBack, LeaseLost, Suspend, Unwind, WriteFailed
from durableflow.engine.waits import Answer, UnreadableAnswer, attend, cancel_wait, load_pending
from durableflow.models import PendingEvent

EXIT_STATUS: Final = 70  # EX_SOFTWARE


class Execution:
    """The runtime behind ``step``: journal, replay, bodies, waits of one claim."""

    def __init__(self, claim: Claim, cls: type[Any], records: list[Record], interceptor: Interceptor = PASS) -> None:
        self.claim = claim
        self.lease = claim.lease
        self.options = cls.options
        self.interceptor = interceptor
        self.instance_id, self.run_number = claim.instance_id, claim.run_number
        self.replay = Replay(
            records,
            where=claim.label,
            owner=threading.get_ident(),
            open_block=atomicity.opened,
            thread=threading.get_ident,
            give_up=self._give_up,
        )
        self.errors: list[tuple[BaseException, Identity]] = []
        self.refused: BodyRun | None = None
        self._steps = sum(record.identity.kind == StepKind.DO for record in records)
        self._bytes = sum(_size(record.output or "") for record in records)
        marked = any(record.status == STARTED for record in records)
        self._charge = claim.lost_token is not None and not marked
        # Whether the counts of interruptions and give-backs are still to be cleared: the first checkpoint does.
        self.shaken = bool(claim.interruptions or claim.give_backs)
        self.secrets = StepSecrets()
        self._random: random.Random | None = None
        self._logger: LoggerAdapter[Any] | None = None

    # Runtime ----------------------------------------------------------------------------------------------------------

    def call(self, call: calls.Call) -> Any:
        """Answer a durable call of the root scope."""
        try:
            return self._answer(call)
        except WriteFailed as failed:  # run() has done nothing wrong
            self.replay.halt(failed.error)

    def _answer(self, call: calls.Call) -> Any:
        scope = self.replay.root
        identity = self.replay.enter(scope, call.kind, call.name)
        self._check_alive()
        record = self.replay.meet(scope, identity)
        if record is not None and record.finished:
            return self._recorded(record, call)
        if isinstance(call, calls.DoCall):
            options = resolve(self, identity.label, record, call.retries, call.timeout, call.sensitive, call.atomic)
            return BodyRun(self, scope, identity, record, options).run(call.body)
        if isinstance(call, calls.WaitCall):
            return self._wait(scope, identity, record, call)
        self._charge = False  # nothing was in a body when the worker was lost
        if isinstance(call, calls.SleepCall | calls.SleepUntilCall):
            return self._sleep(identity, record, call)
        return self._now(identity, record)

    def set_progress(self, value: Any) -> None:
        """See ``Step.set_progress``."""
        scope = self.replay.root
        self.replay.guard(scope, "set_progress()")
        self._check_alive()
        if not self.replay.replaying(scope):
            text = codec.dumps(value, what=f"progress of {self.claim.label}", max_bytes=get_settings().LIMITS.output)
            try:
                endings.set_progress(self.lease, text)
            except WriteFailed as failed:
                self.replay.halt(failed.error)

    def uuid4(self) -> UUID:
        """See ``Step.uuid4``."""
        scope = self.replay.root
        self.replay.guard(scope, "uuid4()")
        scope.ids += 1
        return UUID(bytes=derive("uuid4", self.claim.seed, scope.name, scope.ids)[:16], version=4)

    @property
    def random(self) -> random.Random:
        """See ``Step.random``."""
        self.replay.guard(self.replay.root, "random")
        if self._random is None:
            self._random = random.Random(derive("random", self.claim.seed, ""))  # noqa: S311  repeatable, not secret
        return self._random

    @property
    def is_replaying(self) -> bool:
        """See ``Step.is_replaying``."""
        return self.replay.replaying(self.replay.root)

    @property
    def logger(self) -> LoggerAdapter[Any]:
        """See ``Step.logger``."""
        if self._logger is None:
            self._logger = ReplayLogger(self.claim, lambda: self.is_replaying)
        return self._logger

    # Calls that have no body ------------------------------------------------------------------------------------------

    def _sleep(self, identity: Identity, record: Record | None, call: calls.SleepCall | calls.SleepUntilCall) -> None:
        now = self.claim.db_now()
        if record is None:
            if isinstance(call, calls.SleepUntilCall) and call.when > now + TEN_YEARS:
                raise InvalidConfig(
                    f"step {call.name!r}: when: {call.when} is more than ten years ahead.", step=call.name, field="when"
                )
            record = self.new_record(identity)
            if isinstance(call, calls.SleepCall):
                seconds, when = call.duration.total_seconds(), None
                over = seconds == 0
            else:
                seconds, when = None, call.when
                over = when <= now
            if not over:
                record.status = PENDING
                data = {"seconds": seconds} if when is None else {"until": when}
                wake_at = self._write(record, Entry("sleep_started", data), wake_in=seconds, wake_at=when)
                self.suspend(wake_at, identity)
        elif record.wake_at is not None and record.wake_at > now:
            self.suspend(record.wake_at, identity)
        record.status = COMPLETE
        self._write(record, Entry("sleep_completed"), wake_at=record.wake_at)

    def _now(self, identity: Identity, record: Record | None) -> Any:
        record = record or self.new_record(identity)
        record.status, record.output = COMPLETE, codec.dumps(self.claim.db_now())
        self._write(record)
        return self.decode(record.output, identity)

    def _write(self, record: Record, *entries: Entry, wake_in: float | None = None, wake_at: Any = None) -> Any:
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
            ),
        )
        if record.finished:
            self.shaken = False
        return written

    # Waits ------------------------------------------------------------------------------------------------------------

    def _wait(self, scope: Scope, identity: Identity, record: Record | None, call: calls.WaitCall) -> Any:
        # The dead worker may have been in the body of notify, where that has not ended; in no other body.
        told = self.replay.records.get(identity._replace(kind=NOTIFY))
        if call.notify is None or (told is not None and told.finished):
            self._charge = False
        record = record or self.new_record(identity)
        try:
            answer = attend(self.lease, self.claim, record, call)
        except UnreadableAnswer as error:
            self.replay.halt(error)
        except NonRetryableError as error:  # an unknown group, a context that cannot be stored
            self._refused(record, error)
        if not answer.settled and call.notify is not None:
            answer = self._notify(scope, identity, record, call, answer)
        if not answer.settled:
            self.suspend(answer.wake_at, identity)
        self.shaken = False
        record.status = COMPLETE if answer.error is None else FAILED
        record.output, record.error = answer.output, answer.error
        return self._recorded(record, call)

    def _refused(self, record: Record, error: Exception) -> NoReturn:
        """The wait cannot open. That is an outcome like any other: one that ``run`` has caught stays caught."""
        described = self.describe(error, record.identity, False)
        record.status, record.error = FAILED, codec.dumps(described)
        self._write(record, Entry("step_errored", {"error": failures.public(described)}))
        raise self.failure(record) from None

    def _notify(self, scope: Scope, identity: Identity, wait: Record, call: calls.WaitCall, answer: Answer) -> Answer:
        """Tell somebody of the open wait: a recorded body under the wait's name and count (design 5)."""
        own = identity._replace(kind=NOTIFY)
        record = self.replay.records.get(own)
        try:
            if record is None or not record.finished:
                options = resolve(self, identity.label, record, None, None, False, False)
                self._run_notify(scope, own, record, options, call, answer)
            elif record.status == FAILED:  # and the worker was lost before it had cancelled the wait
                raise self.failure(record)
            return answer
        except Exception as error:
            if error is self.replay.refusal:
                raise
            text = codec.dumps(self.describe(error, identity, False))
            return cancel_wait(self.lease, self.claim, wait, answer.pending_event, text)

    def _run_notify(
        self,
        scope: Scope,
        own: Identity,
        record: Record | None,
        options: BodyOptions,
        call: calls.WaitCall,
        answer: Answer,
    ) -> None:
        notify = call.notify
        pending = load_pending(self.lease, answer.pending_event)
        try:
            BodyRun(self, scope, own, record, options).run(lambda: _without_result(notify, pending))
        except Unwind as stop:
            if isinstance(stop.outcome, Suspend) and answer.wake_at is not None:
                due = stop.outcome.wake_at
                # The deadline of the wait counts on during the retry delay.
                self.replay.stop = Unwind(Suspend(min(due, answer.wake_at) if due else answer.wake_at, own.label))
                raise self.replay.stop from None
            raise

    # What bodies and waits use ----------------------------------------------------------------------------------------

    def new_record(self, identity: Identity) -> Record:
        """A record for a new call; raises LimitExceeded at the limits of steps and records (case ENG-12)."""
        limits = get_settings().LIMITS
        if identity.kind == StepKind.DO:
            self._steps += 1
            if self._steps > limits.steps:
                raise LimitExceeded.of(
                    f"{self.claim.label}: the number of steps", self._steps, limits.steps, unit="steps"
                )
        if len(self.replay.records) >= limits.records:
            raise LimitExceeded.of(
                f"{self.claim.label}: the journal", len(self.replay.records) + 1, limits.records, unit="records"
            )
        return self.replay.started(identity, self.claim.execution, self.run_number)

    def encode(self, value: Any, identity: Identity) -> str:
        """A step's value as text, within the limits. Raises CodecError, LimitExceeded: neither is retried (case
        SER-02)."""
        limits = get_settings().LIMITS
        text = codec.dumps(
            value, what=f"output of step {identity.label!r} of {self.claim.label}", max_bytes=limits.output
        )
        total = self._bytes + _size(text)
        if total > limits.bytes:
            raise LimitExceeded.of(f"{self.claim.label}: the sum of all outputs", total, limits.bytes)
        self._bytes = total
        return text

    def decode(self, text: str, identity: Identity) -> Any:
        """A stored value; an unreadable journal blocks the instance, it does not end it (case OPS-13)."""
        with self.reading(identity):
            return codec.loads(text)

    @contextmanager
    def reading(self, identity: Identity) -> Iterator[None]:
        """Block the instance where a record has not the shape that the engine has written."""
        try:
            yield
        except (CodecError, LookupError, TypeError, ValueError, AttributeError) as error:
            self.replay.halt(
                NonDeterminismError(f"{self.claim.label}: the record of {identity.label!r} cannot be read: {error!r}")
            )

    def suspend(self, wake_at: Any, identity: Identity) -> NoReturn:
        """Unwind ``run`` until ``wake_at`` (None: until an event)."""
        self.replay.unwind(Unwind(Suspend(wake_at, identity.label)))

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

    def describe(self, error: BaseException, identity: Identity | None, sensitive: bool) -> dict[str, Any]:
        """An error as it is stored. Texts that a sensitive step has returned are masked in the message and traceback
        of any other step (case SEC-09)."""
        return self.secrets.describe(error, identity.label if identity else None, sensitive)

    def block(self, error: BaseException, astray: Sequence[int] = ()) -> None:
        """Leave the instance to a person."""
        endings.block(self.lease, self.secrets.mask(f"{type(error).__name__}: {error}"), astray)

    def take_charge(self, record: Record) -> bool:
        """Whether a takeover is charged to this record: once, and not if the dead worker had recorded its attempt
        and was about to wait."""
        charge, self._charge = self._charge, False
        return charge and not (record.status == PENDING and record.token == self.claim.lost_token)

    @property
    def interrupted(self) -> bool:
        """Whether workers were lost since the last checkpoint: then a start mark comes before each body (design 6)."""
        return self.shaken and self.claim.interruptions > 0

    def atomically(self, attempt: Callable[[], str], record: Record, *, again: bool) -> str:
        """Run an attempt with its checkpoint in one transaction."""
        return run_atomically(self.lease, self.run_number, attempt, record, again=again)

    # Inner ------------------------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        """No durable call returns once the process must stop, the lease is lost or ``max_duration`` is over."""
        if shutdown.requested():
            self.replay.unwind(Unwind(GiveBack()))
        if self.lease.lost:
            self.replay.unwind(Unwind(Drop(self.lease.label)))
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

    def _recorded(self, record: Record, call: calls.Call) -> Any:
        if record.status == FAILED:
            raise self.failure(record)
        value: Any = None if record.output is None else self.decode(record.output, record.identity)
        if record.sensitive:
            self.secrets.add(value)
        with self.reading(record.identity):
            if isinstance(call, calls.ApprovalCall):
                return Decision(**value)
            if isinstance(call, calls.WaitCall):
                return Event(**value)
        return value

    def _give_up(self, error: Exception) -> NoReturn:
        """User code swallows the suspension in a loop that nothing can leave: block the instance and end the process
        (design 6)."""
        try:
            atomicity.abandon_opened()  # the loop may be inside of a block that will never be committed
            self.block(error)
        except (Exception, LeaseLost, WriteFailed):
            logging.getLogger("durableflow.engine").exception("%s could not be blocked", self.claim.label)
        self.interceptor.before_exit()
        sys.stderr.write(f"durableflow ends this process: {error}\n")
        sys.stderr.flush()
        os._exit(EXIT_STATUS)


def _without_result(notify: Any, pending: PendingEvent) -> None:
    """``notify`` is for its effect: what it returns need not be storable."""
    notify(pending)


def _size(text: str) -> int:
    """Bytes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
