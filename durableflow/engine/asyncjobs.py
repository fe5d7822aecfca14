"""What user code gives to ``sync_to_async``, in the instance's thread (design 6, "Suspension, async")."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar

from durableflow.engine import shutdown
from durableflow.engine.asyncbody import CANCEL_SECONDS, AsyncBodyRun, current_body
from durableflow.engine.desk import JOB, Desk
from durableflow.engine.interception import Interceptor
from durableflow.engine.timeouts import Deadline, clean_connections, drop_active, forget_interruption

T = TypeVar("T")


class Job:
    """A function that user code gave to ``sync_to_async``, for the instance's thread."""

    def __init__(self, work: Callable[[], Any], body: AsyncBodyRun | None, interceptor: Interceptor) -> None:
        self.future: Future[Any] = Future()
        self._work, self._body, self._interceptor = work, body, interceptor
        if body is not None:
            body.attempt.hold_clock()  # others keep the instance's thread busy; that is none of the body's time

    def __call__(self) -> None:
        """Do it. Raises KeyboardInterrupt of a stop."""
        if self._body is not None:
            self._body.attempt.go_on()
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            value = self._run(self._interceptor.job(self._work))
        except BaseException as error:
            self.future.set_exception(error)
            if isinstance(error, KeyboardInterrupt) and shutdown.requested():
                raise
        else:
            self.future.set_result(value)

    def _run(self, work: Callable[[], Any]) -> Any:
        if self._body is None:
            return work()
        return self._run_for(self._body, work)

    def _run_for(self, body: AsyncBodyRun, work: Callable[[], Any]) -> Any:
        """On behalf of an async body, whose deadline counts here too."""
        attempt = body.attempt
        left = attempt.budget
        deadline = Deadline(left if left > 0 else CANCEL_SECONDS)  # past it, it cleans up
        with attempt.moved(threading.current_thread(), list(body.scope.wrappers)):
            try:
                value = deadline.run(work)
            except BaseException:
                drop_active()
                raise
            finally:
                if attempt.abandoned:
                    forget_interruption()
                if deadline.expired:
                    clean_connections()
        if deadline.expired:
            raise body.timeout_error()
        return value


class NoThread(Executor):
    """What is left in its place when the execution is over. Refers to nothing: asgiref keeps it by a weak key that what an
    execution leaves behind may refer to."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Raises RuntimeError."""
        raise RuntimeError("The execution of this workflow is over: its thread takes nothing more.")


class InstanceThread(Executor):
    """The instance's thread as an executor, for asgiref: thread-sensitive code runs there."""

    def __init__(self, desk: Desk, interceptor: Interceptor) -> None:
        self._desk, self._interceptor = desk, interceptor

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See ``Executor``. Raises RuntimeError once the execution is over."""
        if self._desk.closed:
            return NoThread().submit(fn, *args, **kwargs)
        job = Job(partial(fn, *args, **kwargs), current_body.get(), self._interceptor)
        self._desk.ask(JOB, job)
        return job.future
