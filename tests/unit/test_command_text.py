"""Text of the command line: as wide as it looks, nothing that a terminal obeys, colour where it is wanted."""

from __future__ import annotations

import io
import json
from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.core.management.base import OutputWrapper

from durableflow.core import clock
from durableflow.management import output
from durableflow.management.arguments import at_least, since, start, until
from durableflow.management.output import Cell, Column, Printer, encodable
from durableflow.management.progress import Progress
from durableflow.management.text import as_json, cut, local, pad, printable, printable_lines, shortened, width
from tests.support.commands import Terminal

PLAIN = (Column("ID", keep=True), Column("TITLE"), Column("N", right=True))


def printer(stream: Any, **options: Any) -> Printer:
    return Printer(OutputWrapper(stream), OutputWrapper(io.StringIO()), options)


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("日本", 4), ("é", 1), ("e\u0301", 1), ("", 0), ("…", 1), ("\uff57", 2)]
)
def test_width(text: str, columns: int) -> None:
    """East Asian letters take two columns, an accent over another letter none."""
    assert width(text) == columns
    assert width(pad(text, 6)) == 6


@pytest.mark.parametrize(
    ("text", "columns", "kept"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("日本語", 6, "日本語"),
    ],
)
def test_cut(text: str, columns: int, kept: str) -> None:
    """Never in the middle of a letter, never wider than asked."""
    assert cut(text, columns) == kept
    assert width(cut(text, columns)) <= columns


def test_nothing_for_a_terminal_to_obey() -> None:
    """Escapes, line breaks and letters that turn the direction are shown, not done."""
    assert printable("a\x1b[2J\u202eb\nc\td\x9b") == r"a\x1b[2J\u202eb c d\x9b"
    assert printable_lines("  a\x1b\n\tb\r\n") == [r"  a\x1b", "    b"]


def test_shortened() -> None:
    """A value is one line; how much was cut is told."""
    assert shortened({"a": "b\nc"}, 100) == r'{"a": "b\nc"}'
    assert shortened("x" * 10, 5) == '"xxxx… (7 more characters)'


def test_moments() -> None:
    """For people with the zone's name; for programs in UTC with all digits."""
    moment = datetime(2026, 12, 1, 9, 0, 0, 5, tzinfo=timezone(timedelta(hours=1)))
    assert local(moment) == "2026-12-01 08:00:00 UTC" and local(None) == ""
    assert json.loads(as_json([moment, timedelta(minutes=1)])) == ["2026-12-01T08:00:00.000005Z", 60.0]
    with pytest.raises(TypeError, match="no part of a document"):
        as_json(object())


def test_a_table_in_a_pipe_is_whole() -> None:
    """Widths by content; numbers at the right; no spaces at the end."""
    rows = [("日本", "x" * 300, "1"), ("a", "", "1,000")]
    lines = printer(io.StringIO()).table(PLAIN, rows)
    assert lines[0] == f"ID    TITLE{' ' * 295}      N"
    assert lines[1] == f"日本  {'x' * 300}      1"
    assert lines[2] == f"a     {' ' * 300}  1,000"


def test_a_table_on_a_terminal_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The widest column is cut; what people copy never is, and on a very narrow one lines wrap."""
    rows = [("an-id-of-twenty-chars", "日" * 300, "1")]
    for columns in (60, 41, 10):
        monkeypatch.setenv("COLUMNS", str(columns))
        head, line = printer(Terminal()).table(PLAIN, rows)
        assert line.startswith("an-id-of-twenty-chars  日") and "…" in line
        assert width(line) <= max(columns, 21 + 2 + 8 + 2 + 1)
        assert width(head) <= width(line)


def test_cells_are_padded_before_they_are_painted() -> None:
    """Colour takes no column."""
    rows: list[list[Cell | str]] = [[Cell("a", lambda text: f"<{text}>"), "b", "1"], ["abc", "d", "2"]]
    assert printer(io.StringIO()).table(PLAIN, rows)[1] == "<a  >  b      1"


def test_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal that wants it; what is said last counts most."""

    def coloured(stream: Any, **options: Any) -> bool:
        return printer(stream, **options).paint("errored")("x") != "x"

    assert coloured(Terminal()) and not coloured(io.StringIO())
    assert coloured(io.StringIO(), force_color=True) and not coloured(Terminal(), no_color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured(Terminal()) and coloured(Terminal(), force_color=True)
    monkeypatch.setenv("NO_COLOR", "")
    assert coloured(Terminal())


def test_one_document_and_nothing_else() -> None:
    """--json: what is for people is silent."""
    stream = io.StringIO()
    asked = printer(stream, json=True)
    asked.line("for people"), asked.facts([("a", "b")]), asked.print_table(PLAIN, [("a", "b", "c")])
    asked.document({"é": None})
    assert stream.getvalue() == '{"é": null}\n'
    people = io.StringIO()
    printer(people).document({})
    assert people.getvalue() == ""


def test_a_terminal_that_has_not_all_letters() -> None:
    """Escapes in place of an error; JSON says the same in ASCII."""

    class Ascii(io.StringIO):
        encoding = "ascii"

    assert encodable("é日", Ascii()) == r"\xe9\u65e5"
    stream = Ascii()
    printer(stream, json=True).document("é")
    assert stream.getvalue() == '"\\u00e9"\n'
    assert output.encoding_of(io.StringIO()) == "utf-8"


def test_facts_leave_out_what_is_empty() -> None:
    stream = io.StringIO()
    printer(stream).facts([("a", "1"), ("long", ""), ("bcd", "2")])
    assert stream.getvalue() == "  a    1\n  bcd  2\n"


def test_when() -> None:
    """A day, a moment with and without offset, how long ago; 'until' a day means its end."""
    assert since("2026-11-30") == datetime(2026, 11, 30, tzinfo=UTC)
    assert until("2026-11-30") == datetime(2026, 12, 1, tzinfo=UTC)
    assert until("2026-11-30T08:00+01:00") == datetime(2026, 11, 30, 7, tzinfo=UTC)
    assert since("2026-11-30 08:00") == datetime(2026, 11, 30, 8, tzinfo=UTC)
    with clock.stop(datetime(2026, 11, 30, 12, tzinfo=UTC)):
        assert since("2 hours") == datetime(2026, 11, 30, 10, tzinfo=UTC) == until("7200")
    assert start("90") == timedelta(seconds=90) and start("10 minutes") == timedelta(minutes=10)
    assert start("2036-12-01T08:00") == datetime(2036, 12, 1, 8, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-02-30T08:00", "1h", "-5", "nan", "9999-12-31"])
def test_when_it_is_no_time(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="expected a day"):
        until(text)
    with pytest.raises(ArgumentTypeError, match="expected a moment"):
        start(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "a", "", "²", "\u0661"])
def test_numbers(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="expected a number of at least 1"):
        at_least(1)(text)
    assert at_least(0)("0") == 0


def test_a_bar_ends_clean() -> None:
    """Overwritten with spaces, also when an error ends it."""
    stream = Terminal()
    with pytest.raises(RuntimeError), Progress(OutputWrapper(stream), "purge") as progress:
        progress(0, 0), progress(1, 2), progress(2, 2)
        raise RuntimeError
    assert progress.done == 2
    pictures = stream.getvalue().split("\r")
    assert any(picture.startswith("purge [####") for picture in pictures)
    assert pictures[-2].strip() == "" and pictures[-1] == ""
