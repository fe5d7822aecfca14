"""JSON that comes from outside: request bodies, arguments of commands, fields of the admin."""

from __future__ import annotations

import json
import math
from typing import Any


class NotJson(ValueError):
    """The text has something that JSON has not, or that no value here can hold. ``found``: what that is."""

    def __init__(self, found: str, problem: str) -> None:
        super().__init__(f"{found} {problem}")
        self.found = found


def parse_json(text: str) -> Any:
    """The value that ``text`` is. Raises json.JSONDecodeError, NotJson, ValueError for an integer of too many digits, and
    RecursionError.

    Python's own reader takes NaN and Infinity, and makes 1e400 infinite: another value than the one that was sent.
    """
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _refuse(name: str) -> Any:
    raise NotJson(name, "is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise NotJson(text if len(text) < 40 else f"{text[:36]}...", "is too large for a number")
    return number
