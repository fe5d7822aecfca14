"""Running an ``async def run`` (design 6, "Suspension, async").

The loop has a thread of its own. The instance's thread meanwhile answers its durable calls, one at a time, with what answers
those of a plain ``run``. A call that has to wait stays pending; when the loop rests, nothing is under way and such calls are
all that is left, the instance is suspended.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from logging import LoggerAdapter
from typing import Any, Final, NoReturn
from uuid import UUID

from asgiref import sync as asgiref_sync
from asgiref.sync import AsyncToSync, SyncToAsync, ThreadSensitiveContext

from durableflow.authoring.calls import Call
from durableflow.authoring.context import derive, set_current_step
from durableflow.authoring.group_calls import GatherCall, MapCall
from durableflow.core import atomicity, codec
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import InvalidDurableCall
from durableflow.engine import asyncgroups
from durableflow.engine.abandonment import stack_of
from durableflow.engine.asyncbody import CANCEL_SECONDS, AsyncBodyRun, Body, current_body
from durableflow.engine.asynccalls import Calls, DurableCall, drop, turn_of
from durableflow.engine.asyncjobs import InstanceThread, Job
from durableflow.engine.desk import Desk, Turn
from durableflow.engine.execution import Execution
from durableflow.engine.journal import Identity, Record
from durableflow.engine.loop import Loop, LoopThread
from durableflow.engine.replay import Scope
from durableflow.engine.seats import Seat, current_seat
from durableflow.engine.unwind import Block, Drop, LeaseLost, Suspend, Unwind, WriteFailed

logger = logging.getLogger("durableflow.engine")
LOOK: Final = 0.1
"""Seconds between two looks for a stop, and for what has arrived, while something is under way."""
TELL_SECONDS: Final = 10.0
"""After so long it is told what keeps an instance from being put away."""
SETTLE_TURNS: Final = 10
"""Turns of the loop after the end of ``run`` in which tasks that it has cancelled may end."""
CLOSE_SECONDS: Final = 2 * CANCEL_SECONDS
"""How long the loop's thread is waited for at the end."""
AGAIN: Final = object()
"""The answer to a call that waited, and is to be made again."""
_given_up: list[asyncio.Task[Any]] = []
"""Tasks that swallow their cancellation. Kept: what would collect them would run their code in any thread."""


@dataclass(eq=False)
class Ask:
    """One durable call in the instance's thread. ``answer``: gives its value, raises its error, or unwinds to wait. ``again``: the
    same for later, when a body of it has ended meanwhile."""

    call: DurableCall
    scope: Scope
    identity: Identity | None
    record: Record | None
    answer: Callable[[], Any]
    again: Callable[[], Any]
    seat: Seat | None
    wake_at: datetime | None = None
    label: str = ""
    parked: bool = False


@dataclass(frozen=True)
class _End:
    """How ``run`` has ended. ``left_over``: what is wrong with the calls that it has left behind."""

    value: Any
    error: BaseException | None
    left_over: str

    def result(self) -> Any:
        """The value, or the error is raised."""
        if self.error is not None:
            raise self.error
        if self.left_over:
            raise InvalidDurableCall(self.left_over)
        return self.value


class AsyncRun:
    """One execution of an ``async def run``: its two threads, and the runtime behind ``step``.

    ``thread``, ``bodies``: of the loop (``asyncbody.Place``).
    """

    def __init__(self, execution: Execution) -> None:
        execution.body_run = AsyncBodyRun
        self.execution = execution
        self.replay = execution.replay
        self.instance_id, self.run_number = execution.instance_id, execution.run_number
        self.desk = Desk()
        self.loop = Loop(self.desk.ring)
        self.thread: threading.Thread = LoopThread(self.loop, self.desk.ring)
        self.bodies: set[AsyncBodyRun] = set()
        self.calls = Calls(self.replay, execution.scope, self.desk.ring)
        self.calls.thread = self.thread
        self.loop.set_task_factory(self.calls.new_task)
        self._parked: dict[DurableCall, Ask] = {}
        self._held: list[Ask] = []
        self._queued: list[Ask] = []
        self._undelivered: set[Body] = set()
        self._sent = 0
        self._end: _End | None = None
        self._look_at = 0.0
        self._awake_since = time.monotonic()
        self._next_params: tuple[Any] | None = None

    # The runtime, in the loop's thread ----------------------------------------------------------------------------------

    def acall(self, call: Call) -> Coroutine[Any, Any, Any]:
        """See ``AsyncRuntime``."""
        what = f"{call.kind} {call.name!r}"
        scope, path = self.calls.guard(what)
        identity, record = self.calls.reserve(scope, path, call)
        if isinstance(call, GatherCall | MapCall):
            return self.calls.new(what, lambda made: asyncgroups.settle(self, made, scope, identity, record, call))
        work = partial(self.execution.answer_as, scope, identity, call)
        return self.calls.new(what, lambda made: self.ask(made, turn_of(record, call), scope, identity, record, work))

    def set_progress(self, value: Any) -> Coroutine[Any, Any, None]:
        """See ``AsyncRuntime``."""
        scope, _path = self.calls.guard("set_progress()")
        work = partial(self.execution.set_progress, value)
        return self.calls.new("set_progress()", lambda made: self.ask(made, Turn.NEW, scope, None, None, work))

    def continue_as_new(self, params: Any) -> NoReturn:
        """See ``CommonRuntime``. The instance's thread ends the run; here nothing goes on after it."""
        self.calls.guard("continue_as_new()")
        codec.dumps(params, what=f"params of {self.replay.where}", max_bytes=get_settings().LIMITS.params)
        self._next_params = (params,)
        self.calls.stopping = True
        self.desk.ring()
        raise asyncio.CancelledError(f"{self.replay.where} continues as a new run.")

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
            value = await self._sent_off(Ask(made, scope, identity, record, work, work, seat), turn)
            while True:
                if isinstance(value, Body):
                    finish = await value.end(self)
                    value = await self._sent_off(Ask(made, scope, identity, record, finish, work, seat), Turn.NOW)
                elif value is AGAIN and seat is not None:
                    await seat.take()
                    value = await self._sent_off(Ask(made, scope, identity, record, work, work, seat), Turn.NEW)
                else:
                    return value
        finally:
            if seat is not None:
                seat.end()

    async def _sent_off(self, ask: Ask, turn: Turn) -> Any:
        future = ask.call.future = self.loop.create_future()
        self.desk.ask(turn, partial(self._do, ask, turn))
        try:
            value, error = await future
        finally:
            if ask.parked and ask.seat is not None:
                ask.parked = False
                ask.seat.wake()
        if error is not None:
            raise error
        return value

    def _park(self, ask: Ask) -> None:
        """In the loop: the call waits, and its branch may leave its place to others."""
        if ask.seat is not None and not ask.call.gone:
            ask.parked = True
            ask.seat.park()

    def _deliver(self, ask: Ask, value: Any, error: Exception | None) -> None:
        if isinstance(value, Body):
            self._undelivered.discard(value)
        future = ask.call.future
        if future is None or future.done():
            drop(value)
        else:
            future.set_result((value, error))

    def new_body(self, coroutine: Any, context: Context) -> asyncio.Task[Any]:
        """See ``Place``."""
        return self.loop.create_task(coroutine, context=context)

    def give_up(self, task: asyncio.Task[Any]) -> None:
        """See ``Place``."""
        _given_up.append(task)
        logger.warning("%s: a task swallows its cancellation and is given up: %r", self.replay.where, task)

    # In the instance's thread -------------------------------------------------------------------------------------------

    def run(self, main: Callable[[], Awaitable[Any]]) -> Any:
        """What ``main()`` returns or raises; or unwinds the execution."""
        outside = dict(vars(SyncToAsync.threadlocal))
        self._start(main)
        try:
            self._serve()
        except Unwind as stop:
            self.calls.stopping = True
            if not isinstance(stop.outcome, Drop):
                self._end_bodies()
            raise
        finally:
            try:
                self._close()
            finally:
                vars(SyncToAsync.threadlocal).clear()
                vars(SyncToAsync.threadlocal).update(outside)
        assert self._end is not None  # noqa: S101
        if self.calls.cancelled:
            self.replay.root.forgive()
        return self._end.result()

    def _start(self, main: Callable[[], Awaitable[Any]]) -> None:
        context = copy_context()
        sensitive = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[sensitive] = InstanceThread(self.desk, self.execution.interceptor)
        context.run(SyncToAsync.thread_sensitive_context.set, sensitive)
        context.run(set_current_step, None)
        context.run(current_body.set, None)
        self.thread.start()
        self.loop.call_soon_threadsafe(self._begin, main, context)

    def _serve(self) -> None:
        """Answer until ``run`` has ended. Raises Unwind, and whatever else ends the execution."""
        while self._end is None:
            rest = self.loop.rest
            self.desk.collect()  # after that look: what was asked before the loop rested is taken in
            if self._next_params is not None:
                self.execution.continue_as_new(*self._next_params)
            settled = rest is not None and rest.seen == self._sent
            work = self.desk.take(settled=settled)
            if work is not None:
                work()
                continue
            if self._queued and settled and not self._alone():
                self._again(self._queued.pop(0), Turn.NEW)
                continue
            if settled and rest is not None and rest.quiet and self._quiescent():
                continue
            self.desk.collect(LOOK)
            self._look()

    def _do(self, ask: Ask, turn: Turn) -> None:
        """One question, answered or put off."""
        if ask.call.gone and turn is not Turn.NOW:
            return
        if turn is Turn.NEW and self._alone():
            self._queued.append(ask)
            return
        if ask.record is not None and turn is not Turn.NOW and ask.scope.earlier_unmet(ask.record) is not None:
            self._held.append(ask)
            return
        try:
            value = ask.call.context.run(self._in_context, ask.answer, turn)
        except Unwind as stop:
            if not isinstance(stop.outcome, Suspend):
                raise
            ask.scope.stop = None
            if self.replay.stop is stop:
                self.replay.stop = None
            if turn is Turn.NOW and ask.call.gone:
                return
            ask.wake_at, ask.label = stop.outcome.wake_at, stop.outcome.where
            self._parked[ask.call] = ask
            if ask.seat is not None:
                self._post(self._park, ask)
        except Exception as error:
            self._send(ask, None, error)
        else:
            if isinstance(value, Body):
                self._undelivered.add(value)
            self._send(ask, value, None)

    def _in_context(self, answer: Callable[[], Any], turn: Turn) -> Any:
        try:
            if turn is not Turn.NOW:  # a body that has ended is stored, whatever is asked of the process
                _adopt_locals()
                self.execution.check_alive()
                self._check_no_block()
            return answer()
        except (WriteFailed, MemoryError) as error:
            self.execution.engine_failed(error)

    def _check_no_block(self) -> None:
        if block := atomicity.opened(self.replay.root.wrappers):
            atomicity.abandon_opened()
            self.replay.refuse(
                f"A durable call of {self.replay.where} was made while {block} was open: sync_to_async has left it so. Open and end a "
                "block inside of one function."
            )

    def _send(self, ask: Ask, value: Any, error: Exception | None) -> None:
        self._post(self._deliver, ask, value, error)

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        """Have the loop call back. Counted: until then the loop does not rest."""
        self._sent += 1
        self.loop.call_soon_threadsafe(self._posted, callback, *args)

    def _posted(self, callback: Callable[..., None], *args: Any) -> None:
        self.loop.seen += 1
        callback(*args)

    # When nothing goes on by itself ---------------------------------------------------------------------------------------

    def _quiescent(self) -> bool:
        """The loop rests, and nothing but an answer can wake it. Suspends the instance if calls wait; True if one has been let
        go on instead."""
        self._held = [ask for ask in self._held if not ask.call.gone]
        if self._held:
            self._let_go_held()
            return True
        if self.replay.refusal is not None:
            self.replay.unwind(Unwind(Block(self.replay.refusal)))  # somebody has caught it
        waiting = self._waiting()
        if not waiting:
            return False  # run() waits for something of its own
        wakes = [ask.wake_at for ask in waiting if ask.wake_at is not None]
        first = min(waiting, key=lambda ask: (ask.wake_at is None, ask.wake_at))
        self.replay.suspend(self.replay.root, Unwind(Suspend(min(wakes, default=None), first.label)))

    def _let_go_held(self) -> None:
        """Answers that are held back for calls which this replay has not made. If the program has cancelled a task, that one would
        have made them; else the program has changed."""
        ready = [ask for ask in self._held if ask.record is None or ask.scope.earlier_unmet(ask.record) is None]
        if not ready:
            first = min(self._held, key=lambda ask: 0 if ask.record is None else ask.record.seq)
            missed = None if first.record is None else first.scope.earlier_unmet(first.record)
            if missed is not None and first.identity is not None and not self.calls.cancelled:
                self.replay.skipped(first.identity, missed)
            first.scope.forgive(None if first.record is None else first.record.seq)
            ready = [first]
        for ask in ready:
            self._held.remove(ask)
            self._again(ask, turn_of(ask.record))

    def _alone(self) -> bool:
        """Whether an async body is under way that shall be alone: after a worker was lost, until something is stored (design 6,
        "Interruptions")."""
        return self.execution.interrupted and bool(self.bodies or self._undelivered)

    def _waiting(self) -> list[Ask]:
        for call in [call for call in self._parked if call.gone]:
            del self._parked[call]
        return list(self._parked.values())

    def _again(self, ask: Ask, turn: Turn) -> None:
        parked = self._parked.pop(ask.call, None)
        if parked is not None and ask.seat is not None:
            self._send(ask, AGAIN, None)  # it has left its place, and takes one first
            return
        ask.answer = ask.again
        self.desk.ask(turn, partial(self._do, ask, turn))

    def _look(self) -> None:
        """While something is under way: has the process to stop, is somebody to be left, can a call go on that waits?"""
        if self.calls.stuck is not None:
            self.replay.give_up(self.calls.stuck)
        if not self.thread.is_alive() and self._end is None:
            raise RuntimeError(f"The event loop of {self.replay.where} has ended by itself.")
        if self._held and self.loop.rest is not None:
            for ask in [ask for ask in self._held if ask.record is None or ask.scope.earlier_unmet(ask.record) is None]:
                self._held.remove(ask)
                self._again(ask, turn_of(ask.record))
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK
        if any(body.attempt.abandoned for body in list(self.bodies)):
            raise LeaseLost(self.replay.where)  # the watcher has recorded that, and lets the instance go
        if not self.bodies:
            self.execution.check_alive()
        waiting = self._waiting()
        self._tell_why_awake(waiting, now)
        if waiting and not self.execution.dry:
            moment = self.execution.claim.db_now()
            before = self.execution.news
            self.execution.take_news()
            news = self.execution.news != before
            for ask in waiting:
                if news or (ask.wake_at is not None and ask.wake_at <= moment):
                    self._again(ask, Turn.NEW)

    def _tell_why_awake(self, waiting: list[Ask], now: float) -> None:
        """Calls that wait cost nothing, but a loop that something else keeps awake does: say so once."""
        if not waiting or self.bodies:
            self._awake_since = now
        elif now - self._awake_since > TELL_SECONDS:
            self._awake_since = math.inf
            logger.warning(
                "%s waits at %s, but cannot be put away: outside of a step its event loop has %s. Put that into a step, or end it "
                "before the call that waits (a client's connection, say).",
                self.replay.where,
                ", ".join(ask.label for ask in waiting),
                self.loop.kept_by(),
                extra={"instance": self.execution.lease.pk},
            )

    # The end ----------------------------------------------------------------------------------------------------------

    def _begin(self, main: Callable[[], Awaitable[Any]], context: Context) -> None:
        """In the loop: ``run`` begins."""
        task = self.loop.create_task(self._main(main), context=context, name=f"run of {self.replay.where}")
        self.calls.root(task)
        task.add_done_callback(lambda task: self._settle(task, SETTLE_TURNS))

    async def _main(self, main: Callable[[], Awaitable[Any]]) -> Any:
        _adopt_locals()
        AsyncToSync.executors.current = None
        return await main()

    def _settle(self, task: asyncio.Task[Any], turns: int) -> None:
        """In the loop: ``run`` has ended; tasks that it has cancelled end too."""
        if self.calls.stopping:
            return  # how the execution ends is known already
        if turns and (self.calls.pending or self.calls.unawaited):
            self.loop.call_soon(self._settle, task, turns - 1)
            return
        error: BaseException | None
        try:
            value, error = task.result(), None
        except BaseException as raised:
            value, error = None, raised
        self._end = _End(value, error, self.calls.left_over())
        self.calls.stopping = True
        self.desk.ring()

    def _end_bodies(self) -> None:
        """Bodies in flight end and are stored: nobody else may begin with the instance before (design 1)."""
        while self.bodies and self.thread.is_alive() and not self.execution.lease.lost:
            self._do_now(LOOK)
        self._do_now(0)

    def _do_now(self, wait: float) -> None:
        self.desk.collect(wait)
        while (work := self.desk.take_now()) is not None:
            work()

    def _close(self) -> None:
        """Cancel the tasks, and wait for them and the loop, not for ever. User code that cleans up still has its database."""
        self.calls.stopping = True
        try:
            self.loop.call_soon_threadsafe(self._begin_closing)
        except RuntimeError:
            pass  # closed already
        until = time.monotonic() + CLOSE_SECONDS
        while self.thread.is_alive() and (left := until - time.monotonic()) > 0:
            self.desk.collect(min(left, LOOK))
            while (work := self.desk.take_now()) is not None:
                if isinstance(work, Job):
                    work()
            if self.calls.stuck is not None:
                self.replay.give_up(self.calls.stuck)
        self.desk.closed = True
        self.desk.collect()
        while (work := self.desk.take_now()) is not None:
            if isinstance(work, Job):
                work.future.cancel()
        if self.thread.is_alive():
            logger.warning(
                "%s: the thread of its event loop does not end and is left to itself. It is at:\n%s",
                self.replay.where,
                stack_of(self.thread),
            )
        for body in self._undelivered:
            body.drop()

    def _begin_closing(self) -> None:
        """In the loop."""
        task = asyncio.Task(self._closing(), loop=self.loop)
        task.add_done_callback(lambda _task: self.loop.stop())

    async def _closing(self) -> None:
        until = self.loop.time() + CANCEL_SECONDS
        cancelled: set[asyncio.Task[Any]] = set()
        while (tasks := self._others()) and (left := until - self.loop.time()) > 0:
            for task in tasks - cancelled:
                task.cancel()
            cancelled |= tasks
            await asyncio.wait(tasks, timeout=min(left, LOOK))
        for task in self._others():
            self.give_up(task)
        try:
            await asyncio.wait_for(self.loop.shutdown_asyncgens(), CANCEL_SECONDS)
        except TimeoutError:
            logger.warning("%s: an asynchronous generator does not end and is given up.", self.replay.where)

    def _others(self) -> set[asyncio.Task[Any]]:
        me = asyncio.current_task()
        return {task for task in asyncio.all_tasks() if task is not me and task not in _given_up}


def run_async(main: Callable[[AsyncRun], Awaitable[Any]], execution: Execution) -> Any:
    """What the awaitable of ``main`` returns or raises, in a loop of its own; or it unwinds the execution.

    ``main`` gets the runtime for ``AsyncStep`` and is called in the loop's thread.
    """
    run = AsyncRun(execution)
    return run.run(partial(main, run))


def _adopt_locals() -> None:
    """asgiref's ``Local`` keeps what another thread has set apart, unless it is handed over: Django's language and time zone."""
    restore = getattr(asgiref_sync, "_restore_context", None)
    if restore is not None:
        restore(copy_context())
