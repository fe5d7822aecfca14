"""Whether this process was asked to stop by a real signal; an exception of the same class that user code raises means
nothing (case RET-13)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_requested = False
_at_once = False
_sources: list[Callable[[], bool]] = []


def requested() -> bool:
    """Whether a stop was asked for."""
    if _requested:
        return True
    for source in _sources:  # a loop: asked at each durable call, and any() would make a generator each time
        if source():
            return True
    return False


def heed(source: Callable[[], bool]) -> None:
    """Take ``source()`` for a sign that this process shall stop, whenever it says True. Cheap: asked at each durable
    call. Adding it twice has no effect."""
    if source not in _sources:
        _sources.append(source)


@contextmanager
def heeded() -> Iterator[None]:
    """Notice Ctrl-C while the block runs, where nobody else has said what SIGINT means.

    Python's own handler only raises KeyboardInterrupt, which cannot be told from one that a body raises.
    """
    global _requested
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _on_interrupt)
    whole = False
    try:
        yield
        whole = True
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupted, _requested = _requested, False
        if whole and interrupted:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Where Ctrl-C takes effect at once. Elsewhere inside ``heeded()`` it is put off until the next one of these blocks or
    the end: between a claim and its execution nobody would give the instance back. A second Ctrl-C is never put off."""
    global _at_once
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, _at_once = _at_once, True
    try:
        if _requested:
            raise KeyboardInterrupt
        yield
    finally:
        _at_once = before


def _on_interrupt(_number: int, _frame: FrameType | None) -> None:
    global _requested
    again, _requested = _requested, True
    if again or _at_once:
        raise KeyboardInterrupt
