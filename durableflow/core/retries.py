"""How often and when a failed step is tried again, and how long finished instances are kept (api.md, design 5)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Final, Literal, Self, TypeAlias

from durableflow.core.durations import TEN_YEARS, Duration, parse_duration
from durableflow.core.exceptions import NonRetryableError
from durableflow.core.lookup import dotted

Backoff: TypeAlias = Literal["constant", "linear", "exponential"]
DelayFunction: TypeAlias = Callable[[Any, Any], Duration]
"""Called with the step's context and the error; gives the delay that the back-off starts from."""

MAX_LIMIT: Final = 10_000
DYNAMIC: Final = "[dynamic]"
"""Stored in place of a delay function."""

_BACKOFFS: Final = ("constant", "linear", "exponential")
_HUNDRED_YEARS: Final = timedelta(days=36500)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Retries:
    """The retry policy of a step. None means: inherited (from `Meta.step_retries`, then the setting `STEP_RETRIES`).

    - `limit`: retries after the first attempt, 0 to 10,000: a step runs at most `limit + 1` times (case RET-01).
      `retries=3` in place of `Retries(limit=3)` is allowed.
    - `delay`: before the first retry, as a Duration or a function of `(context, error)`.
    - `backoff`: "constant" (d), "linear" (d*n) or "exponential" (d*2^(n-1), the default) for the n-th retry.
    - `max_delay`: never longer than that, nor than ten years.
    - `jitter`: 0 to 1, the fraction of the delay that is added or taken away at random. The result is never above
      `max_delay` and never negative.
    - `give_up_on`: an exception class or a tuple of them that is not retried.

    Durations become timedeltas, `give_up_on` a tuple. Raises ValueError that names the field (case RET-09).
    """

    limit: int | None = None
    delay: Duration | DelayFunction | None = None
    backoff: Backoff | None = None
    max_delay: Duration | None = None
    jitter: float | None = None
    give_up_on: type[BaseException] | tuple[type[BaseException], ...] | None = None

    def __post_init__(self) -> None:
        _check_limit(self.limit)
        if self.backoff is not None and self.backoff not in _BACKOFFS:
            raise ValueError(f"backoff must be one of {', '.join(_BACKOFFS)}, not {self.backoff!r}.")
        if self.delay is not None and not callable(self.delay):
            self._set("delay", parse_duration(self.delay, what="delay", maximum=TEN_YEARS))
        if self.max_delay is not None:
            self._set("max_delay", parse_duration(self.max_delay, what="max_delay", maximum=TEN_YEARS))
        _check_jitter(self.jitter)
        if self.give_up_on is not None:
            self._set("give_up_on", _exception_classes(self.give_up_on))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # frozen

    @classmethod
    def coerce(cls, value: int | Retries | None) -> Retries | None:
        """The policy that an option means: a number is a limit, None stays None (inherited). Raises ValueError."""
        if value is None or isinstance(value, Retries):
            return value
        if isinstance(value, int):
            return cls(limit=value)
        raise ValueError(f"retries must be a number or Retries(...), not {value!r}.")

    def merge(self, base: Retries) -> Retries:
        """This policy, with what it leaves open taken from `base`."""
        return replace(base, **_given(self))

    def delay_for(
        self,
        failed_attempt_number: int,
        *,
        context: Any = None,
        error: BaseException | None = None,
        rng: random.Random | None = None,
    ) -> timedelta:
        """How long to wait after the attempt of this number (from 1) failed with `error`.

        `context` is the step's context for a delay function, whose result goes through the back-off like a number;
        `rng` makes the jitter repeatable. What is left open is taken from the defaults. Raises NonRetryableError
        when the delay function does.
        """
        if failed_attempt_number < 1:
            raise ValueError(f"Attempts are numbered from 1, not {failed_attempt_number}.")
        policy = self.merge(DEFAULT_RETRIES)
        # Whole microseconds: integers cannot overflow, however many attempts there were (case RET-10).
        cap = (policy.max_delay if isinstance(policy.max_delay, timedelta) else TEN_YEARS) // _MICROSECOND
        delay = policy._first_delay(context, error) // _MICROSECOND
        if policy.backoff == "linear":
            delay *= failed_attempt_number
        elif policy.backoff == "exponential":
            delay <<= min(failed_attempt_number - 1, 64)
        delay = min(delay, cap)
        if policy.jitter:
            # The system's source: workers forked from one process must not draw the same numbers.
            factor = 1 + policy.jitter * (rng or _SYSTEM_RANDOM).uniform(-1, 1)
            delay = max(0, min(round(delay * factor), cap))
        return timedelta(microseconds=delay)

    def _first_delay(self, context: Any, error: BaseException | None) -> timedelta:
        if isinstance(self.delay, timedelta):
            return self.delay
        step = f'step "{getattr(context, "name", "?")}"'
        if not callable(self.delay):  # excluded by merging with the defaults
            raise TypeError(f"The {step} has no delay.")
        try:
            given = self.delay(context, error)
        except (Exception, SystemExit) as failure:
            raise NonRetryableError(f"The delay function for {step} failed: {failure!r}") from failure
        try:
            return parse_duration(given, what="its result", maximum=TEN_YEARS)
        except ValueError as failure:
            raise NonRetryableError(f"The delay function for {step} gave a wrong value: {failure}") from failure

    def gives_up(self, error: BaseException) -> bool:
        """Whether `error` ends the step at once: it is a NonRetryableError or one of `give_up_on` (case RET-06)."""
        given_up = self.give_up_on
        return isinstance(error, NonRetryableError) or (given_up is not None and isinstance(error, given_up))

    def to_config(self) -> dict[str, Any]:
        """The policy as JSON, to be stored with the step: seconds, "[dynamic]" for a function, names of classes."""
        return {
            "limit": self.limit,
            "delay": DYNAMIC if callable(self.delay) else _seconds(self.delay),
            "backoff": self.backoff,
            "max_delay": _seconds(self.max_delay),
            "jitter": self.jitter,
            "give_up_on": [dotted(cls) for cls in self.give_up_on] if isinstance(self.give_up_on, tuple) else None,
        }

    @classmethod
    def from_config(cls, stored: Mapping[str, Any], live: Retries) -> Retries:
        """The policy that a step started with: the `stored` values win over what the code says now.

        What only code can say (`give_up_on`, a delay function) is taken from `live`, the policy of the call.
        """
        return cls(
            limit=stored.get("limit", live.limit),
            delay=live.delay if stored.get("delay", DYNAMIC) == DYNAMIC else stored["delay"],
            backoff=stored.get("backoff", live.backoff),
            max_delay=stored.get("max_delay", live.max_delay),
            jitter=stored.get("jitter", live.jitter),
            give_up_on=live.give_up_on,
        )


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long finished instances are kept, counted from the last finish. None means: inherited.

    `success` is for complete instances, `error` for errored ones; at most 100 years. They become timedeltas.
    """

    success: Duration | None = None
    error: Duration | None = None

    def __post_init__(self) -> None:
        for name, value in _given(self).items():
            duration = parse_duration(value, what=f"retention {name}", maximum=_HUNDRED_YEARS)
            object.__setattr__(self, name, duration)

    def merge(self, base: Retention) -> Retention:
        """This retention, with what it leaves open taken from `base`."""
        return replace(base, **_given(self))

    def to_config(self) -> dict[str, Any]:
        """As JSON, in seconds; None where inherited."""
        return {"success": _seconds(self.success), "error": _seconds(self.error)}

    @classmethod
    def from_config(cls, stored: Mapping[str, Any]) -> Self:
        """What `to_config` stored."""
        return cls(success=stored.get("success"), error=stored.get("error"))


def _given(policy: Retries | Retention) -> dict[str, Any]:
    values = {field.name: getattr(policy, field.name) for field in fields(policy)}
    return {name: value for name, value in values.items() if value is not None}


def _check_limit(limit: object) -> None:
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit must be a whole number from 0 to {MAX_LIMIT:,}, not {limit!r}.")


def _check_jitter(jitter: object) -> None:
    if jitter is None:
        return
    number = math.nan if isinstance(jitter, bool) or not isinstance(jitter, int | float) else jitter
    if not 0 <= number <= 1:
        raise ValueError(f"jitter must be a number from 0 to 1, not {jitter!r}.")


def _exception_classes(given: object) -> tuple[type[BaseException], ...]:
    classes = given if isinstance(given, tuple) else (given,)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise ValueError(f"give_up_on must be an exception class or a tuple of them, not {given!r}.")
    return classes


def _seconds(duration: object) -> float | int | None:
    if not isinstance(duration, timedelta):
        return None
    seconds = duration.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds


DEFAULT_RETRIES: Final = Retries(limit=5, delay=10, backoff="exponential")
_SYSTEM_RANDOM: Final = random.SystemRandom()
