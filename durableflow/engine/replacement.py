"""Whether this process must be replaced: threads that do not end pile up in it (design 6, "Timeouts"; case OPS-08).

It takes no new work then, its instances are given back at their next durable call, bodies in flight get SHUTDOWN_GRACE.
Only a worker of a cluster, whose supervisor starts another one, ends itself.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Final, NoReturn

logger = logging.getLogger("durableflow.engine")
STUCK: Final = 70
"""Exit status of a process that ended itself because of code in it that does not end."""
OUTLASTED: Final = 71
"""Exit status of a process that was asked to stop, with a body that outlasted the grace."""

_lock = threading.Lock()
_causes: dict[str, str] = {}
_allowed: int | None = None
_pid = os.getpid()


def allow() -> None:
    """This process may end itself at any line: somebody replaces it. To be called in that process, after the fork."""
    global _allowed
    _allowed = os.getpid()


def may_exit() -> bool:
    """Whether ``allow()`` was called in this process."""
    return _allowed == os.getpid()


def want(cause: str, reason: str) -> None:
    """Have the process replaced, for the ``reason`` that the log gets once."""
    with _lock:
        known = cause in _mine()
        _mine()[cause] = reason
    if not known:
        does = "is replaced" if may_exit() else "takes no new work until that is over"
        logger.error("This process (%d) %s: %s", os.getpid(), does, reason)


def over(cause: str) -> None:
    """The cause is gone. A process that may end itself ends all the same: it is not what it was."""
    if not may_exit():
        with _lock:
            _mine().pop(cause, None)


def wanted() -> str:
    """Why this process must be replaced; '' if it need not."""
    return next(iter(_mine().values()), "") if _causes else ""


def end(status: int, why: str) -> NoReturn:
    """End the process now, without waiting for its threads; what it leaves is taken over."""
    try:
        sys.stderr.write(f"durableflow ends this process: {why}\n")
        sys.stderr.flush()
    finally:
        os._exit(status)


def _mine() -> dict[str, str]:
    """The causes, without those of a parent."""
    global _pid
    if _pid != os.getpid():
        _pid = os.getpid()
        _causes.clear()
    return _causes
