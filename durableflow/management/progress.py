"""How far a long verb is: on a terminal only, and gone when it is over."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Final, Self

CELLS: Final = 30
EACH: Final = 0.1
"""Seconds between two pictures."""


class Progress:
    """``with Progress(stderr, "Retrying") as progress: work(progress=progress)``; called with what is done and how much there is.

    ``done``: what it was called with last, also where nothing is drawn.
    """

    def __init__(self, stream: Any, what: str) -> None:
        self.done = 0
        self._stream, self._what = stream, what
        self._drawn_at = 0.0
        self._drawn = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw("")

    def __call__(self, done: int, total: int) -> None:
        """``done`` of ``total`` are done."""
        self.done = done
        now = time.monotonic()
        if not self._stream.isatty() or (now - self._drawn_at < EACH and done < total):
            return
        self._drawn_at = now
        full = CELLS * done // total if total else CELLS
        self._draw(f"{self._what} [{'#' * full}{'.' * (CELLS - full)}] {done:,} of {total:,}")

    def _draw(self, text: str) -> None:
        if not text and not self._drawn:
            return
        blank = " " * (len(self._drawn) - len(text))
        self._stream.write(f"\r{text}{blank}" + ("" if text else "\r"), style_func=str, ending="")
        self._stream.flush()
        self._drawn = text
