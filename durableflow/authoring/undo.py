"""Rollback handlers: how an author gives one, and what it gets (design 7, reference 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from durableflow.authoring.context import StepContext
from durableflow.authoring.signatures import check_one_argument
from durableflow.core.durations import TEN_YEARS, Duration, parse_duration
from durableflow.core.retries import Retries

T = TypeVar("T")
# A handler for any output serves a step with a special one.
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Undo(Generic[T_co]):
    """The one argument of a rollback handler: what is to be undone.

    ``completed``: whether the step completed; a failed or interrupted one may have had an effect all the same (look it up
    by ``context.idempotency_key``). ``output``: what it returned, None where it did not complete. ``error``: what ended the
    run. ``context``: that of the step's last attempt.
    """

    completed: bool
    output: T_co | None
    error: Exception
    context: StepContext


@dataclass(frozen=True)
class Rollback(Generic[T_contra]):
    """A handler with options of its own; without them it has ``Meta``'s and the settings', as a step has.

    ``retries``, ``timeout``: as of a step, for the handler's attempts. They are checked by the call that gets this.
    """

    handler: Callable[[Undo[T_contra]], object]
    retries: Retries | int | None = field(default=None, kw_only=True)
    timeout: Duration | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Winner(Generic[T_co]):
    """What ``step.race`` returns: the branch that settled first, and what it returned."""

    name: str
    value: T_co


AnyRollback: TypeAlias = Rollback[Any]
RollbackOption: TypeAlias = Callable[[Undo[T]], object] | Rollback[T]
"""The option ``rollback`` of a step that returns T."""


def coerce_rollback(given: object) -> AnyRollback:
    """What the option ``rollback`` means: a ``Rollback`` that holds a function, Retries and a timedelta, or None where
    inherited. Raises ValueError."""
    rollback = given if isinstance(given, Rollback) else Rollback(given)  # type: ignore[arg-type]  # looked at below
    if not callable(rollback.handler):
        raise ValueError(
            f"rollback must be a function of one argument, the Undo, or Rollback(function, ...), not {rollback.handler!r}."
        )
    check_one_argument(rollback.handler, "rollback", "the Undo")
    retries = Retries.coerce(rollback.retries)
    if rollback.timeout is None:
        return replace(rollback, retries=retries)
    timeout = parse_duration(rollback.timeout, what="timeout", positive=True, maximum=TEN_YEARS)
    return replace(rollback, retries=retries, timeout=timeout)
