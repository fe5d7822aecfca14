"""Bodies of steps in an ``async def run`` (design 6, "Attempts", "Timeouts").

Every body is begun in the instance's thread, and a plain one runs there. One that returns something to await goes on in the
loop; when it has ended, the instance's thread writes its outcome.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Protocol

from durableflow.authoring.context import set_current_step
from durableflow.core import atomicity
from durableflow.core.exceptions import InvalidConfig, InvalidDurableCall
from durableflow.engine import watcher
from durableflow.engine.attempts import Attempt
from durableflow.engine.bodies import BodyRun
from durableflow.engine.bounds import bounded_await
from durableflow.engine.timeouts import forget_interruption

logger = logging.getLogger("durableflow.steps")
CANCEL_SECONDS: Final = 1.0
"""How long a task that was cancelled is waited for."""
BLOCKED_SECONDS: Final = 2.0
"""Seconds past its deadline after which the watcher gives up an async body: the loop that should cancel it is blocked."""
HELD_SECONDS: Final = 0.1
"""How often a body is looked at whose clock is held."""
Finish = Callable[[], Any]
"""What the instance's thread has to do when a body has ended: the value of its step, or its error is raised."""


class Place(Protocol):
    """Where async bodies run."""

    thread: threading.Thread
    bodies: set[AsyncBodyRun]

    def new_body(self, coroutine: Any, context: contextvars.Context) -> asyncio.Task[Any]:
        """A task for a body."""
        ...

    def give_up(self, task: asyncio.Task[Any]) -> None:
        """Let go of a task that swallows its cancellation."""
        ...


class _GoesOn(BaseException):
    """The body has returned something to await."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable


class AsyncBodyRun(BodyRun):
    """A step's way to its value, of which a part may be in the loop."""

    refusal: InvalidDurableCall | None = None
    """What this body was refused."""

    def run(self, body: Callable[[], Any]) -> Any:
        """Begin one attempt, in the instance's thread. Returns and raises as ``BodyRun.run``, or returns a ``Body`` that goes
        on in the loop."""
        if self.options.atomic and inspect.iscoroutinefunction(body):
            raise self._not_atomic()
        self.begin()
        token = current_body.set(self)
        try:
            text = self._perform(body)
        except _GoesOn as found:
            return Body(self, found.awaitable)
        except BaseException as error:
            return self.ended_by(error)
        finally:
            current_body.reset(token)
        return self.value_of(text)

    def leave(self) -> None:
        """The body is over: nobody need look after it."""
        watcher.unwatch(self.attempt)
        self.attempt.left()

    def end(self, value: Any) -> Any:
        """The body has returned ``value`` in the loop."""
        self.leave()
        try:
            self._check_left_open()
            text = self._checkpoint(super()._returned(value))
        except BaseException as error:
            return self.ended_by(error)
        return self.value_of(text)

    def fail(self, error: BaseException) -> Any:
        """The body has ended with ``error`` in the loop."""
        self.leave()
        try:
            self._check_left_open()
        except InvalidDurableCall as refused:
            error = refused
        return self.ended_by(error)

    def _returned(self, value: Any) -> str:
        if not inspect.isawaitable(value):
            return super()._returned(value)
        if getattr(value, "durable_call", False):
            self.session.replay.refuse(
                f"The body of step {self.identity.label!r} of {self.lease.label} returned {value!r}. A body cannot make durable calls: "
                "await the call in run(), before the step."
            )
        if self.options.atomic:
            close(value)
            raise self._not_atomic()
        raise _GoesOn(value)

    def _not_atomic(self) -> InvalidConfig:
        return InvalidConfig(
            f"step {self.identity.name!r}: atomic: the body is asynchronous, and a transaction belongs to the one thread that has "
            "opened it. Give atomic=True a plain function; it may use the ORM as it is.",
            step=self.identity.name,
            field="atomic",
        )

    def _check_left_open(self) -> None:
        """As for any body; but a durable call that another task was refused meanwhile is none of this one's."""
        if self.refusal is not None:
            raise self.refusal
        if atomicity.opened(self.scope.wrappers):
            super()._check_left_open()


current_body: ContextVar[AsyncBodyRun | None] = ContextVar("durableflow_body", default=None)
"""The body in which this code runs."""


class Body:
    """A body on its way into the loop. ``begun``: it is there, or it is dropped."""

    def __init__(self, run: AsyncBodyRun, awaitable: Awaitable[Any]) -> None:
        self.run = run
        self._awaitable = awaitable
        self.begun = False

    async def end(self, place: Place) -> Finish:
        """In the loop: run it to its end or its deadline. Cancelled from outside, it is cancelled too, and nothing is written:
        who cancels a step does not ask for its outcome."""
        run, attempt = self.run, self.run.attempt
        attempt.grace = BLOCKED_SECONDS
        attempt.move(place.thread, [])
        watcher.watch(attempt, run.lease, [])
        place.bodies.add(run)
        self.begun = True  # not before: between the two it would seem to be over
        try:
            task = place.new_body(self._inside(), contextvars.copy_context())
            in_time = await _wait(task, attempt, place)
            if not in_time or time.monotonic() > attempt.due:  # by then it has been cancelled
                return partial(run.fail, run.timeout_error())
            value, error = task.result()
            return partial(run.end, value) if error is None else partial(run.fail, error)
        finally:
            place.bodies.discard(run)
            if attempt.thread is place.thread:  # else it has left something behind that holds the instance's thread up
                run.leave()
            if attempt.abandoned:
                forget_interruption()

    async def _inside(self) -> tuple[Any, BaseException | None]:
        """In the body's own task."""
        set_current_step(self.run._context)
        current_body.set(self.run)
        try:
            return await bounded_await(
                self._awaitable, lambda: f"step {self.run.identity.label!r} of {self.run.lease.label}"
            ), None
        except BaseException as error:  # a SystemExit would end the loop
            return None, error

    def drop(self) -> None:
        """Nobody waits for it any more: it does not begin."""
        if not self.begun:
            self.begun = True
            close(self._awaitable)


async def _wait(task: asyncio.Task[Any], attempt: Attempt, place: Place) -> bool:
    """Whether the task ends within the attempt's time; else it is cancelled."""
    try:
        while (left := attempt.due - time.monotonic()) > 0:  # its clock may be held meanwhile
            done, _ = await asyncio.wait({task}, timeout=min(left, HELD_SECONDS if left == math.inf else left))
            if done:
                return True
        await _cancel(task, place)
    except asyncio.CancelledError:
        await _cancel(task, place)
        raise
    return False


async def _cancel(task: asyncio.Task[Any], place: Place) -> None:
    task.cancel()
    try:
        await asyncio.wait({task}, timeout=CANCEL_SECONDS)
    finally:
        if not task.done():
            place.give_up(task)


def close(awaitable: Any) -> None:
    """Have no coroutine complain that it was never awaited."""
    if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
        awaitable.close()
