"""What verbs take from the command line, and how it is read."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final

from django.core.management.base import CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from durableflow.core import clock
from durableflow.core.durations import TEN_YEARS, parse_duration
from durableflow.core.jsontext import parse_json
from durableflow.core.names import check_text
from durableflow.management.errors import wrong

STDIN: Final = "-"
MOST: Final = 2**31 - 1
"""What every database takes as a number."""
MOST_KEY: Final = 2**63 - 1
"""The same for primary keys."""
DIGITS: Final = len(str(MOST_KEY))
JSON_HELP: Final = "Print one JSON document, for programs."


def add_json(parser: CommandParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def add_actor(parser: CommandParser) -> None:
    """``--user`` and ``--reason``: who acts and why, for the history."""
    parser.add_argument(
        "--user",
        metavar="USERNAME",
        help="Act as this user: with the rights of that user, and under that name in the history. Default: as trusted code.",
    )
    parser.add_argument("--reason", type=storable, default="", help="Kept in the history.")


def storable(text: str) -> str:
    """A free text that a database can keep."""
    try:
        return check_text("the text", text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def at_least(least: int, most: int = MOST) -> Any:
    """A whole number from ``least`` to ``most``."""

    def number(text: str) -> int:
        if not text.isdecimal() or not text.isascii() or len(text) > DIGITS or not least <= int(text) <= most:
            raise ArgumentTypeError(f"expected a number of at least {least}, at most {most}, not {text!r}")
        return int(text)

    return number


def since(text: str) -> datetime:
    """Where a range begins: a moment, the start of a day, or a duration back from now."""
    return _bound(text, timedelta())


def until(text: str) -> datetime:
    """Where a range ends: a moment, the end of a day, or a duration back from now."""
    return _bound(text, timedelta(days=1))


def start(text: str) -> datetime | timedelta:
    """A moment, or a duration from now."""
    try:
        found = _moment(text)
        return _duration(text) if found is None else found
    except (ValueError, OverflowError) as error:
        raise ArgumentTypeError(
            f"expected a moment (2026-12-01T08:00) or a duration from now ('10 minutes'), not {text!r}"
        ) from error


def _bound(text: str, more: timedelta) -> datetime:
    try:
        found = _moment(text)
        if found is not None:
            return found
        day = parse_date(text)
        if day is not None:
            return _possible(timezone.make_aware(datetime.combine(day + more, time())))
        return clock.host_now() - _duration(text)
    except (ValueError, OverflowError) as error:
        raise ArgumentTypeError(
            f"expected a day (2026-12-01), a moment (2026-12-01T08:00) or how long ago ('2 hours'), not {text!r}"
        ) from error


def _moment(text: str) -> datetime | None:
    if _is_day(text):
        return None
    found = parse_datetime(text)
    if found is None:
        return None
    return _possible(timezone.make_aware(found) if found.tzinfo is None else found)


def _possible(moment: datetime) -> datetime:
    """In UTC, where databases compare it; OverflowError at the ends of the calendar."""
    return moment.astimezone(UTC)


def _is_day(text: str) -> bool:
    """Whether it is a day without a time: ``parse_datetime`` would take it for its midnight."""
    return parse_date(text) is not None


def _duration(text: str) -> timedelta:
    try:
        seconds = float(text)
    except ValueError:
        return parse_duration(text, maximum=TEN_YEARS)
    return parse_duration(seconds, maximum=TEN_YEARS)


def read_stdin() -> str:
    """All of it. CommandError where there is none; UnicodeDecodeError."""
    if sys.stdin is None:
        raise wrong("There is nothing to read: stdin is closed.")
    try:
        return sys.stdin.read()
    except OSError as error:
        raise wrong(f"stdin cannot be read: {error.strerror or error}.") from error


def json_value(text: str, what: str) -> Any:
    """The value that ``text`` is as JSON, or that stands on stdin where ``text`` is ``-``. CommandError where it is none."""
    source = "stdin" if text == STDIN else what
    try:
        return parse_json(read_stdin() if text == STDIN else text)
    except RecursionError:
        raise wrong(f"{source} is nested too deeply.") from None
    except ValueError as error:
        bare = text[:1] not in (STDIN, "{", "[", '"')
        hint = " A text needs its quotes: '\"paid\"'." if bare else ""
        raise wrong(f"{source} is not JSON: {error}.{hint}") from error
