"""One execution of one instance: it answers the durable calls of ``run`` (design 6)."""

from __future__ import annotations

import random
from collections.abc import Callable
from logging import LoggerAdapter
from typing import Any, Final, NoReturn
from uuid import UUID

from durableflow.authoring import calls
from durableflow.authoring.context import derive
from durableflow.authoring.group_calls import (
    ChildCall,
    ChildrenCall,
    GatherCall,
    MapCall,
    PatchCall,
    RaceCall,
    StartCall,
)
from durableflow.core import codec, failures
from durableflow.core.answers import Decision, Event
from durableflow.core.conf import get_settings
from durableflow.core.durations import TEN_YEARS
from durableflow.core.exceptions import InvalidConfig, NonRetryableError
from durableflow.engine import children, continuing, endings, starvation
from durableflow.engine.awaiting import awaited
from durableflow.engine.bodies import BodyOptions, BodyRun, resolve
from durableflow.engine.bodyoptions import options_of
from durableflow.engine.gathering import gather, map_items
from durableflow.engine.handler_traps import Traps
from durableflow.engine.journal import COMPLETE, FAILED, NOTIFY, PENDING, Identity, Record
from durableflow.engine.logs import ReplayLogger
from durableflow.engine.patches import patched
from durableflow.engine.racing import race
from durableflow.engine.replay import Scope
from durableflow.engine.scopes import current
from durableflow.engine.session import Session
from durableflow.engine.steps import Entry
from durableflow.engine.unwind import Drop, Unwind, WriteFailed
from durableflow.engine.waits import Answer, UnreadableAnswer, attend, cancel_wait, load_pending
from durableflow.models import PendingEvent

# Calls that have more to do than to give what is recorded.
ANSWERS: Final[dict[type[calls.Call], Callable[..., Any]]] = {
    GatherCall: gather,
    MapCall: map_items,
    RaceCall: race,
    PatchCall: patched,
    ChildCall: children.answer,
    ChildrenCall: children.answer,
    StartCall: children.answer,
}


class Execution(Session):
    """The runtime behind ``step``: each durable call returns, raises, runs a body, opens a wait or suspends."""

    body_run = BodyRun
    traps: Traps | None = None
    _logger: LoggerAdapter[Any] | None = None

    # Runtime ----------------------------------------------------------------------------------------------------------

    def call(self, call: calls.Call) -> Any:
        """Answer a durable call of this thread's scope."""
        found = current.get()
        scope = found if found is not None and found.replay is self.replay else self.replay.root
        try:
            identity = self.replay.enter(scope, call.kind, call.name)
            self.check_alive()
            return self.answer_as(scope, identity, call)
        except (WriteFailed, MemoryError) as error:
            self.engine_failed(error)

    def engine_failed(self, error: WriteFailed | MemoryError) -> NoReturn:
        """What becomes of an execution in which a call could not be answered. Called while ``error`` is handled."""
        if isinstance(error, WriteFailed):  # run() has done nothing wrong
            self.replay.halt(error.error)
        if any(error is known for known, _step in self.errors):
            raise error  # the step's, after its last attempt
        starvation.leave(self.claim, error)
        self.replay.unwind(Unwind(Drop(self.lease.label)))

    def note(self, scope: Scope, identity: Identity, call: calls.Call) -> None:
        """Told of each call whose branches others settle."""

    def made(self, identity: Identity, call: calls.Call) -> None:
        """Told of each call that may have a rollback handler when it is made. Raises InvalidConfig for a trap (``Traps``)."""
        rollback = getattr(call, "rollback", None)
        if rollback is not None:
            self.traps = self.traps or Traps()
            self.traps.check(identity, rollback.handler)

    def answer_as(self, scope: Scope, identity: Identity, call: calls.Call) -> Any:
        """Answer a call whose identity is reserved."""
        entrant = scope.entrant
        if entrant is not None:
            entrant.check(self, identity, call)
            if not entrant.decided:
                return entrant.enter(self, scope, identity, call)
        record = self.replay.meet(scope, identity)
        if isinstance(call, calls.DoCall):
            if call.rollback is not None:
                self.made(identity, call)
            if record is not None and record.finished:
                return self.recorded(record)
            options = options_of(self, identity.label, record, call)
            return self.body_run(self, scope, identity, record, options).run(call.body)
        answer = ANSWERS.get(type(call))
        if answer is not None:
            self.made(identity, call)
            if record is None or not record.finished:
                self._charge = False  # bodies of branches have start marks of their own
            return answer(self, scope, identity, record, call)
        if record is not None and record.finished:
            return self._recorded(record, call)
        if isinstance(call, calls.WaitCall):
            return self._wait(scope, identity, record, call)
        self._charge = False  # nothing was in a body when the worker was lost
        if isinstance(call, calls.SleepCall | calls.SleepUntilCall):
            return self._sleep(scope, identity, record, call)
        return self._now(identity, record)

    def continue_as_new(self, params: Any) -> NoReturn:
        """See ``Step.continue_as_new``."""
        continuing.continue_as_new(self, params)

    def set_progress(self, value: Any) -> None:
        """See ``Step.set_progress``."""
        scope = self.scope()
        self.replay.guard(scope, "set_progress()")
        self.check_alive()
        if not self.replay.replaying(scope):
            text = codec.dumps(value, what=f"progress of {self.claim.label}", max_bytes=get_settings().LIMITS.output)
            try:
                endings.set_progress(self.lease, text)
            except WriteFailed as failed:
                self.replay.halt(failed.error)

    def uuid4(self) -> UUID:
        """See ``Step.uuid4``."""
        scope = self.scope()
        self.replay.guard(scope, "uuid4()")
        scope.ids += 1
        return UUID(bytes=derive("uuid4", self.claim.seed, scope.name, scope.ids)[:16], version=4)

    @property
    def random(self) -> random.Random:
        """See ``Step.random``."""
        scope = self.scope()
        self.replay.guard(scope, "random")
        if scope.random is None:
            scope.random = random.Random(derive("random", self.claim.seed, scope.name))  # noqa: S311  repeatable, not secret
        found: random.Random = scope.random
        return found

    @property
    def is_replaying(self) -> bool:
        """See ``Step.is_replaying``."""
        return self.replay.replaying(self.scope())

    @property
    def logger(self) -> LoggerAdapter[Any]:
        """See ``Step.logger``."""
        if self._logger is None:
            self._logger = ReplayLogger(self.claim, lambda: self.is_replaying)
        return self._logger

    # Calls that have no body ------------------------------------------------------------------------------------------

    def _sleep(
        self,
        scope: Scope,
        identity: Identity,
        record: Record | None,
        call: calls.SleepCall | calls.SleepUntilCall,
    ) -> None:
        now = self.claim.db_now()
        if record is None:
            if not (call.when <= now if isinstance(call, calls.SleepUntilCall) else not call.duration):
                record = self.open_sleep(identity, call)
                self.suspend(scope, record.wake_at, identity)
            record = self.new_record(identity)
        elif record.wake_at is not None and record.wake_at > now:
            self.suspend(scope, record.wake_at, identity)
        # Lost with a crash of the server, the end of a sleep that had begun is found once more; what follows it waits for the disk.
        later = record.status == PENDING
        record.status = COMPLETE
        self.write(record, Entry("sleep_completed"), wake_at=record.wake_at, later=later)

    def open_sleep(
        self, identity: Identity, call: calls.SleepCall | calls.SleepUntilCall, record: Record | None = None
    ) -> Record:
        """Record that a sleep has begun, or begins again. Raises InvalidConfig for one that is too long."""
        seconds, when = None, None
        if isinstance(call, calls.SleepCall):
            seconds = call.duration.total_seconds()
        else:
            when = call.when
            if when > self.claim.db_now() + TEN_YEARS:
                raise InvalidConfig(
                    f"step {call.name!r}: when: {when} is more than ten years ahead.", step=call.name, field="when"
                )
        record = record or self.new_record(identity)
        record.status = PENDING
        data = {"seconds": seconds} if when is None else {"until": when}
        record.wake_at = self.write(record, Entry("sleep_started", data), wake_in=seconds, wake_at=when)
        return record

    def _now(self, identity: Identity, record: Record | None) -> Any:
        record = record or self.new_record(identity)
        record.status, record.output = COMPLETE, codec.dumps(self.claim.db_now())
        self.write(record)
        return self.decode(record.output, identity)

    # Waits ------------------------------------------------------------------------------------------------------------

    def _wait(self, scope: Scope, identity: Identity, record: Record | None, call: calls.WaitCall) -> Any:
        # The dead worker may have been in the body of notify, where that has not ended; in no other body.
        told = self.replay.records.get(identity._replace(kind=NOTIFY))
        if call.notify is None or (told is not None and told.finished):
            self._charge = False
        if record is not None and scope is not self.replay.root and record.status == PENDING:
            heard = call.notify is None or (told is not None and told.status == COMPLETE)
            if heard and self.quiet.knows(self, identity):
                self.suspend(scope, self.quiet.deadline(identity), identity)
        record = record or self.new_record(identity)
        try:
            answer = attend(self.lease, self.claim, record, call)
        except UnreadableAnswer as error:
            self.replay.halt(error)
        except NonRetryableError as error:  # an unknown group, a context that cannot be stored
            self.wait_refused(record, error)
        if not answer.settled and call.notify is not None:
            answer = self._notify(scope, identity, record, call, answer)
        if not answer.settled:
            record.status = PENDING
            self.suspend(scope, answer.wake_at, identity)
        self.shaken = False
        record.status = COMPLETE if answer.error is None else FAILED
        record.output, record.error = answer.output, answer.error
        return self._recorded(record, call)

    def wait_refused(self, record: Record, error: Exception) -> NoReturn:
        """The wait cannot open. That is an outcome like any other: one that ``run`` has caught stays caught."""
        described = self.describe(error, record.identity, False)
        record.status, record.error = FAILED, codec.dumps(described)
        self.write(record, Entry("step_errored", {"error": failures.public(described)}))
        raise self.failure(record) from None

    def _notify(self, scope: Scope, identity: Identity, wait: Record, call: calls.WaitCall, answer: Answer) -> Answer:
        """Tell somebody of the open wait; what becomes of it if that fails for good."""
        try:
            self.tell(scope, identity, call, answer)
            return answer
        except Exception as error:
            if error is self.replay.refusal:
                raise
            text = codec.dumps(self.describe(error, identity, False))
            return cancel_wait(self.lease, self.claim, wait, answer.pending_event, text)

    def tell(self, scope: Scope, identity: Identity, call: calls.WaitCall, answer: Answer) -> None:
        """Run ``notify`` of an open wait, unless it has run: a recorded body under the wait's name and count (design 5). Raises its
        error when it has finally failed."""
        own = identity._replace(kind=NOTIFY)
        record = self.replay.records.get(own)
        if record is None or not record.finished:
            self.check_alive()  # the wait is open, and nothing of it is lost; a body begins here
            options = resolve(self, identity.label, record, None, None, False, False)
            self._run_notify(scope, own, record, options, call, answer)
        elif record.status == FAILED:  # and the worker was lost before it had cancelled the wait
            raise self.failure(record)

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
        body = BodyRun(self, scope, own, record, options)
        body.latest = answer.wake_at
        body.run(lambda: _without_result(notify, pending))

    def _recorded(self, record: Record, call: calls.Call) -> Any:
        value = self.recorded(record)
        if not isinstance(call, calls.WaitCall):
            return value
        with self.reading(record.identity):
            return Decision(**value) if isinstance(call, calls.ApprovalCall) else Event(**value)


def _without_result(notify: Any, pending: PendingEvent) -> None:
    """``notify`` is for its effect: what it returns need not be storable."""
    awaited(notify(pending))
