"""Running the body of a step: attempts, retries, lost workers, the checkpoint (design 6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NoReturn

from django.db import InterfaceError, OperationalError, connections

from durableflow.authoring.context import StepContext, idempotency_key, step_context
from durableflow.core import atomicity, codec, failures
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import InvalidConfig, NonRetryableError, StepTimeout, WorkerLost
from durableflow.core.retries import Retries
from durableflow.engine import shutdown
from durableflow.engine.atomic import NotWritten
from durableflow.engine.attempts import Attempt
from durableflow.engine.journal import COMPLETE, FAILED, PENDING, STARTED, Identity, Record
from durableflow.engine.lease import Lease
from durableflow.engine.replay import Scope
from durableflow.engine.session import Session
from durableflow.engine.steps import Entry, StepWrite, write_step
from durableflow.engine.timeouts import Deadline, clean_connections, drop_active
from durableflow.engine.unwind import GiveBack, LeaseLost, ProcessDied, Unwind, WriteFailed

logger = logging.getLogger("durableflow.steps")
ATOMIC_SHARE: Final = 3  # an atomic body on SQLite keeps the renewal out, so it must end within this part of the lease


@dataclass(frozen=True)
class BodyOptions:
    """The resolved options of a body; what the first execution stored wins over what the code says now (design 5)."""

    retries: Retries
    timeout: float
    sensitive: bool
    atomic: bool

    def to_config(self) -> dict[str, Any]:
        """What the record stores and ``get_step_context().config`` shows."""
        return {
            "retries": self.retries.to_config(),
            "timeout": self.timeout,
            "sensitive": self.sensitive,
            "atomic": self.atomic,
        }


def resolve(
    session: Session,
    step: str,
    record: Record | None,
    retries: Retries | None,
    timeout: timedelta | None,
    sensitive: bool,
    atomic: bool,
) -> BodyOptions:
    """Merge the step's options with Meta, settings and what is recorded. Raises InvalidConfig that names step and
    field."""
    live = session.options.retries_for(retries)
    seconds = session.options.timeout_for(timeout).total_seconds()
    maximum = get_settings().LIMITS.retries
    if (live.limit or 0) > maximum:
        raise InvalidConfig(
            f"step {step!r}: retries: limit {live.limit} is above DURABLEFLOW['LIMITS'] retries {maximum}.",
            step=step,
            field="retries",
        )
    if record is not None and record.config is not None:
        stored = session.decode(record.config, record.identity)
        with session.reading(record.identity):
            return BodyOptions(
                Retries.from_config(stored["retries"], live),
                float(stored["timeout"]),
                sensitive or record.sensitive,
                bool(stored["atomic"]),
            )
    if atomic and connections[session.lease.using].vendor == "sqlite":
        longest = get_settings().LEASE / ATOMIC_SHARE
        if timeout is not None and seconds > longest:
            raise InvalidConfig(
                f"step {step!r}: timeout: an atomic step on SQLite may take at most a third of the lease, "
                f"{longest:g} seconds, not {seconds:g}: "
                "it keeps everybody else from writing.",
                step=step,
                field="timeout",
            )
        seconds = min(seconds, longest)
    return BodyOptions(live, seconds, sensitive, atomic)


def _config_text(options: BodyOptions) -> str:
    """The stored form of options. A delay function is the author's object: it need not be hashable, and is not kept."""
    return codec.dumps(options.to_config()) if callable(options.retries.delay) else _plain_config_text(options)


@lru_cache(maxsize=256)
def _plain_config_text(options: BodyOptions) -> str:
    """The same for options that are values: most steps of a workflow have equal ones."""
    return codec.dumps(options.to_config())


class BodyRun:
    """One step's way from its call to its value, its error or the suspension until the next attempt."""

    def __init__(
        self, session: Session, scope: Scope, identity: Identity, record: Record | None, options: BodyOptions
    ) -> None:
        self.session, self.scope, self.identity, self.options = session, scope, identity, options
        self.lease: Lease = session.lease
        self.record = record or session.new_record(identity)
        self.record.sensitive = options.sensitive
        if self.record.config is None:
            self.record.config = _config_text(options)

    def run(self, body: Callable[[], Any]) -> Any:
        """Make one attempt. Returns the value as a replay would; raises the step's error, or unwinds until the
        retry."""
        record = self.record
        if record.status == PENDING and record.wake_at is not None and record.wake_at > self.session.claim.db_now():
            self.session.suspend(record.wake_at, self.identity)  # a retry delay that is not over (case RET-11)
        self._settle_lost()
        record.attempts += 1
        if self.options.retries.limit == 0 or self.session.interrupted:
            self._mark_start()
        attempt = Attempt(self.identity, record.attempts)
        context = self._context()
        started = self.session.claim.db_now()
        self.lease.require()
        try:
            text = self._perform(body, attempt, context, started)
        except (ProcessDied, LeaseLost, Unwind, WriteFailed):
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and shutdown.requested():
                self.session.replay.unwind(Unwind(GiveBack()))
            return self._failed(attempt, error, context, started)
        self.session.shaken = False  # not before: an atomic step's transaction may be made again
        value = self.session.decode(text, self.identity)
        if self.options.sensitive:
            self.session.secrets.add(value)
        return value

    # The body ---------------------------------------------------------------------------------------------------------

    def _perform(self, body: Callable[[], Any], attempt: Attempt, context: StepContext, started: Any) -> str:
        body = self.session.interceptor.body(self.session.claim.workflow, self.identity, attempt.number, body)
        if self.options.atomic:
            return self.session.atomically(
                # An attempt object of its own each time: what was rolled back is no outcome.
                lambda: self._attempt(body, Attempt(self.identity, attempt.number), context, started),
                self.record,
                again=self.options.retries.limit != 0,
            )
        return self._attempt(body, attempt, context, started)

    def _attempt(self, body: Callable[[], Any], attempt: Attempt, context: StepContext, started: Any) -> str:
        value = self._call(body, context)
        text = self.session.encode(value, self.identity)
        self.session.interceptor.before_checkpoint(self.session.claim.workflow, self.identity, attempt.number)
        if not attempt.begin_commit():
            raise LeaseLost(self.lease.label)
        self.record.status, self.record.output, self.record.error = COMPLETE, text, None
        entry = Entry("step_completed", {"attempt": attempt.number, "started": started})
        try:
            self._write(started, entry, unshaken=self.session.shaken)
        except (OperationalError, InterfaceError) as error:
            if not self.options.atomic:
                raise
            raise NotWritten from error
        attempt.finish()
        return text

    def _call(self, body: Callable[[], Any], context: StepContext) -> Any:
        """Run the body under its deadline, with the scope closed to durable calls."""
        deadline = Deadline(self.options.timeout)
        self.scope.busy = self.identity
        try:
            with step_context(context):
                value = deadline.run(body)
        except BaseException as error:
            drop_active()  # a signal's exception too may hit in the middle of a query
            if not deadline.expired:
                raise
            raise self._timeout() from error
        finally:
            self.scope.busy = None
            if deadline.expired:
                clean_connections()
            self._check_left_open()
        if deadline.expired:
            raise self._timeout()
        return value

    def _timeout(self) -> StepTimeout:
        return StepTimeout(
            f"{self.lease.label}: step {self.identity.label!r} took longer than its timeout of {self.options.timeout:g} seconds."
        )

    def _check_left_open(self) -> None:
        """A body that made a durable call, or left a transaction open, is refused whatever it did then (design 6)."""
        replay = self.session.replay
        if replay.refusal is not None:
            raise replay.refusal
        if block := atomicity.opened():
            atomicity.abandon_opened()
            replay.refuse(
                f"The body of step {self.identity.label!r} of {self.lease.label} left {block} open: what it wrote there is rolled back."
            )

    # Writes -----------------------------------------------------------------------------------------------------------

    def _write(self, started: Any, *entries: Entry, wake_in: float | None = None, unshaken: bool = False) -> Any:
        write = StepWrite(
            record=self.record,
            run_number=self.session.claim.run_number,
            started=started,
            entries=entries,
            wake_in=wake_in,
            unshaken=unshaken,
        )
        return write_step(self.lease, write)

    def _mark_start(self) -> None:
        """Write before the body that it has started, so that a lost worker is known to have lost this very attempt
        (case RET-03)."""
        self.record.status = STARTED
        self._write(self.session.claim.db_now())

    def _settle_lost(self) -> None:
        """Charge a lost attempt, in a fenced write before the body: the one that has an open start mark, or after a
        takeover the first step that the replay wants to execute (design 6, "Interruptions")."""
        record = self.record
        if record.status != STARTED or record.token is None:
            if not self.session.take_charge(record) or self.options.retries.limit == 0:
                return
            record.attempts += 1
        lost = Entry("attempt_lost", {"attempt": record.attempts})
        logger.warning(
            "%s: the worker of attempt %d of %s was lost", self.lease.label, record.attempts, self.identity.label
        )
        if record.used > (self.options.retries.limit or 0):
            error = WorkerLost(
                f"{self.lease.label}: the worker that ran attempt {record.attempts} of step "
                f"{self.identity.label!r} was lost, and no retries are left."
            )
            self._finish_failed(error, self.session.claim.db_now(), lost)
        record.status = PENDING
        self._write(self.session.claim.db_now(), lost)

    def _failed(self, attempt: Attempt, error: BaseException, context: StepContext, started: Any) -> Any:
        if not attempt.begin_commit() and isinstance(error, LeaseLost):
            raise error
        retries = self.options.retries
        record = self.record
        final = retries.gives_up(error) or error is self.session.replay.refusal or record.used > (retries.limit or 0)
        delay = timedelta()
        if not final:
            try:
                delay = retries.delay_for(max(record.used, 1), context=context, error=error)
            except NonRetryableError as wrong_delay:
                final, error = True, wrong_delay
        described = self.session.describe(error, self.identity, self.options.sensitive)
        data = {"attempt": attempt.number, "started": started, "error": self._shown(described)}
        if error is self.session.replay.refusal and retries.limit != 0:
            return self._refused(error, described, started, Entry("attempt_errored", data))
        if final:
            return self._finish_failed(error, started, Entry("attempt_errored", data), described=described)
        record.status, record.output, record.error = PENDING, None, codec.dumps(described)
        entry = Entry("attempt_errored", {**data, "retry_delay": delay.total_seconds()})
        wake_at = self._write(started, entry, wake_in=delay.total_seconds())
        self.session.suspend(wake_at, self.identity)

    def _refused(self, error: BaseException, described: dict[str, Any], started: Any, entry: Entry) -> NoReturn:
        """The body broke a rule of the engine. The attempt is recorded, but the step has failed only if the instance
        ends by it: a blocked one runs the repaired body after ``resume()``."""
        self.record.status, self.record.output, self.record.error = PENDING, None, codec.dumps(described)
        self._write(started, entry)
        self.session.refused = self
        self.session.errors.append((error, self.identity))
        raise error

    def fail_refused(self) -> None:
        """The refusal ends the instance: the step has failed."""
        described = self.session.decode(self.record.error or "{}", self.identity)
        self.record.status = FAILED
        self._write(self.session.claim.db_now(), Entry("step_errored", {"error": self._shown(described)}))

    def _finish_failed(
        self, error: BaseException, started: Any, *entries: Entry, described: dict[str, Any] | None = None
    ) -> Any:
        described = described or self.session.describe(error, self.identity, self.options.sensitive)
        record = self.record
        record.status, record.output, record.error = FAILED, None, codec.dumps(described)
        last = Entry("step_errored", {"error": self._shown(described)})
        self._write(started, *entries, last, unshaken=self.session.shaken)
        self.session.shaken = False
        if self.session.replay.refusal is not None:
            self.session.errors.append((self.session.replay.refusal, self.identity))
            raise self.session.replay.refusal
        # The stored traceback is part of it; the body's own error would repeat it, in the first execution alone.
        raise self.session.failure(record) from None

    def _shown(self, described: dict[str, Any]) -> dict[str, Any]:
        return failures.public(failures.masked(described) if self.options.sensitive else described)

    def _context(self) -> StepContext:
        claim, identity = self.session.claim, self.identity
        return StepContext(
            name=identity.name,
            count=identity.count,
            attempt=self.record.attempts,
            instance_id=claim.instance_id,
            workflow=claim.workflow,
            run_number=claim.run_number,
            idempotency_key=idempotency_key(claim.seed, self.record.key_run, *identity),
            deadline=claim.db_now() + timedelta(seconds=self.options.timeout),
            config=self.options.to_config(),  # made anew, so that the body may change it
        )
