"""Completions that do not wait for the disk, because the claim that follows does (design 4 "SQL path", 11; PostgreSQL).

A completion is no checkpoint: ``run`` has returned, and what it returned follows from checkpoints that are on the disk. Should
the server crash before the completion is, the instance still has its lease; that ends, and ``run`` returns once more
without running a body. A claim's COMMIT takes all that was committed before it to the disk along with itself. Where nothing is
left to claim, ``flush`` does it: so nobody sees a completion for longer than a look takes before it is there to stay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import Error

from durableflow.engine.sql import is_postgres, run

logger = logging.getLogger("durableflow.engine")
_FLUSH: Final = "SELECT pg_logical_emit_message(true, 'durableflow', '')"
"""The cheapest transaction with something to write, so that its COMMIT waits for the disk; nothing reads it."""


class _State(threading.local):
    allowed = False
    owed = False


_state = _State()


@contextmanager
def flushed_later(using: str) -> Iterator[None]:
    """Inside the block this thread's completions may be on the disk a little later than they are seen: it looks for due work
    after each. At the end of the block they are."""
    _state.allowed = is_postgres(using)
    try:
        yield
    finally:
        _state.allowed = False
        flush(using)


def allowed() -> bool:
    """Whether a completion need not wait; if it does not, it is owed from here on."""
    _state.owed = _state.owed or _state.allowed
    return _state.allowed


def paid() -> None:
    """This thread has made a COMMIT that waited."""
    _state.owed = False


def flush(using: str) -> None:
    """Take to the disk what is owed. A database that fails meanwhile is no matter of the completion: see above."""
    if not _state.owed:
        return
    _state.owed = False
    try:
        run(using, _FLUSH)
    except Error as error:
        logger.debug("A completion may not be on the disk yet: %s", error)
