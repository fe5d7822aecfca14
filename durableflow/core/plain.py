"""Stored values for people and programs: plain JSON without tags, for REST and admin (cases SER-03, SER-04).

One way only: what this makes is shown, never stored.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any, Final

from django.utils.duration import duration_iso_string

# Python refuses to write longer integers as decimal text.
_LONG_INT_BITS: Final = 2000


def to_plain(value: Any) -> Any:
    """`value` in types that every JSON parser takes, in fresh objects.

    Decimal and UUID as text, dates and times in ISO 8601 with full precision, durations as ISO 8601
    ("P1DT02H00M00S"), bytes as base64, tuples and sets as lists (sets sorted), enums as their value, NaN and
    infinities as "NaN", "Infinity", "-Infinity", keys as text. Never raises for a value that the codec has read;
    anything else is shown as its text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value) if value.bit_length() <= _LONG_INT_BITS else hex(value)
    if isinstance(value, float):
        return _number(float.__float__(value))
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, list | tuple):
        return [to_plain(member) for member in value]
    if isinstance(value, set | frozenset):
        return sorted((to_plain(member) for member in value), key=json.dumps)
    return _text(value)


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: Any) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return duration_iso_string(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return str(value)


def _mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, member in value.items():
        text = _key(key)
        if text in plain:  # 1 and "1": show both
            text = f"{text} ({type(key).__name__})"
        plain[text] = to_plain(member)
    return plain


def _key(key: Any) -> str:
    plain = to_plain(key)
    return plain if isinstance(plain, str) else str(plain)
