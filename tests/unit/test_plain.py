"""Stored values for people: plain JSON without tags."""

from __future__ import annotations

import enum
import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.utils.functional import lazystr

from durableflow.core.plain import to_plain


class Colour(enum.Enum):
    RED = ("red", Decimal("1.5"))


class Mode(enum.StrEnum):
    FAST = "fast"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (1.5, 1.5),
        ("ü", "ü"),
        (lazystr("a"), "a"),
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 1, 2, 3, 4, 5, 123456, UTC), "2026-01-02T03:04:05.123456+00:00"),
        (datetime(2026, 7, 2, 3, 4, tzinfo=ZoneInfo("Europe/Berlin")), "2026-07-02T03:04:00+02:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4, 5, 7), "03:04:05.000007"),
        (timedelta(days=1, hours=2), "P1DT02H00M00S"),
        (timedelta(days=-1, microseconds=7), "-P0DT23H59M59.999993S"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (b"\xff\x00", "/wA="),
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (Colour.RED, ["red", "1.5"]),
        (Mode.FAST, "fast"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (
            {1: [math.nan], None: 1, Mode.FAST: 2, date(2026, 1, 2): 3},
            {"1": ["NaN"], "None": 1, "fast": 2, "2026-01-02": 3},
        ),
        ({"$df": "tuple"}, {"$df": "tuple"}),
        (object, "<class 'object'>"),
    ],
)
def test_values_are_shown_in_plain_json(value: Any, plain: Any) -> None:
    """SER-03: full precision; SER-04: what JSON has no number for is text."""
    shown = to_plain(value)
    assert (type(shown), shown) == (type(plain), plain)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown


def test_keys_with_the_same_text_are_both_shown() -> None:
    assert to_plain({"1": "text", 1: "number"}) == {"1": "text", "1 (int)": "number"}


def test_an_integer_that_no_decimal_text_may_hold_is_shown() -> None:
    assert json.loads(json.dumps(to_plain([10**5000])))[0].startswith("0x")


def test_what_is_shown_is_fresh() -> None:
    value = {"a": [1]}
    to_plain(value)["a"].append(2)
    assert value == {"a": [1]}
