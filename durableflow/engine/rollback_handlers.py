"""One rollback handler's way to its end: attempts as a step's, written to the columns of the rollback (design 7)."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn

from durableflow.authoring.context import Lazy, StepContext, idempotency_key, set_current_step
from durableflow.authoring.undo import AnyRollback, Undo
from durableflow.engine import rollback_writes
from durableflow.engine.asyncbody import BLOCKED_SECONDS
from durableflow.engine.asyncrun import run_async
from durableflow.engine.bodies import BodyRun
from durableflow.engine.bodyoptions import BodyOptions
from durableflow.engine.execution import Execution
from durableflow.engine.interception import Interceptor
from durableflow.engine.journal import COMPLETE, Identity, Record
from durableflow.engine.rollback_writes import Handler
from durableflow.engine.steps import Entry

KIND: Final = "rollback"
"""What interceptors see in place of the step's kind."""


class HandlerFailed(Exception):
    """A handler has failed for good, and that is recorded."""


class Handlers(Interceptor):
    """What intercepts bodies sees that these are handlers: a mock of the step is none of its handler."""

    def __init__(self, interceptor: Interceptor) -> None:
        self._interceptor = interceptor

    def body(self, workflow: str, identity: Identity, attempt: int, body: Callable[[], Any]) -> Callable[[], Any]:
        """See ``Interceptor``."""
        return self._interceptor.body(workflow, identity._replace(kind=KIND), attempt, body)

    def job(self, job: Callable[[], Any]) -> Callable[[], Any]:
        """See ``Interceptor``."""
        return self._interceptor.job(job)

    def before_checkpoint(self, workflow: str, identity: Identity, attempt: int) -> None:
        """See ``Interceptor``."""
        self._interceptor.before_checkpoint(workflow, identity._replace(kind=KIND), attempt)

    def before_exit(self) -> None:
        """See ``Interceptor``."""
        self._interceptor.before_exit()


class HandlerRun(BodyRun):
    """One handler's way to its end or to the suspension until its next attempt: a body whose writes go to the columns of the
    rollback."""

    session: Execution

    def __init__(self, session: Execution, forward: Record, handler: Handler, options: BodyOptions) -> None:
        record = Record(
            handler.identity,
            forward.seq,
            session.claim.execution,
            forward.key_run,
            handler.status,
            attempts=handler.attempts,
            attempts_before_retry=handler.used_before,
            wake_at=handler.wake_at,
            token=session.lease.token,  # whoever wrote an open start mark: its attempt was lost
            config="",
        )
        super().__init__(session, session.replay.root, handler.identity, record, options)
        self._forward = forward

    @property
    def always_marked(self) -> bool:
        """No handler begins without a start mark."""
        return True

    def write(
        self,
        started: Any,
        *entries: Entry,
        record: Record | None = None,
        wake_in: float | None = None,
        unshaken: bool = False,
    ) -> Any:
        """See ``StepRun``."""
        run_number = self.session.claim.run_number
        return rollback_writes.write_handler(self.lease, run_number, record or self.record, entries, wake_in, unshaken)

    def context(self, started: datetime) -> Lazy:
        """That of the step: the attempt that it reached, the same idempotency key; the deadline is the handler's."""
        claim, identity, forward = self.session.claim, self.identity, self._forward
        return Lazy(
            lambda: StepContext(
                name=identity.name,
                count=identity.count,
                attempt=forward.attempts,
                instance_id=claim.instance_id,
                workflow=claim.workflow,
                run_number=claim.run_number,
                idempotency_key=idempotency_key(claim.seed, forward.key_run, *identity),
                deadline=started + timedelta(seconds=self.options.timeout),
                config=self.session.decode(forward.config or "{}", identity),
            )
        )

    def undo(self, rollback: AnyRollback, error: Exception) -> None:
        """Make one attempt, or unwind until the next. Raises HandlerFailed after the last."""
        forward = self._forward
        completed = forward.status == COMPLETE
        output = self.session.recorded(forward) if completed else None

        def body() -> None:
            undo = Undo(completed=completed, output=output, error=error, context=self._context())
            given = rollback.handler(undo)
            if inspect.isawaitable(given):
                self.attempt.grace = BLOCKED_SECONDS  # its loop cancels it in time
                run_async(lambda _runtime: self._await(given), self.session)

        self.run(body)

    async def _await(self, given: Awaitable[Any]) -> None:
        """What an asynchronous handler returned, in a loop of its own: that of ``run`` is no more."""
        set_current_step(self._context)
        limit = asyncio.timeout(max(0.0, self.attempt.due - time.monotonic()))
        try:
            async with limit:
                await given
        except TimeoutError:
            if limit.expired():
                raise self.timeout_error() from None
            raise

    def describe(self, error: BaseException) -> dict[str, Any]:
        """For people alone: nobody rebuilds a handler's error. Of a sensitive step nothing but its type is kept."""
        return self.shown(super().describe(error))

    @property
    def what(self) -> str:
        """See ``StepRun``."""
        return f"the rollback handler of step {self.identity.label!r}"

    def mark_running(self) -> None:
        """It is marked already."""

    def _failed(self, error: BaseException) -> Any:
        self.session.replay.forget_refusal()  # it fails this handler, which is not tried again, and nothing else
        return super()._failed(error)

    def raise_failed(self) -> NoReturn:
        """The handler has failed; nothing is raised into ``run``."""
        raise HandlerFailed
