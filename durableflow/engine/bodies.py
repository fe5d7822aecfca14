"""Running the body of a step: attempts, retries, lost workers, the checkpoint (design 6)."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from typing import Any, NoReturn

from django.db import InterfaceError, OperationalError, connections

from durableflow.authoring.context import Lazy, step_context
from durableflow.core import atomicity, codec
from durableflow.core.exceptions import CodecError, InvalidConfig, WorkerLost
from durableflow.engine import abandonment, endings, replacement, shutdown, watcher
from durableflow.engine.atomic import NotWritten
from durableflow.engine.attempts import Attempt
from durableflow.engine.bodyoptions import BodyOptions, resolve
from durableflow.engine.bounds import bounded, recursion_limit
from durableflow.engine.fence import locked_row
from durableflow.engine.journal import COMPLETE, FAILED, PENDING, STARTED
from durableflow.engine.sql import is_postgres
from durableflow.engine.steprun import FailedAttempt, StepRun
from durableflow.engine.steps import Entry
from durableflow.engine.timeouts import Deadline, clean_connections, drop_active, drop_closed, forget_interruption
from durableflow.engine.unwind import (
    AlreadyFinished,
    BranchesInFlight,
    Drop,
    GiveBack,
    LeaseLost,
    ProcessDied,
    Unwind,
    WriteFailed,
)

__all__ = ["BodyOptions", "BodyRun", "resolve"]
logger = logging.getLogger("durableflow.steps")


class BodyRun(StepRun):
    """One step's way from its call to its value, its error or the suspension until the next attempt."""

    attempt: Attempt
    latest: datetime | None = None
    """When the instance must look again, however long the retry delay: the deadline of a wait counts on."""
    _context: Lazy
    _started: Any
    _timed_out: FailedAttempt | None = None
    _recorded = False
    _wake_at: Any = None

    def run(self, body: Callable[[], Any]) -> Any:
        """Make one attempt. Returns the value as a replay would; raises the step's error, or unwinds until the
        retry."""
        self.begin()
        try:
            text = self._perform(body)
        except BaseException as error:
            return self.ended_by(error)
        return self.value_of(text)

    def begin(self) -> None:
        """What comes before a body: a retry delay that is not over (case RET-11), lost attempts, the start mark, the lease."""
        record = self.record
        if record.status == PENDING and record.wake_at is not None and record.wake_at > self.session.claim.db_now():
            self.session.suspend(self.scope, self._until(record.wake_at), self.identity)
        self._settle_lost()
        record.attempts += 1
        if self.always_marked or self.session.interrupted:
            self.lease.require()  # a mark without a body behind it would be charged
            self._mark_start()
        self.attempt = self._new_attempt()
        self._started = self.session.claim.db_now()
        self._context = self.context(self._started)
        self.lease.require()

    @property
    def always_marked(self) -> bool:
        """Whether no body of this step begins without a start mark (design 6, "Interruptions"): in a branch several may be in
        flight when a worker is lost; and what may have begun is undone."""
        options = self.options
        return options.retries.limit == 0 or options.rollback or self.scope is not self.session.replay.root

    def ended_by(self, error: BaseException) -> Any:
        """What comes of an attempt that ended with an exception: the step's error, or the suspension until the retry."""
        if isinstance(error, ProcessDied | LeaseLost | Unwind | WriteFailed):
            raise error
        if isinstance(error, KeyboardInterrupt) and shutdown.requested():
            self.session.replay.unwind(Unwind(GiveBack()))
        return self._failed(error)

    def value_of(self, text: str) -> Any:
        """The value of a checkpoint that has just been written."""
        self.session.shaken = False  # not before: an atomic step's transaction may be made again
        value = self.session.decode(text, self.identity)
        if self.options.sensitive:
            self.session.secrets.add(value)
        return value

    def _until(self, wake_at: datetime | None) -> datetime | None:
        return min((moment for moment in (wake_at, self.latest) if moment is not None), default=None)

    # The body ---------------------------------------------------------------------------------------------------------

    def _new_attempt(self) -> Attempt:
        return Attempt(self.identity, self.record.attempts, self)

    def _perform(self, body: Callable[[], Any]) -> str:
        number = self.attempt.number
        body = self.session.interceptor.body(self.session.claim.workflow, self.identity, number, body)
        if not self.options.atomic:
            return self._attempt(body)

        def again() -> str:
            if self.attempt.abandoned:
                raise LeaseLost(self.lease.label)
            self.attempt = self._new_attempt()  # each time: what was rolled back is no outcome
            return self._attempt(body)

        return self.session.atomically(again, self.record, again=self.options.retries.limit != 0)

    def _attempt(self, body: Callable[[], Any]) -> str:
        try:
            text = self._returned(self._call(body))
        finally:
            watcher.unwatch(self.attempt)
        return self._checkpoint(text)

    def _returned(self, value: Any) -> str:
        """The stored form of what the body has returned; from here on only this thread may write."""
        attempt = self.attempt
        try:
            text = self.session.encode(value, self.identity)
        except CodecError:
            if inspect.iscoroutine(value):
                self._refuse_coroutine(value)
            raise
        self.session.interceptor.before_checkpoint(self.session.claim.workflow, self.identity, attempt.number)
        if not attempt.begin_commit():
            self._drop("value")
        return text

    def _refuse_coroutine(self, value: Coroutine[Any, Any, Any]) -> NoReturn:
        value.close()  # nobody will await it
        raise InvalidConfig(
            f"step {self.identity.name!r}: the body is asynchronous, and run() is not: nobody awaits it. Make it async def run(self, "
            "event, step: AsyncStep), or give step.do a plain function.",
            step=self.identity.name,
            field="fn",
        ) from None

    def _checkpoint(self, text: str) -> str:
        self.record.status, self.record.output, self.record.error = COMPLETE, text, None
        entry = Entry("step_completed", text=codec.attempt(self.attempt.number, self._started))
        try:
            self.write(self._started, entry, unshaken=self.session.shaken)
        except (OperationalError, InterfaceError) as error:
            if not self.options.atomic:
                raise
            raise NotWritten from error
        self.attempt.finish()
        return text

    def _call(self, body: Callable[[], Any]) -> Any:
        """Run the body under its deadline, with the scope closed to durable calls."""
        deadline, limit = Deadline(self.options.timeout), recursion_limit()
        body = bounded(body, limit, lambda: f"step {self.identity.label!r} of {self.lease.label}")
        self.scope.busy = self.identity
        # On SQLite an atomic body holds the only write lock: a mark could not be written before its end.
        markable = not self.options.atomic or is_postgres(self.lease.using)
        self.attempt.start(self.options.timeout, markable=markable)
        watcher.watch(self.attempt, self.lease, list(self.scope.wrappers))
        try:
            with step_context(self._context):
                value = deadline.run(body)
        except BaseException as error:
            drop_active()  # a signal's exception too may hit in the middle of a query
            if not deadline.expired:
                raise
            raise self.timeout_error() from error
        finally:
            sys.setrecursionlimit(limit)  # an interruption may have hit where the body's bounds are restored
            self.attempt.left()
            if self.attempt.abandoned:
                forget_interruption()
            drop_closed(self.scope.wrappers)
            self.scope.busy = None
            if deadline.expired:
                clean_connections()
            self._check_left_open()
        if deadline.expired:
            raise self.timeout_error()
        return value

    def _check_left_open(self) -> None:
        """A body that made a durable call, or left a transaction open, is refused whatever it did then (design 6)."""
        replay = self.session.replay
        if (refusal := replay.refused_here()) is not None:
            raise refusal
        if block := atomicity.opened(self.scope.wrappers):
            atomicity.abandon_opened()
            replay.refuse(
                f"The body of {self.what} of {self.lease.label} left {block} open: what it wrote there is rolled back."
            )

    def _drop(self, what: str) -> NoReturn:
        """The attempt was abandoned: whatever its body does now comes too late (case RET-04)."""
        logger.warning(
            "%s: attempt %d of %s had timed out; its late %s is dropped",
            self.lease.label,
            self.attempt.number,
            self.identity.label,
            what,
            extra={"instance": self.lease.pk},
        )
        replacement.over(abandonment.cause(self.attempt))
        for connection in connections.all(initialized_only=True):
            atomicity.drop(connection)  # the watcher has cut it off
        if self.scope.lost is not None:  # others go on with the branch: nothing of it is for this thread any more
            self.scope.stop = Unwind(Drop(self.lease.label))
        raise LeaseLost(self.lease.label)

    # Writes -----------------------------------------------------------------------------------------------------------

    def _mark_start(self) -> None:
        """Write before the body that it has started, so that a lost worker is known to have lost this very attempt
        (case RET-03)."""
        self.record.status = STARTED
        self.write(self.session.claim.db_now())

    def _settle_lost(self) -> None:
        """Charge a lost attempt, in a fenced write before the body: the one that has an open start mark, or after a
        takeover the first step that the replay wants to execute (design 6, "Interruptions")."""
        record = self.record
        if record.status != STARTED or record.token is None:
            # One that always has a mark cannot have begun without.
            if self.always_marked or not self.session.take_charge(record):
                return
            record.attempts += 1
        lost = Entry("attempt_lost", {"attempt": record.attempts})
        logger.warning(
            "%s: the worker of attempt %d of %s was lost", self.lease.label, record.attempts, self.identity.label
        )
        if record.used > (self.options.retries.limit or 0):
            error = WorkerLost(
                f"{self.lease.label}: the worker that ran attempt {record.attempts} of {self.what} was lost, "
                "and no retries are left."
            )
            self.write_failed(self.describe(error), self.session.claim.db_now(), lost)
            self.raise_failed()
        record.status = PENDING
        self.write(self.session.claim.db_now(), lost)

    def _failed(self, error: BaseException) -> Any:
        if not self.attempt.fail():
            self._drop(f"error ({type(error).__name__})")
        failed = FailedAttempt(self, self.attempt.number, error, self._context(), self._started)
        try:
            wake_at = failed.write()
        except AlreadyFinished:  # nothing has failed: another execution takes the recorded value
            self.session.replay.unwind(Unwind(GiveBack(stop=False)))
        if failed.refused:
            self.session.refused = self
            self.session.errors.append((failed.error, self.identity))
            raise failed.error
        if failed.final:
            self.raise_failed()
        self.record.wake_at = wake_at
        self.session.suspend(self.scope, self._until(wake_at), self.identity)

    def fail_refused(self) -> None:
        """The refusal ends the instance: the step has failed."""
        described = self.session.decode(self.record.error or "{}", self.identity)
        self.record.status = FAILED
        self.write(self.session.claim.db_now(), Entry("step_errored", {"error": self.shown(described)}))

    @property
    def detached(self) -> bool:
        """See ``Outcome``."""
        return self.scope.lost is not None

    # In the watcher's thread -------------------------------------------------------------------------------------------

    def mark_running(self) -> None:
        """See ``Outcome``: a long body shows as started, and is known if its worker is lost."""
        with locked_row(self.lease) as ours:
            if ours:
                self.write(self._started, record=replace(self.record, status=STARTED, wake_at=None))

    def time_out(self) -> None:
        """See ``Outcome``. The same as when the body's own thread does it: the retry after its delay; or the failed
        record, which another execution raises into ``run``."""
        if self._timed_out is None:
            self._timed_out = FailedAttempt(
                self, self.attempt.number, self.timeout_error(), self._context(), self._started
            )
        if not self._recorded:
            shaken = self.session.shaken
            try:
                with locked_row(self.lease, wait=True):
                    self._wake_at = self._timed_out.write()
            except BaseException:
                self.session.shaken = shaken  # rolled back: the next try has the counts to clear again
                raise
            self._recorded = True
        if self.scope.lost is not None:
            self.record.wake_at = self._wake_at
            self.scope.lost(self._until(self._wake_at))
            return
        # Other threads may be in branches of the instance: when they have stored what they do, it goes on elsewhere. The stop
        # comes first: who enters one from now on gets no further than to its next durable call.
        self.session.replay.stop = self.session.replay.stop or Unwind(GiveBack(stop=False))
        if self.session.branches.others(self.attempt.thread):
            raise BranchesInFlight
        # In a transaction of its own, which may have to lock more than this row first. If the process dies in between,
        # a takeover sees by the token that the attempt is recorded.
        if self._timed_out.final:
            endings.give_back(self.lease)
        else:
            endings.suspend(self.lease, self._until(self._wake_at))
