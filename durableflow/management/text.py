"""Text for terminals: one line, nothing that a terminal would obey, and as wide as it looks."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.utils import timezone

ELLIPSIS: Final = "…"
_NO_WIDTH: Final = frozenset({"Mn", "Me"})


def printable(text: object) -> str:
    """``text`` in one line, with everything escaped that a terminal would obey: names and errors may hold anything."""
    line = " ".join(str(text).split())
    return line if line.isprintable() else "".join(_safe(letter) for letter in line)


def printable_lines(text: object) -> list[str]:
    """The same line by line, with the indentation kept: for tracebacks."""
    return ["".join(_safe(letter) for letter in line.expandtabs(4).rstrip()) for line in str(text).splitlines()]


def _safe(letter: str) -> str:
    return letter if letter.isprintable() else ascii(letter)[1:-1]


def width(text: str) -> int:
    """Columns of a terminal that ``text`` takes: East Asian letters take two, accents put over others none."""
    return len(text) if text.isascii() else sum(_columns(letter) for letter in text)


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """``text`` in at most ``columns`` columns; what is cut off shows as an ellipsis."""
    if width(text) <= columns:
        return text
    kept, used = [], 0
    for letter in text:
        used += _columns(letter)
        if used > columns - 1:
            break
        kept.append(letter)
    return "".join(kept) + ELLIPSIS


def pad(text: str, columns: int) -> str:
    """``text`` with spaces to ``columns`` columns."""
    return text + " " * (columns - width(text))


def local(moment: datetime | None) -> str:
    """A moment for people, in the project's time zone and with its name; '' for None."""
    return "" if moment is None else timezone.localtime(moment).strftime("%Y-%m-%d %H:%M:%S %Z")


def shortened(value: Any, limit: int) -> str:
    """A plain value as JSON in one printable line of at most ``limit`` characters, and how many more there were."""
    text = printable(json.dumps(value, ensure_ascii=False))
    more = len(text) - limit
    return text if more <= 0 else f"{text[:limit]}{ELLIPSIS} ({more:,} more characters)"


def as_json(value: Any, *, ascii_only: bool = False) -> str:
    """A document for programs: moments in UTC (ISO 8601, all digits), durations as seconds."""
    return json.dumps(value, ensure_ascii=ascii_only, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} is no part of a document")
