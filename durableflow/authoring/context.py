"""What a step's body can know about itself (api.md, ``get_step_context``)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """The attempt that runs now.

    ``name``, ``count``: the step and its occurrence in this run. ``attempt``: number of this try, from 1, rising also
    after ``retry()``. ``idempotency_key``: 32 hex digits, the same across attempts, crashes and ``retry()``: give it to
    the services you call (case CON-05). ``deadline``: when this attempt times out. ``config``: the resolved options, a
    copy.
    """

    name: str
    count: int
    attempt: int
    instance_id: str
    workflow: str
    run_number: int
    idempotency_key: str
    deadline: datetime
    config: Mapping[str, Any] = field(default_factory=dict)


class Lazy:
    """Makes a step's context when somebody asks for it: most bodies never do, and the key alone costs a hash."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], StepContext]) -> None:
        self._make = make
        self._made: StepContext | None = None

    def __call__(self) -> StepContext:
        """The context: the same object each time."""
        if self._made is None:
            self._made = self._make()
        return self._made


_current: ContextVar[Lazy | None] = ContextVar("durableflow_step", default=None)


def in_body() -> bool:
    """Whether this code is a part of a step's body."""
    return _current.get() is not None


def get_step_context() -> StepContext:
    """The context of the step whose body runs now, in this thread or task. Raises RuntimeError outside a body."""
    context = _current.get()
    if context is None:
        raise RuntimeError("get_step_context() works inside the body of a step only.")
    return context()


def current_step() -> Lazy | None:
    """The context of the body that runs in this thread or task, None outside of one."""
    return _current.get()


def set_current_step(context: Lazy | None) -> None:
    """Make ``context`` that of this thread or task, until it ends."""
    _current.set(context)


class step_context:  # noqa: N801  a context manager reads like a function
    """Make ``context`` the current one.

    A class, because a generator would set ``__traceback__`` of the error that passes: frozen exceptions refuse that.
    """

    def __init__(self, context: Lazy) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = _current.set(self._context)

    def __exit__(self, *_error: object) -> None:
        _current.reset(self._token)


def derive(*parts: Any) -> bytes:
    """32 bytes that depend on the parts alone, and differ where any part differs."""
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).digest()


def idempotency_key(seed: UUID, key_run: int, scope: str, kind: str, name: str, count: int) -> str:
    """The key of a step (design 5): new only after a restart, for what runs again."""
    return derive("key", seed, key_run, scope, kind, name, count).hex()[:32]
