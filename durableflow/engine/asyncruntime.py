"""The runtime behind an ``AsyncStep``: what its calls do in the thread of the loop (design 6)."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from logging import LoggerAdapter
from typing import Any, Final, NoReturn
from uuid import UUID

from durableflow.authoring.calls import Call, DoCall
from durableflow.authoring.context import derive
from durableflow.authoring.group_calls import GatherCall, MapCall, RaceCall
from durableflow.core import codec
from durableflow.engine import asyncgroups, asyncraces, continuing
from durableflow.engine.asyncanswers import AGAIN, Answers, Ask
from durableflow.engine.asyncbody import AsyncBodyRun, Body
from durableflow.engine.asynccalls import Calls, DurableCall, check_arguments, drop, turn_of
from durableflow.engine.desk import END, NEW, Desk, Turn
from durableflow.engine.execution import Execution
from durableflow.engine.journal import COMPLETE, Identity, Record
from durableflow.engine.loop import Loop
from durableflow.engine.replay import Scope
from durableflow.engine.seats import current_seat

logger = logging.getLogger("durableflow.engine")
given_up: Final[list[asyncio.Task[Any]]] = []
"""Tasks that swallow their cancellation. Kept: what would collect them would run their code in any thread."""


class AsyncRuntime:
    """See ``authoring.facade.AsyncRuntime``. ``thread``, ``bodies``: of the loop (``asyncbody.Place``). ``next_params``: of the run
    that ``continue_as_new`` has asked for."""

    def __init__(self, execution: Execution, loop: Loop, desk: Desk, thread: threading.Thread) -> None:
        self.execution, self.loop, self.desk, self.thread = execution, loop, desk, thread
        self.instance_id, self.run_number = execution.instance_id, execution.run_number
        self.calls = Calls(execution.replay, execution.scope, desk.ring, thread)
        self.answers = Answers(execution, loop, desk, self.calls)
        self.bodies: set[AsyncBodyRun] = self.answers.bodies
        self.next_params: tuple[Any] | None = None

    def acall(self, call: Call) -> Coroutine[Any, Any, Any]:
        """See ``AsyncRuntime``."""
        what = f"{call.kind} {call.name!r}"
        scope, path = self.calls.guard(what)
        check_arguments(call)
        identity, record = self.calls.reserve(scope, path, call)
        self.execution.made(identity, call)
        noted = self.calls.noted(what, scope, identity, call)
        if noted is not None:
            return noted
        if isinstance(call, RaceCall):
            return self.calls.new(what, lambda made: asyncraces.race(self, made, scope, identity, record, call))
        if isinstance(call, GatherCall | MapCall):
            return self.calls.new(what, lambda made: asyncgroups.settle(self, made, scope, identity, record, call))
        return self.calls.new(what, lambda made: self._answer(made, scope, identity, record, call))

    async def _answer(
        self, made: DurableCall, scope: Scope, identity: Identity, record: Record | None, call: Call
    ) -> Any:
        if record is not None and isinstance(call, DoCall) and self._at_hand(record, scope):
            try:
                value = None if record.output is None else codec.loads(record.output)
            except Exception:  # noqa: S110  what cannot be read blocks the instance: the way of all others
                pass
            else:
                self.answers.order.passed(record)
                return value
        work = partial(self.execution.answer_as, scope, identity, call)
        return await self.ask(made, turn_of(record, call), scope, identity, record, work)

    def _at_hand(self, record: Record, scope: Scope) -> bool:
        """Whether the loop's thread itself can give what is recorded: most of a replay is that."""
        plain = record.status == COMPLETE and not record.sensitive and scope.entrant is None
        return (
            plain
            and not self.execution.dry
            and self.answers.order.is_next(record)
            and scope.earlier_unmet(record) is None
        )

    def set_progress(self, value: Any) -> Coroutine[Any, Any, None]:
        """See ``AsyncRuntime``."""
        scope, _path = self.calls.guard("set_progress()")
        work = partial(self.execution.set_progress, value)
        return self.calls.new("set_progress()", lambda made: self.ask(made, NEW, scope, None, None, work))

    def continue_as_new(self, params: Any) -> NoReturn:
        """See ``CommonRuntime``. The instance's thread ends the run; here nothing goes on after it."""
        scope, _path = self.calls.guard("continue_as_new()")
        continuing.checked(self.execution, scope, params)
        self.next_params = (params,)
        self.calls.stopping = True
        self.desk.ring()
        raise asyncio.CancelledError(f"{self.execution.replay.where} continues as a new run.")

    def uuid4(self) -> UUID:
        """See ``CommonRuntime``. Counted in each task by itself."""
        scope, path = self.calls.guard("uuid4()")
        number = path.ids[scope.name] = path.ids.get(scope.name, 0) + 1
        return UUID(bytes=derive("uuid4", self.execution.claim.seed, scope.name, *path.path, number)[:16], version=4)

    @property
    def random(self) -> random.Random:
        """See ``CommonRuntime``. Each task has its own."""
        scope, path = self.calls.guard("random")
        if scope.name not in path.randoms:
            seed = derive("random", self.execution.claim.seed, scope.name, *path.path)
            path.randoms[scope.name] = random.Random(seed)  # noqa: S311  repeatable, not secret
        found: random.Random = path.randoms[scope.name]
        return found

    @property
    def is_replaying(self) -> bool:
        """See ``CommonRuntime``."""
        return self.execution.is_replaying

    @property
    def logger(self) -> LoggerAdapter[Any]:
        """See ``CommonRuntime``."""
        return self.execution.logger

    async def ask(
        self,
        made: DurableCall,
        turn: Turn,
        scope: Scope,
        identity: Identity | None,
        record: Record | None,
        work: Callable[[], Any],
    ) -> Any:
        """Have the instance's thread do ``work``, and a body of it here; the value, or the error is raised."""
        seat = current_seat.get()
        if seat is not None:
            await seat.take()
            seat.begin()
        try:
            value = await self._sent_off(made, turn, scope, identity, record, work, work)
            while True:
                if isinstance(value, Body):
                    finish = await value.end(self)
                    value = await self._sent_off(made, END, scope, identity, record, finish, work)
                elif value is AGAIN and seat is not None:
                    await seat.take()
                    value = await self._sent_off(made, NEW, scope, identity, record, work, work)
                else:
                    return value
        finally:
            if seat is not None:
                seat.end()

    async def _sent_off(
        self,
        made: DurableCall,
        turn: Turn,
        scope: Scope,
        identity: Identity | None,
        record: Record | None,
        answer: Callable[[], Any],
        again: Callable[[], Any],
    ) -> Any:
        ask = Ask(made, self.loop.create_future(), scope, identity, record, answer, again, current_seat.get())
        self.answers.submit(ask, turn)
        try:
            value, error = await ask.future
        except asyncio.CancelledError:
            if ask.future.done() and not ask.future.cancelled():
                drop(ask.future.result()[0])  # it came at this very moment, and nobody takes it
            raise
        finally:
            ask.wake()
        if error is not None:
            raise error
        return value

    def new_body(self, coroutine: Any, context: Context) -> asyncio.Task[Any]:
        """See ``Place``."""
        return self.loop.create_task(coroutine, context=context)

    def give_up(self, task: asyncio.Task[Any]) -> None:
        """See ``Place``."""
        given_up.append(task)
        self.answers.forsaken = True
        logger.warning("%s: a task swallows its cancellation and is given up: %r", self.execution.replay.where, task)
