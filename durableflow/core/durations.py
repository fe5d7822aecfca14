"""Durations as authors write them: numbers are seconds, texts are `<number> <unit>` (api.md, cases TIM-05, TIM-11)."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeAlias

Duration: TypeAlias = str | float | timedelta
"""Seconds as a number, a text such as "10 minutes", or a timedelta."""

TEN_YEARS: Final = timedelta(days=3650)
"""The longest sleep, wait and retry delay (design 6)."""

_UNITS: Final = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
    "month": timedelta(days=30),
    "year": timedelta(days=365),
}
_TEXT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s+([a-z]+)\s*", re.ASCII | re.IGNORECASE)
_RULE: Final = (
    "A duration is a number of seconds, a timedelta, or a text of a number and a unit, such as '10 minutes'. "
    "Units: second, minute, hour, day, week, month (30 days), year (365 days), singular or plural."
)


def parse_duration(
    value: Duration, *, what: str = "duration", positive: bool = False, maximum: timedelta | None = None
) -> timedelta:
    """The timedelta that an author's `value` means.

    `what` names it in errors; `positive` refuses zero; `maximum` is the longest one allowed. Raises ValueError
    that lists the units for everything else: negative, NaN, infinite, bool, empty, abbreviated ("1h"), unknown
    units, too large to count.
    """
    try:
        duration = _parse(value)
    except OverflowError:
        raise ValueError(f"{what} is too long: {value!r}.") from None
    if duration is None:
        raise ValueError(f"{what} is not a duration: {value!r}. {_RULE}")
    if duration < timedelta(0):
        raise ValueError(f"{what} must not be negative: {value!r}. {_RULE}")
    if positive and not duration:
        raise ValueError(f"{what} must be longer than zero: {value!r}. {_RULE}")
    if maximum is not None and duration > maximum:
        raise ValueError(f"{what} is too long: {value!r}. At most {maximum / timedelta(days=1):,.6g} days are allowed.")
    return duration


def _parse(value: object) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return timedelta(seconds=value) if math.isfinite(value) else None
    if not isinstance(value, str):
        return None
    match = _TEXT.fullmatch(value)
    if match is None:
        return None
    number, unit = match[1], match[2].lower()
    one = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
    if one is None or unit.endswith("ss"):
        return None
    if len(number) > 20:  # beyond any timedelta; Python refuses to read very long integers
        raise OverflowError
    return one * float(number) if "." in number else one * int(number)
