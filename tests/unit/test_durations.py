"""Durations: one meaning for numbers, whole words for units, clear errors."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from durableflow.core.durations import TEN_YEARS, parse_duration

UNITS = ("second", "minute", "hour", "day", "week", "month", "year")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (5, 5),
        (0.25, 0.25),
        ("5 seconds", 5),
        ("1 minute", 60),
        ("2 Weeks", 2 * 7 * 86400),
        ("1 month", 30 * 86400),
        ("1 year", 365 * 86400),
        (" 10  seconds ", 10),
        ("1.5 HOURS", 5400),
        ("1 days", 86400),
        ("3 day", 3 * 86400),
        (timedelta(seconds=5), 5),
        ("400 days", 400 * 86400),
        ("0 seconds", 0),
        (0, 0),
        (0.0, 0),
        (timedelta(0), 0),
    ],
)
def test_accepted_durations(value: Any, seconds: float) -> None:
    """TIM-11: numbers are seconds, words in any case; RET-08, TIM-05: zero is a normal value; TIM-06: long ones too."""
    assert parse_duration(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [
        "1h", "5s", "5", "5seconds", "seconds", "", " ", "5 parsecs", "five minutes", "-1 second", "+1 second",
        "1e3 seconds", "5 secondss", "1 s", "1 sec", "1, second", ".5 hours", "nan seconds", "1 second 2",
        "\u0661 second",
        True, False, math.nan, math.inf, -math.inf, -5, -0.001, timedelta(seconds=-1), None, [], b"1 second",
        Decimal(1), 1j,
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_list_of_units(value: Any) -> None:
    """TIM-05, TIM-11, RET-09."""
    with pytest.raises(ValueError, match="step timeout") as caught:
        parse_duration(value, what="step timeout")
    assert all(unit in str(caught.value) for unit in UNITS)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [10**20, 1e300, "99999999999 years", "9" * 5000 + " seconds", 10**400])
def test_overflow_is_a_value_error(value: Any) -> None:
    """TIM-06."""
    with pytest.raises(ValueError, match=r"too long|duration"):
        parse_duration(value)


def test_zero_can_be_refused() -> None:
    for zero in (0, "0 days", timedelta(0)):
        with pytest.raises(ValueError, match="timeout must be longer than zero"):
            parse_duration(zero, what="timeout", positive=True)
    assert parse_duration(1e-6, positive=True) == timedelta(microseconds=1)


def test_the_longest_duration_is_named() -> None:
    assert parse_duration("10 years", maximum=TEN_YEARS) == TEN_YEARS
    with pytest.raises(ValueError, match=r"sleep is too long: '11 years'. At most 3,650 days"):
        parse_duration("11 years", what="sleep", maximum=TEN_YEARS)
