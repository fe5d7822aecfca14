"""Ctrl-C, SIGTERM and a closed terminal: all unwind the main thread, so that every ``finally`` runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from project.demo.runner.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Raises ``Stopped`` in the main thread at the first signal, but not between a child's start and its record."""

    def __init__(self) -> None:
        self._held = False
        self._signum = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Handles the signals during the block.

        A hang-up that the caller has set to be ignored (nohup) stays ignored. SIGINT does not: a script's shell ignores it
        for all it starts in the background, but who sends it means it.
        """
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in before.items():
            if number != signal.SIGHUP or handler is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A signal that comes in the block is raised at its end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._signum:
            raise Stopped(self._signum)

    def ignore(self) -> None:
        """From now on signals change nothing: the demo is already cleaning up, which takes a bounded time."""
        self._held = True

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        first, self._signum = not self._signum, signum
        if first and not self._held:
            raise Stopped(signum)
