"""One step in this execution: its record, what is written of it, and what becomes of a failed attempt (design 6)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NoReturn

from durableflow.authoring.context import Lazy, StepContext, idempotency_key
from durableflow.core import codec, failures
from durableflow.core.exceptions import NonRetryableError, StepTimeout
from durableflow.engine.bodyoptions import BodyOptions, config_text
from durableflow.engine.journal import FAILED, PENDING, Identity, Record
from durableflow.engine.lease import Lease
from durableflow.engine.replay import Scope
from durableflow.engine.session import Session
from durableflow.engine.steps import Entry, StepWrite, write_step


class StepRun:
    """A step that has a body, from its call on."""

    def __init__(
        self, session: Session, scope: Scope, identity: Identity, record: Record | None, options: BodyOptions
    ) -> None:
        self.session, self.scope, self.identity, self.options = session, scope, identity, options
        self.lease: Lease = session.lease
        self.record = record or session.new_record(identity)
        self.record.sensitive = options.sensitive
        if self.record.config is None:
            self.record.config = config_text(options)

    def write(
        self,
        started: Any,
        *entries: Entry,
        record: Record | None = None,
        wake_in: float | None = None,
        unshaken: bool = False,
    ) -> Any:
        """Write the record, or another state of it, as the lease's holder; its ``wake_at``."""
        write = StepWrite(
            record=record or self.record,
            run_number=self.session.claim.run_number,
            started=started,
            entries=entries,
            wake_in=wake_in,
            unshaken=unshaken,
        )
        return write_step(self.lease, write)

    def write_failed(self, described: dict[str, Any], started: Any, *entries: Entry) -> None:
        """The step has failed: a checkpoint like any other."""
        record = self.record
        record.status, record.output, record.error = FAILED, None, codec.dumps(described)
        last = Entry("step_errored", {"error": self.shown(described)})
        self.write(started, *entries, last, unshaken=self.session.shaken)
        self.session.shaken = False

    def raise_failed(self) -> NoReturn:
        """Raise the error of the failed step into ``run``, as each replay will."""
        if self.session.replay.refusal is not None:
            self.session.errors.append((self.session.replay.refusal, self.identity))
            raise self.session.replay.refusal
        # The stored traceback is part of it; the body's own error would repeat it, in the first execution alone.
        raise self.session.failure(self.record) from None

    def describe(self, error: BaseException) -> dict[str, Any]:
        """An error of the body as it is stored."""
        return self.session.describe(error, self.identity, self.options.sensitive)

    def shown(self, described: dict[str, Any]) -> dict[str, Any]:
        """The same as the history tells it."""
        return failures.public(failures.masked(described) if self.options.sensitive else described)

    @property
    def what(self) -> str:
        """How messages name it."""
        return f"step {self.identity.label!r}"

    def timeout_error(self) -> StepTimeout:
        """What an attempt ends with that took too long."""
        return StepTimeout(
            f"{self.lease.label}: {self.what} took longer than its timeout of {self.options.timeout:g} seconds."
        )

    def context(self, started: datetime) -> Lazy:
        """What ``get_step_context()`` gives in the body of the attempt that starts now."""
        claim, identity, attempt = self.session.claim, self.identity, self.record.attempts
        return Lazy(
            lambda: StepContext(
                name=identity.name,
                count=identity.count,
                attempt=attempt,
                instance_id=claim.instance_id,
                workflow=claim.workflow,
                run_number=claim.run_number,
                idempotency_key=idempotency_key(claim.seed, self.record.key_run, *identity),
                deadline=started + timedelta(seconds=self.options.timeout),
                config=self.options.to_config(),  # made anew, so that the body may change it
            )
        )


class FailedAttempt:
    """What becomes of an attempt that failed. Decided once; written by the thread that made it, or by the watcher where
    that thread does not end.

    ``final``: no attempt will follow. ``refused``: the body broke a rule of the engine.
    """

    def __init__(self, run: StepRun, number: int, error: BaseException, context: StepContext, started: Any) -> None:
        retries = run.options.retries
        refusal = run.session.replay.refusal
        self.final = retries.gives_up(error) or error is refusal or run.record.used > (retries.limit or 0)
        self.delay = timedelta()
        if not self.final:
            try:
                self.delay = retries.delay_for(max(run.record.used, 1), context=context, error=error)
            except NonRetryableError as wrong_delay:
                self.final, error = True, wrong_delay
        self.refused = error is refusal and retries.limit != 0
        self.error = error
        self._run, self._started = run, started
        self._described = run.describe(error)
        self._data = {"attempt": number, "started": started, "error": run.shown(self._described)}

    def write(self) -> Any:
        """Record it; the moment of the next attempt, None if there is none.

        A refused body's attempt is recorded, but its step has failed only if the instance ends by it: a blocked one runs
        the repaired body after ``resume()``.
        """
        run = self._run
        entry = Entry("attempt_errored", self._data)
        if self.final and not self.refused:
            run.write_failed(self._described, self._started, entry)
            return None
        record = run.record
        record.status, record.output, record.error = PENDING, None, codec.dumps(self._described)
        if self.refused:
            run.write(self._started, entry)
            return None
        seconds = self.delay.total_seconds()
        entry = Entry("attempt_errored", {**self._data, "retry_delay": seconds})
        return run.write(self._started, entry, wake_in=seconds)
