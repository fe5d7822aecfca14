"""Redaction of plain values."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from durableflow.core.redact import Secrets, redact, shown
from durableflow.engine.secrecy import StepSecrets
from durableflow.timeline import Veil

MASK = "[REDACTED]"


@pytest.fixture
def names(settings: Any) -> None:
    settings.DURABLEFLOW = {"REDACT": ("Password", "token")}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"password": "x"}, {"password": MASK}),
        ({"PASSWORD": {"a": 1}, "Token": [1]}, {"PASSWORD": MASK, "Token": MASK}),
        ([{"a": [{"token": None}]}], [{"a": [{"token": MASK}]}]),
        ({"passwords": 1, "my token": 2}, {"passwords": 1, "my token": 2}),
        ("password", "password"),
        (None, None),
        (7, 7),
    ],
)
def test_values_under_named_keys_are_hidden(value: Any, expected: Any, names: None) -> None:
    """SEC-09: at any depth, whatever the case."""
    assert redact(value) == expected


def test_the_argument_stays_what_it_is(names: None) -> None:
    value = {"a": [{"token": 1}]}
    redact(value)
    assert value == {"a": [{"token": 1}]}


def test_nothing_is_hidden_by_default() -> None:
    value = {"password": 1}
    assert redact(value) is value


def test_shown_values_are_plain_first(names: None) -> None:
    """SEC-09: a key that only looks like a named one when it is shown is hidden too."""
    assert shown({("token", 1): {"token": Decimal("1.5")}, "n": float("nan")})["n"] == "NaN"
    assert shown(({"token": Decimal("1.5")},)) == [{"token": MASK}]


def test_a_veil_hides_what_sensitive_steps_returned() -> None:
    """SEC-09: texts, numbers and bytes at any depth; the longest first; nothing so short that it means nothing."""
    veil = Veil(["login-1"], [{"a": ["secret", b"bytes1", 12345, "no", True]}, "secret-longer", None])
    assert veil.text("secret-longer, secret, bytes1, 12345, no, True") == f"{MASK}, {MASK}, {MASK}, {MASK}, no, True"


def test_a_veil_hides_all_of_a_sensitive_steps_error() -> None:
    """SEC-09: message and traceback; the type stays."""
    error = {"type": "E", "message": "m", "traceback": "t", "step": "login-1"}
    veil = Veil(["login-1"])
    assert veil.error(error) == {"type": "E", "message": MASK, "traceback": "", "step": "login-1"}
    assert veil.error({**error, "step": "other-1"}) == {**error, "step": "other-1"}
    assert veil.error({**error, "step": ""}, step="login-1") == {
        "type": "E",
        "message": MASK,
        "traceback": "",
        "step": "login-1",
    }
    assert veil.error(None) is None


def test_what_is_stored_and_what_is_shown_hide_the_same() -> None:
    """SEC-09: one unmasked sibling defeats the mask, be it a short text or a number."""
    value = {"pin": 1234.5, "word": "abcd", "bytes": b"secret", "short": "xyz", "flag": True, "none": None}
    told = "1234.5 abcd secret xyz True None"
    masked = f"{MASK} {MASK} {MASK} xyz True None"
    assert Secrets([value]).mask(told) == masked
    assert Veil(outputs=[value]).text(told) == masked
    assert StepSecrets([value]).describe(ValueError(told), "b-1", sensitive=False)["message"] == masked
