"""What a worker of django-q2 runs for us. The dotted paths are stored in queue and schedule rows: they must stay."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from django.db import Error, connections

from durableflow.cluster.drains import DRAINS
from durableflow.cluster.table import TABLE
from durableflow.core.outages import passes
from durableflow.engine import heartbeat
from durableflow.engine.drain import drain, drain_for
from durableflow.engine.isolation import room
from durableflow.engine.watcher import watcher

logger = logging.getLogger("durableflow.cluster")

SLICE: Final = 1.0
"""Seconds after which a drain claims no more, so that ordinary tasks get the worker and a stop is not prolonged."""
FALLBACK_SLICE: Final = 30.0


def drain_task() -> None:
    """Execute what is due for one slice. Handed out by our broker; the body that runs when the slice ends is
    finished."""
    DRAINS.begun()
    if DRAINS.stopping():
        return
    heartbeat.silence()  # the pusher speaks for all
    if publish not in watcher().turns:
        watcher().turns.append(publish)
    TABLE.drains(True)
    try:
        executions = _waited_out(_slice)
    except KeyboardInterrupt:
        if not DRAINS.stopping():
            raise
        return  # what was begun is given back
    finally:
        publish()
        TABLE.drains(False)
    TABLE.executed(executions)
    if executions:
        DRAINS.fruitful()


def _slice() -> int:
    """One slice; threads with nothing to do look for work when the pusher calls."""
    return drain_for(SLICE, wanted=TABLE.called, delivered=True)


def publish() -> None:
    """Let the other processes of the cluster see how many instances this one executes."""
    TABLE.holds(watcher().held(), alone=room().occupied())


def run_due() -> None:
    """Execute what is due, for half a minute at most.

    For clusters with another broker: run each minute by the fallback, and fit to be enqueued by the function that
    ``DURABLEFLOW["DISPATCH"]`` names.
    """
    _waited_out(lambda: drain(seconds=FALLBACK_SLICE))


def _waited_out(drain: Callable[[], int]) -> int:
    """Drain; a database that is away or busy costs no more than a line in the log, since the next drain will follow."""
    try:
        return drain()
    except Error as error:
        if not passes(error):
            raise
        logger.warning("A drain ends early, the database is away or busy: %s", error)
        connections.close_all()
        return 0
