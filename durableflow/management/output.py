"""What verbs print: tables and sentences for people, one JSON document for programs (design 10)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.core.management.base import OutputWrapper
from django.core.management.color import Style, color_style, no_style

from durableflow.core.statuses import PendingStatus, Status, StepStatus
from durableflow.management.text import as_json, cut, pad, printable, width

NARROWEST: Final = 8
"""Columns to which a column of a table is cut at most."""
GAP: Final = "  "

_GOOD: Final = {Status.COMPLETE.value, StepStatus.COMPLETE.value, PendingStatus.RECEIVED.value}
_BAD: Final = {Status.ERRORED.value, StepStatus.FAILED.value, "lost"}
_CARE: Final = {Status.PAUSED.value, Status.WAITING_FOR_PAUSE.value, Status.ROLLING_BACK.value}


class Cell(NamedTuple):
    """A cell of a table. ``paint`` colours it after it was cut and padded."""

    text: str
    paint: Callable[[str], str] = str


@dataclass(frozen=True)
class Column:
    """A column of a table. ``keep``: never cut (what people copy: ids); ``right``: numbers."""

    head: str
    keep: bool = False
    right: bool = False


class Printer:
    """Writes for people or, with ``--json``, for programs: then nothing but one document goes to ``stdout``.

    Colour only on a terminal that wants it (``NO_COLOR``), or where it is forced.
    """

    def __init__(self, stdout: OutputWrapper, stderr: OutputWrapper, options: dict[str, Any]) -> None:
        self.stdout, self.stderr = stdout, stderr
        self.as_json = bool(options.get("json"))
        self.style = style_for(stdout, options)

    def line(self, text: str = "") -> None:
        """A line for people; nothing with ``--json``."""
        if not self.as_json:
            self.stdout.write(encodable(text, self.stdout))

    def note(self, text: str) -> None:
        """A remark beside the result, on stderr."""
        self.stderr.write(encodable(text, self.stderr), style_func=str)

    def document(self, value: Any) -> None:
        """The result for programs; nothing without ``--json``."""
        if self.as_json:
            self.stdout.write(as_json(value, ascii_only=encoding_of(self.stdout) != "utf-8"))

    def status(self, status: str) -> Cell:
        """A status in its colour."""
        return Cell(status, self.paint(status))

    def paint(self, status: str) -> Callable[[str], str]:
        """What colours a status."""
        style: Any = self.style
        found = (
            style.SUCCESS
            if status in _GOOD
            else style.ERROR
            if status in _BAD
            else style.WARNING
            if status in _CARE
            else str
        )
        return found

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], *, indent: str = "") -> list[str]:
        """The lines of a table: its head, then one for each row. Cut to the width of a terminal; a pipe or a file gets all."""
        cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
        texts = [[printable(cell.text) for cell in row] for row in cells]
        widths = [max(width(column.head), *(width(row[at]) for row in texts), 0) for at, column in enumerate(columns)]
        if self.stdout.isatty():
            _shrink(widths, columns, shutil.get_terminal_size().columns - len(indent))
        lines = [_line((_fit(column.head, column, size) for column, size in zip(columns, widths, strict=True)))]
        for row, said in zip(cells, texts, strict=True):
            fitted = (_fit(*each) for each in zip(said, columns, widths, strict=True))
            lines.append(_line(cell.paint(text) for cell, text in zip(row, fitted, strict=True)))
        return [indent + line for line in lines]

    def print_table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> None:
        """Print a table."""
        for line in self.table(columns, rows):
            self.line(line)

    def facts(self, facts: Iterable[tuple[str, str]], *, indent: str = GAP) -> None:
        """Names and values, one pair in a line; pairs without a value are left out."""
        told = [(name, value) for name, value in facts if value]
        longest = max((width(name) for name, _value in told), default=0)
        for name, value in told:
            self.line(f"{indent}{pad(name, longest)}{GAP}{value}")


def style_for(stdout: OutputWrapper, options: dict[str, Any]) -> Style:
    """Colours, or none: ``--no-color`` and ``--force-color`` decide, then ``NO_COLOR``, then whether ``stdout`` is a terminal."""
    if options.get("no_color"):
        return no_style()
    if options.get("force_color"):
        return color_style(force_color=True)
    return color_style(force_color=True) if stdout.isatty() and not os.environ.get("NO_COLOR") else no_style()


def encoding_of(stream: Any) -> str:
    """The encoding of a stream; of one that takes text as it is, utf-8."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-")


def encodable(text: str, stream: Any) -> str:
    """``text`` with escapes for what the stream's encoding does not have."""
    name = encoding_of(stream)
    return text if name == "utf-8" else text.encode(name, "backslashreplace").decode(name)


def _shrink(widths: list[int], columns: Sequence[Column], room: int) -> None:
    """Take from the widest column that may be cut until the table fits, or nothing more can be taken."""
    over = sum(widths) + len(GAP) * (len(widths) - 1) - room
    while over > 0:
        able = [at for at, column in enumerate(columns) if not column.keep and widths[at] > NARROWEST]
        if not able:
            return
        widest = max(able, key=lambda at: widths[at])
        widths[widest] -= 1
        over -= 1


def _fit(text: str, column: Column, size: int) -> str:
    text = cut(text, size)
    return " " * (size - width(text)) + text if column.right else pad(text, size)


def _line(cells: Iterable[str]) -> str:
    return GAP.join(cells).rstrip()
