"""Whether this process was asked to stop by a real signal; an exception of the same class that user code raises
means nothing (case RET-13)."""

from __future__ import annotations

import signal
from types import FrameType

_requested = False


def requested() -> bool:
    """Whether a stop was asked for."""
    return _requested


def on_interrupt(_number: int, _frame: FrameType | None) -> None:
    """A handler for SIGINT and SIGTERM in processes that drain by themselves: note it and interrupt what runs."""
    global _requested
    _requested = True
    raise KeyboardInterrupt


def obey() -> None:
    """Install the handler in the main thread of a process that has no supervisor of its own."""
    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGTERM, on_interrupt)
