"""The live status of a cluster, for people: one line (issue, "a one-line live status that a person can read")."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any, Final, TextIO

from durableflow.cluster.drains import DRAINS
from durableflow.cluster.table import TABLE, Table

logger = logging.getLogger("durableflow.cluster")

WORRYING: Final = 5.0
"""Seconds for which work may be due without a word."""
EVERY: Final = 60.0
"""Seconds between two lines in a log."""
REFRESH: Final = 1.0
"""Seconds between two looks on a terminal."""


def plural(count: int, word: str) -> str:
    """``1 worker``, ``1,204 executions``."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def line(table: Table = TABLE) -> str:
    """``2 workers, 1 busy · 1,204 executions · nothing overdue``; in a stop ``stopping`` at the end."""
    parts = [
        f"{plural(table.workers(), 'worker')}, {table.busy_workers() or 'none'} busy",
        plural(table.executions(), "execution"),
    ]
    if DRAINS.stopping():  # the pusher has ended as it should, and nobody looks what is due
        return " · ".join([*parts, "stopping"])
    parts.append(_overdue(table.overdue()))
    if table.silent() > WORRYING:
        parts.append(f"no sign of the pusher for {table.silent():.0f} s")
    return " · ".join(parts)


def _overdue(seconds: float) -> str:
    return "nothing overdue" if seconds < 1 else f"oldest work overdue for {seconds:.0f} s"


class LiveLine:
    """On a terminal a line that is rewritten in place; elsewhere a line in the log once a minute, if something has
    changed or is wrong."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._next = time.monotonic() + (REFRESH if self._live else EVERY)
        self._shown: object = (0, 0)

    def show(self) -> None:
        """Show it if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (REFRESH if self._live else EVERY)
        if self._live:
            # The cursor goes back to the start, so that a line of the log overwrites this one.
            self._write(f"\r{line()}\x1b[K\r")
            return
        wrong = not DRAINS.stopping() and max(TABLE.overdue(), TABLE.silent()) > WORRYING
        state = (TABLE.executions(), TABLE.workers())
        if wrong or state != self._shown:
            self._shown = state
            logger.log(logging.WARNING if wrong else logging.INFO, "%s", line())

    def clear(self) -> None:
        """Take it off the terminal."""
        if self._live:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._live = False  # the terminal is gone; the cluster is not


def shows_on(stream: TextIO, log: logging.Logger, level: int) -> bool:
    """Whether a line of this level in ``log`` reaches the terminal, pipe or file behind ``stream``."""
    if not log.isEnabledFor(level):
        return False
    handlers = _handlers(log) or [handler for handler in (logging.lastResort,) if handler is not None]
    return any(level >= handler.level and _same(getattr(handler, "stream", None), stream) for handler in handlers)


def _handlers(log: logging.Logger) -> list[logging.Handler]:
    """The handlers that get a line of this log."""
    found: list[logging.Handler] = []
    each: logging.Logger | None = log
    while each is not None:
        found += each.handlers
        each = each.parent if each.propagate else None
    return found


def _same(one: Any, other: TextIO) -> bool:
    if one is other:
        return True
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (AttributeError, OSError, ValueError):
        return False  # none, closed, or not of the system


def wipe_behind(terminal: TextIO) -> None:
    """Where lines of a log go to the terminal of the live line: let none of it stand behind a shorter one."""
    if not terminal.isatty():
        return
    for name in ("durableflow.cluster", "django-q"):
        for handler in _handlers(logging.getLogger(name)):
            stream = getattr(handler, "stream", None)
            if isinstance(handler, logging.StreamHandler) and stream is not None and stream.isatty():
                handler.terminator = "\x1b[K\n"


def readable_logs() -> None:
    """Let the cluster's own lines be seen where the project has not said what becomes of them."""
    root = logging.getLogger("durableflow")
    if root.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
