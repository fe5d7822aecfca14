"""What the body of a step must not take along into the engine: another process, another recursion limit, a process without
memory (cases OPS-07, OPS-08)."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from functools import cache
from typing import NoReturn, TypeVar

from durableflow.engine import replacement

logger = logging.getLogger("durableflow.engine")
T = TypeVar("T")


def bounded(body: Callable[[], T], limit: int, label: Callable[[], str]) -> Callable[[], T]:
    """``body``, such that only the process that began it comes back from it, with the recursion limit ``limit``. A worker
    in which it ran out of memory is replaced."""
    process = os.getpid()

    def run() -> T:
        try:
            value = body()
        except BaseException as error:
            if os.getpid() != process:
                _end_child(label, error)
            if isinstance(error, MemoryError) and replacement.may_exit():
                # Its threads may no longer start, its locks no longer be made: others' instances shall not find out.
                replacement.want("memory", f"{label()} ran out of memory.")
            raise
        finally:
            # Here and at once: with a limit just above the depth of the body nothing that is called next would run.
            sys.setrecursionlimit(limit)
        if os.getpid() != process:
            _end_child(label, None)
        return value

    return run


async def bounded_await(awaitable: Awaitable[T], label: Callable[[], str]) -> T:
    """The same for a body that goes on in an event loop."""
    process = os.getpid()
    try:
        value = await awaitable
    except BaseException as error:
        if os.getpid() != process:
            _end_child(label, error)
        if isinstance(error, MemoryError) and replacement.may_exit():
            replacement.want("memory", f"{label()} ran out of memory.")
        raise
    if os.getpid() != process:
        _end_child(label, None)
    return value


@cache
def recursion_limit() -> int:
    """What it was before the first body of this process: not what another thread's body has made of it."""
    return sys.getrecursionlimit()


def _end_child(label: Callable[[], str], error: BaseException | None) -> NoReturn:
    """End a child that the body has forked, before it uses the parent's connections, lease and locks as if they were its
    own. What the parent had not yet flushed stays the parent's."""
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        status = 1
    try:
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error)
        logger.warning(
            "The body of %s forked, and its child %d came back from it; the child ends here with status %d. Let such a "
            "child end by os._exit(), or use subprocess.",
            label(),
            os.getpid(),
            status & 0xFF,
        )
    finally:
        os._exit(status & 0xFF)
