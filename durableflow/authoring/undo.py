"""Rollback handlers: how an author gives one, and what it gets (design 7, reference 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from durableflow.authoring.context import StepContext
from durableflow.core.durations import Duration
from durableflow.core.retries import Retries

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Undo(Generic[T]):
    """The one argument of a rollback handler: what is to be undone.

    ``completed``: whether the step completed; a failed or interrupted one may have had an effect all the same (look it up
    by ``context.idempotency_key``). ``output``: what it returned, None where it did not complete. ``error``: what ended the
    run. ``context``: that of the step's last attempt.
    """

    completed: bool
    output: T | None
    error: Exception
    context: StepContext


@dataclass(frozen=True)
class Rollback(Generic[T]):
    """A handler with options of its own; without them it has ``Meta``'s and the settings', as a step has."""

    handler: Callable[[Undo[T]], object]
    retries: Retries | int | None = None
    timeout: Duration | None = None


@dataclass(frozen=True)
class Winner(Generic[T]):
    """What ``step.race`` returns: the branch that settled first, and what it returned."""

    name: str
    value: T


AnyRollback = Rollback[Any]
