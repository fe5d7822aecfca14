"""The rules for what a schedule says, for declarations in code and for rows that staff add (design 9)."""

from __future__ import annotations

import re
from typing import Final

from durableflow.core.names import NAME_PATTERN, check_text

MAX_NAME: Final = 60
MAX_CATCH_UP: Final = 100
"""Missed slots that one look may start."""
OVERLAPS: Final = ("allow", "skip", "buffer_one")
_NAME: Final = re.compile(NAME_PATTERN)
_UNNAMED: Final = re.compile(r"schedule(-[0-9]+)?")
LATEST: Final = "latest"
NONE: Final = "none"


def check_schedule_name(value: object) -> str:
    """The name itself: 1 to 60 characters of those of an instance id, which begins with it. Raises ValueError,
    LimitExceeded."""
    name = check_text("The name of a schedule", value, MAX_NAME)
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"The name of a schedule begins the ids of its instances, so {name!a} is not possible. Allowed are the letters A-Z and "
            "a-z, digits, '_' and '-', not starting with '-'."
        )
    return name


def default_name(position: int) -> str:
    """The name of a declared schedule without one, at this position (from 0 on) of ``Meta.schedules``: a changed cron line stays
    the same row, so that a pause by staff survives it."""
    return "schedule" if position == 0 else f"schedule-{position + 1}"


def is_default_name(name: str) -> bool:
    """Whether the name is one of those that declared schedules get: staff cannot take it."""
    return _UNNAMED.fullmatch(name) is not None


def check_catch_up(value: object) -> str:
    """``"none"``, ``"latest"`` or a number from 1 to 100, as text. Raises ValueError."""
    if value in (NONE, LATEST):
        return str(value)
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if type(number) is not int or not 1 <= number <= MAX_CATCH_UP:
        raise ValueError(f"catch_up must be 'none', 'latest' or a number from 1 to {MAX_CATCH_UP}, not {value!r}.")
    return str(number)


def check_overlap(value: object) -> str:
    """``"allow"``, ``"skip"`` or ``"buffer_one"``. Raises ValueError."""
    if not isinstance(value, str) or value not in OVERLAPS:
        raise ValueError(f"overlap must be one of {', '.join(map(repr, OVERLAPS))}, not {value!r}.")
    return str(value)
