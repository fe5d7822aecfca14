"""Running an ``async def run`` (design 6, "Suspension, async").

The loop has a thread of its own. The instance's thread meanwhile answers its durable calls, and runs plain bodies and what user
code gives to ``sync_to_async``. At the end whatever is left in the loop is cancelled, and not waited for for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from asgiref.sync import AsyncToSync, SyncToAsync, ThreadSensitiveContext

from durableflow.authoring.context import set_current_step
from durableflow.core.exceptions import InvalidDurableCall
from durableflow.engine.abandonment import stack_of
from durableflow.engine.asyncanswers import LOOK
from durableflow.engine.asyncbody import CANCEL_SECONDS, AsyncBodyRun, current_body
from durableflow.engine.asyncjobs import InstanceThread, Job, NoThread
from durableflow.engine.asyncruntime import AsyncRuntime, given_up
from durableflow.engine.desk import Desk
from durableflow.engine.execution import Execution
from durableflow.engine.handover import adopt_locals
from durableflow.engine.loop import Loop, LoopThread
from durableflow.engine.unwind import Drop, Unwind

logger = logging.getLogger("durableflow.engine")
SETTLE_TURNS: Final = 10
"""Turns of the loop after the end of ``run`` in which tasks that it has cancelled may end."""
CLOSE_SECONDS: Final = 2 * CANCEL_SECONDS
"""How long the loop's thread is waited for at the end."""
Main = Callable[[AsyncRuntime], Awaitable[Any]]


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
    """One execution of an ``async def run``, and its two threads."""

    def __init__(self, execution: Execution) -> None:
        execution.body_run = AsyncBodyRun
        self._execution, self._replay = execution, execution.replay
        self._desk = Desk()
        self._loop = Loop(self._desk.ring)
        self._thread = LoopThread(self._loop, self._desk.ring)
        self._runtime = AsyncRuntime(execution, self._loop, self._desk, self._thread)
        self._calls, self._answers = self._runtime.calls, self._runtime.answers
        self._loop.set_task_factory(self._calls.new_task)
        self._sensitive = ThreadSensitiveContext()
        self._end: _End | None = None

    def result(self, main: Main) -> Any:
        """What ``main`` returns or raises; or unwinds the execution."""
        outside = dict(vars(SyncToAsync.threadlocal))
        try:
            self._start(main)
            self._serve()
        except Unwind as stop:
            self._calls.stopping = True
            if not isinstance(stop.outcome, Drop):
                self._answers.end_bodies(self._thread.is_alive)
                self._replay.stop = stop  # not that of a body which has failed meanwhile, and waits for its retry
            raise
        finally:
            try:
                self._close()
            finally:
                vars(SyncToAsync.threadlocal).clear()
                vars(SyncToAsync.threadlocal).update(outside)
        assert self._end is not None  # noqa: S101
        self._forgive()
        return self._end.result()

    def _forgive(self) -> None:
        """What a task that the program has cancelled would have called need not be met."""
        if self._calls.cancelled:
            self._replay.root.forgive()

    def _serve(self) -> None:
        while self._end is None:
            if self._runtime.next_params is not None:
                self._forgive()
                self._execution.continue_as_new(*self._runtime.next_params)
            if not self._thread.is_alive():
                self._answers.check_abandoned()
                raise RuntimeError(f"The event loop of {self._replay.where} has ended by itself.")
            self._answers.step()

    def _start(self, main: Main) -> None:
        context = copy_context()
        executor = InstanceThread(self._desk, self._execution.interceptor)
        SyncToAsync.context_to_thread_executor[self._sensitive] = executor
        context.run(SyncToAsync.thread_sensitive_context.set, self._sensitive)
        context.run(set_current_step, None)
        context.run(current_body.set, None)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            _starve(self._execution, error)
        self._loop.call_soon_threadsafe(self._begin, main, context)

    def _begin(self, main: Main, context: Context) -> None:
        """In the loop: ``run`` begins."""
        task = self._loop.create_task(self._main(main), context=context, name=f"run of {self._replay.where}")
        self._calls.root(task)
        task.add_done_callback(lambda task: self._settle(task, SETTLE_TURNS))

    async def _main(self, main: Main) -> Any:
        adopt_locals()
        AsyncToSync.executors.current = None
        return await main(self._runtime)

    def _settle(self, task: asyncio.Task[Any], turns: int) -> None:
        """In the loop: ``run`` has ended; tasks that it has cancelled end too."""
        if self._calls.stopping:
            return  # how the execution ends is known already
        if turns and (self._calls.pending or self._calls.unawaited):
            self._loop.call_soon(self._settle, task, turns - 1)
            return
        error: BaseException | None
        try:
            value, error = task.result(), None
        except BaseException as raised:
            value, error = None, raised
        self._end = _End(value, error, self._calls.left_over())
        self._calls.stopping = True
        self._desk.ring()

    def _close(self) -> None:
        """Cancel the tasks, and wait for them and the loop, not for ever. User code that cleans up still has its database."""
        self._calls.stopping = True
        try:
            self._loop.call_soon_threadsafe(self._begin_closing)
        except RuntimeError:
            pass  # closed already
        until = time.monotonic() + CLOSE_SECONDS
        while self._thread.is_alive() and (left := until - time.monotonic()) > 0:
            self._desk.collect(min(left, LOOK))
            while (work := self._desk.take_job()) is not None:
                if isinstance(work, Job):
                    work()
            if self._calls.stuck is not None:
                self._replay.give_up(self._calls.stuck)
        self._desk.closed = True
        self._desk.collect()
        while (work := self._desk.take_job()) is not None:
            if isinstance(work, Job):
                work.future.cancel()
        if self._thread.is_alive():
            logger.warning(
                "%s: the thread of its event loop does not end and is left to itself. It is at:\n%s",
                self._replay.where,
                stack_of(self._thread),
            )
        self._answers.close()
        self._desk.close()
        SyncToAsync.context_to_thread_executor[self._sensitive] = NoThread()

    def _begin_closing(self) -> None:
        """In the loop."""
        task = asyncio.Task(self._closing(), loop=self._loop)
        task.add_done_callback(lambda _task: self._loop.stop())

    async def _closing(self) -> None:
        until = self._loop.time() + CANCEL_SECONDS
        cancelled: set[asyncio.Task[Any]] = set()
        while (tasks := self._others()) and (left := until - self._loop.time()) > 0:
            for task in tasks - cancelled:
                if not task.cancelling():  # else it is cleaning up
                    task.cancel()
            cancelled |= tasks
            await asyncio.wait(tasks, timeout=min(left, LOOK))
        for task in self._others():
            self._runtime.give_up(task)
        try:
            await asyncio.wait_for(self._loop.shutdown_asyncgens(), CANCEL_SECONDS)
        except TimeoutError:
            logger.warning("%s: an asynchronous generator does not end and is given up.", self._replay.where)

    def _others(self) -> set[asyncio.Task[Any]]:
        me = asyncio.current_task()
        return {task for task in asyncio.all_tasks() if task is not me and task not in given_up}


def run_async(main: Main, execution: Execution) -> Any:
    """What ``main`` returns or raises, in a loop of its own; or it unwinds the execution.

    ``main`` gets the runtime for ``AsyncStep`` and is called in the loop's thread.
    """
    try:
        run = AsyncRun(execution)
    except OSError as error:
        _starve(execution, error)
    return run.result(main)


def _starve(execution: Execution, error: Exception) -> NoReturn:
    """The process can have no more descriptors or threads: as if it had no more memory."""
    execution.engine_failed(MemoryError(f"no event loop can be started: {error}"))
