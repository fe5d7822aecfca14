"""What the two facades have in common, and what the engine offers to them (design 6).

``Step`` hands its calls to a ``Runtime``, ``AsyncStep`` to an ``AsyncRuntime``: the calls are the same values.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Coroutine
from logging import LoggerAdapter
from typing import Any, Generic, NoReturn, Protocol, TypeAlias, TypeVar
from uuid import UUID

from durableflow.authoring.calls import Call

T = TypeVar("T")
Answer: TypeAlias = Coroutine[Any, Any, T]
"""What a durable call of ``AsyncStep`` returns: to be awaited, or given to ``asyncio.create_task`` or a TaskGroup."""


class CommonRuntime(Protocol):
    """What the engine offers to both facades."""

    instance_id: str
    run_number: int

    def continue_as_new(self, params: Any) -> NoReturn:
        """End this run and start the next one. Unwinds ``run``."""
        ...

    def uuid4(self) -> UUID: ...
    @property
    def random(self) -> random_module.Random: ...
    @property
    def is_replaying(self) -> bool: ...
    @property
    def logger(self) -> LoggerAdapter[Any]: ...


class Runtime(CommonRuntime, Protocol):
    """What the engine offers to ``Step``."""

    def call(self, call: Call) -> Any:
        """Answer a durable call: return its value, raise its error, or unwind."""
        ...

    def set_progress(self, value: Any) -> None: ...


class AsyncRuntime(CommonRuntime, Protocol):
    """What the engine offers to ``AsyncStep``."""

    def acall(self, call: Call) -> Answer[Any]:
        """Take the call's identity at once, in the calling task, and return a coroutine that gives its value, raises its
        error, or stays pending. It must be a Coroutine, so that ``create_task`` takes it; one that is never awaited is
        reported by its name."""
        ...

    def set_progress(self, value: Any) -> Answer[None]: ...


R = TypeVar("R", bound=CommonRuntime)


class Facade(Generic[R]):
    """What both facades offer in the same way: nothing here waits or is recorded."""

    def __init__(self, runtime: R) -> None:
        self._runtime = runtime

    def continue_as_new(self, params: Any, /) -> NoReturn:
        """End this run and start the next one of the same instance with ``params`` and an empty journal (design 7).

        For loops without an end. Never returns, and is not awaited. Events that were not taken are kept for the next run;
        the run number grows. Raises CodecError, LimitExceeded, InvalidConfig inside a branch.
        """
        self._runtime.continue_as_new(params)

    def uuid4(self) -> UUID:
        """A random UUID that is the same at every replay. Costs no write: it derives from the instance and the
        number of the call."""
        return self._runtime.uuid4()

    @property
    def random(self) -> random_module.Random:
        """A random number generator that gives the same numbers at every replay. Costs no write."""
        return self._runtime.random

    @property
    def instance_id(self) -> str:
        """The id of this instance."""
        return self._runtime.instance_id

    @property
    def run_number(self) -> int:
        """The run of this instance; it grows at each restart."""
        return self._runtime.run_number

    @property
    def is_replaying(self) -> bool:
        """Whether the code ahead was run by an earlier execution: true until the last recorded call has been met."""
        return self._runtime.is_replaying

    @property
    def logger(self) -> LoggerAdapter[Any]:
        """A logger that is silent while replaying, with the instance's ids in ``extra`` (case OPS-02)."""
        return self._runtime.logger


SyncFacade: TypeAlias = Facade[Runtime]
AsyncFacade: TypeAlias = Facade[AsyncRuntime]
