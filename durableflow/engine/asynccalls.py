"""The durable calls of an ``async def run``, in the thread of its loop (design 6, "Suspension, async").

A call takes its identity when it is made, by the task that makes it; so names tell calls apart, never timing. It is answered by
the instance's thread, once it is awaited.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from contextvars import Context, copy_context
from functools import partial
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakSet

from durableflow.authoring.calls import Call, DoCall
from durableflow.authoring.context import current_step
from durableflow.authoring.group_calls import MapCall, PatchCall
from durableflow.core.exceptions import InvalidConfig, InvalidDurableCall, SuspensionSwallowed
from durableflow.engine.asyncbody import Body, current_body
from durableflow.engine.desk import NEW, Turn, recorded
from durableflow.engine.journal import FAILED, Identity, Record
from durableflow.engine.replay import MAX_REFUSED_CALLS, Replay, Scope

Note = Callable[[Identity, Call], None]
"""Is told of a call instead of its being answered."""


class TaskPath:
    """A task of a run, by its numbers among the children of its parents: no replay counts them otherwise."""

    def __init__(self, path: tuple[int, ...] = ()) -> None:
        self.path = path
        self.children = 0
        self.refused = 0
        self.ids: dict[str, int] = {}
        self.randoms: dict[str, Any] = {}

    def child(self) -> TaskPath:
        """The next one that this task creates."""
        self.children += 1
        return TaskPath((*self.path, self.children))

    def __str__(self) -> str:
        return "run()" if not self.path else f"task {'.'.join(map(str, self.path))}"


class DurableCall(Coroutine[Any, Any, Any]):
    """A durable call of which somebody awaits the answer, or will.

    A coroutine to all who look: it can be awaited once, or given to ``asyncio.create_task``, ``gather``, a TaskGroup. ``drive``
    answers it. ``gone``: nobody waits for it any more.
    """

    durable_call = True

    def __init__(self, what: str, calls: Calls, drive: Callable[[DurableCall], Awaitable[Any]]) -> None:
        self.what = self.__name__ = self.__qualname__ = what
        self.gone = False
        self.context: Context
        self._calls, self._drive = calls, drive
        self._inner: Coroutine[Any, Any, Any] | None = None
        self._begun = False

    def _begin(self) -> Coroutine[Any, Any, Any]:
        if self._begun:
            raise RuntimeError(f"cannot await {self.what} twice: keep what it returned.")
        self._begun = True
        self._calls.unawaited.pop(self, None)
        self.context = copy_context()
        self._inner = self._calls.answer(self, self._drive)
        return self._inner

    def __repr__(self) -> str:
        return f"<{self.what} of {self._calls.replay.where}, {'awaited' if self._begun else 'not awaited'}>"

    def __bool__(self) -> bool:
        self._calls.refuse_truth(self.what)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begin().__await__()

    def send(self, value: Any) -> Any:
        """See ``Coroutine``."""
        return (self._inner or self._begin()).send(value)

    def throw(self, *error: Any) -> Any:
        """See ``Coroutine``. A task that is cancelled before its first step throws at once."""
        if self._inner is None:
            self._drop()
            raise error[0] if isinstance(error[0], BaseException) else error[1] or error[0]()
        return self._inner.throw(*error)

    def close(self) -> None:
        """See ``Coroutine``."""
        if self._inner is None:
            self._drop()
        else:
            self._inner.close()

    def _drop(self) -> None:
        self._begun = self.gone = True
        self._calls.unawaited.pop(self, None)


class Calls:
    """What the loop's thread knows of the durable calls of one execution, and what it refuses.

    ``stopping``: the execution is being put away, so no call begins any more. ``stuck``: why a task that goes on calling for ever
    had to be halted. ``cancelled``: whether the program has cancelled a task or a call, so that what that task would have called
    need not be met. ``ring``: has the instance's thread look around.
    """

    def __init__(
        self,
        replay: Replay,
        find_scope: Callable[[], Scope],
        ring: Callable[[], None],
        thread: threading.Thread,
    ) -> None:
        self.replay = replay
        self.thread = thread
        self.stopping = False
        self.stuck: Exception | None = None
        self.cancelled = False
        self.unawaited: dict[DurableCall, None] = {}
        self.pending: dict[DurableCall, asyncio.Task[Any] | None] = {}
        self._scope, self._ring = find_scope, ring
        self._paths: WeakKeyDictionary[asyncio.Task[Any], TaskPath] = WeakKeyDictionary()
        self._owners: dict[tuple[str, str, str], TaskPath] = {}
        self._notes: WeakKeyDictionary[Scope, Note] = WeakKeyDictionary()
        self._dismissed: WeakSet[asyncio.Future[Any]] = WeakSet()

    # Tasks ------------------------------------------------------------------------------------------------------------

    def new_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """The loop's task factory. A task that no task creates (but a callback, or another thread) gets no path."""
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        parent = asyncio.current_task(loop)
        path = None if parent is None else self._paths.get(parent)
        if path is not None:
            self._paths[task] = path.child()
            task.add_done_callback(self._task_done)
        return task

    def root(self, task: asyncio.Task[Any]) -> None:
        """``task`` runs ``run``."""
        self._paths[task] = TaskPath()

    def dismiss(self, task: asyncio.Future[Any]) -> None:
        """Cancel a task of ours: the program has not done that."""
        self._dismissed.add(task)
        task.cancel()

    def enter(self, scope: Scope, note: Note | None) -> None:
        """A new pass over a branch of a race begins. ``note``: is told of its calls, which are not answered."""
        self._owners = {key: path for key, path in self._owners.items() if key[0] != scope.name}
        if note is not None:
            self._notes[scope] = note

    def noted(self, what: str, scope: Scope, identity: Identity, call: Call) -> DurableCall | None:
        """The call of a branch that is only to be told of; None for any other."""
        note = self._notes.get(scope)
        if note is None:
            return None

        async def wait(_made: DurableCall) -> NoReturn:
            note(identity, call)
            while True:
                await asyncio.get_running_loop().create_future()

        return self.new(what, wait)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._note_cancelled(task)

    def failed_tasks(self) -> str:
        """Which of the run's tasks have ended with an error, '' if none has."""
        ended = [
            task for task in list(self._paths) if task.done() and not task.cancelled() and task.exception() is not None
        ]
        return ", ".join(
            f"{task.get_name()} has ended with {type(task.exception()).__name__}: {task.exception()}" for task in ended
        )

    def _note_cancelled(self, task: asyncio.Task[Any] | None) -> None:
        if not (self.stopping or task in self._dismissed):
            self.cancelled = True

    # Making calls -----------------------------------------------------------------------------------------------------

    def guard(self, what: str) -> tuple[Scope, TaskPath]:
        """Whether a durable call is possible here: its scope and task. Raises CancelledError once the execution is being put
        away, InvalidDurableCall (sticky) for a call from a body, another thread, or a task that is none of the run's."""
        outer = current_step()
        path = self._current()
        if threading.current_thread() is self.thread and self.stopping:
            self._count(path, self._swallowed(what))
            raise asyncio.CancelledError(f"{self.replay.where} is being put away: {what} does nothing.")
        if self.replay.refusal is not None:
            self._count(path, self.replay.refusal)
            raise self.replay.refusal
        if outer is not None:
            self._refuse(self.replay.inside(what, f"{outer().name}-{outer().count}"))
        if threading.current_thread() is not self.thread:
            self._refuse(
                f"{what} of {self.replay.where} was called from another thread. Durable calls belong to the tasks of run(): return "
                "from sync_to_async or to_thread first."
            )
        if path is None:
            self._refuse(
                f"{what} of {self.replay.where} was called from a task that run() has not created (a callback, or async_to_sync "
                "inside of sync_to_async). Make durable calls in run(), or in tasks that it creates."
            )
        return self._scope(), path

    def reserve(self, scope: Scope, path: TaskPath, call: Call) -> tuple[Identity, Record | None]:
        """The identity of the next call of this name, and its record. Raises InvalidDurableCall (sticky) where another task has
        used the name: which of them came first would depend on timing."""
        if isinstance(call, PatchCall):  # it has one record, however often it is called
            identity = Identity(scope.name, call.kind, call.name, 1)
            return identity, self.replay.records.get(identity)
        owner = self._owners.setdefault((scope.name, call.kind, call.name), path)
        if owner is not path:
            self._refuse(
                f"{call.kind} {call.name!r} of {self.replay.where} is called by two tasks ({owner} and {path}), so which of them is "
                f"{call.name}-1 would depend on timing. Put the item into the name, as in f'{call.name} {{item}}', or use "
                "step.gather or step.map, whose branches have names of their own."
            )
        identity = scope.reserve(call.kind, call.name)
        record = self.replay.records.get(identity)
        if record is not None:
            scope.mark_met(record)
        return identity, record

    def refuse_truth(self, what: str) -> NoReturn:
        """A call was asked for its truth: what is no answer must not pass for a yes."""
        self._refuse(
            f"{what} of {self.replay.where} was asked whether it is true, and is not an answer: it was not awaited. Write await before "
            "the call, and keep what that gives."
        )

    def new(self, what: str, drive: Callable[[DurableCall], Awaitable[Any]]) -> DurableCall:
        """A call that has been made."""
        call = DurableCall(what, self, drive)
        self.unawaited[call] = None
        return call

    async def answer(self, call: DurableCall, drive: Callable[[DurableCall], Awaitable[Any]]) -> Any:
        """What awaiting ``call`` gives."""
        self.pending[call] = asyncio.current_task()
        try:
            return await drive(call)
        except asyncio.CancelledError:
            self._note_cancelled(asyncio.current_task())
            raise
        finally:
            call.gone = True
            self.pending.pop(call, None)

    def _current(self) -> TaskPath | None:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop in this thread
            return None
        return None if task is None else self._paths.get(task)

    def _refuse(self, message: str) -> NoReturn:
        try:
            self.replay.refuse(message)
        except InvalidDurableCall as refusal:
            body = current_body.get()
            if body is not None:
                body.refusal = refusal
            raise

    def _swallowed(self, what: str) -> SuspensionSwallowed:
        return SuspensionSwallowed(
            f"{self.replay.where} is being put away, but a task caught its cancellation and went on to {what}, again and again. Raise "
            "CancelledError again, and never use a bare except."
        )

    def _count(self, path: TaskPath | None, error: Exception) -> None:
        """Code that never stops calling would keep its thread for ever: the instance's thread ends that, here it goes no further."""
        if threading.current_thread() is not self.thread:
            return
        path = path or TaskPath()
        path.refused += 1
        if path.refused > MAX_REFUSED_CALLS:
            self.stuck = self.stuck or error
            self._ring()
            threading.Event().wait()

    # The end ----------------------------------------------------------------------------------------------------------

    def left_over(self) -> str:
        """What is wrong with calls that ``run`` has left behind, '' if nothing is."""
        if self.unawaited:
            return (
                f"{_names(self.unawaited)} of {self.replay.where} {_was(self.unawaited)} called but not awaited. Write await before the "
                "call, or give it to asyncio.create_task and await the task."
            )
        pending = [call for call, task in self.pending.items() if task is None or not task.cancelling()]
        if pending:
            return (
                f"{_names(pending)} of {self.replay.where} {_was(pending)} not over when run() returned. Await the task that waits for "
                "it, or cancel it before run() returns."
            )
        return ""


def check_arguments(call: Call) -> None:
    """Refuse a call that nobody has awaited where its value is meant. Raises InvalidConfig."""
    given: Collection[Any] = ()
    if isinstance(call, DoCall) and isinstance(call.body, partial):
        given = call.body.args
    elif isinstance(call, MapCall):
        given = call.items
    for number, value in enumerate(given, start=1):
        if isinstance(value, DurableCall):
            raise InvalidConfig(
                f"step {call.name!r}: argument {number} is {value.what}, which was not awaited. Write await before that call.",
                step=call.name,
                field="args",
            )


def turn_of(record: Record | None, call: Call | None = None) -> Turn:
    """When a call with this record is answered. What has no place in the history (``now``, say) had its answer at once."""
    if isinstance(call, PatchCall):
        return recorded()  # its answer depends on what is still to be met
    if record is None or not record.finished:
        return NEW
    if record.ended is not None:
        return recorded(1, record.ended)
    return recorded(2 if record.status == FAILED else 0, record.seq)


def _names(calls: Collection[DurableCall]) -> str:
    return ", ".join(call.what for call in calls)


def _was(several: Collection[DurableCall]) -> str:
    return "was" if len(several) == 1 else "were"


def drop(value: Any) -> None:
    """A value that comes too late."""
    if isinstance(value, Body):
        value.drop()
