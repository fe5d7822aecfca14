"""What a worker of django-q2 runs for us. The dotted paths are stored in queue and schedule rows: they must stay."""

from __future__ import annotations

import logging
from typing import Final

from django.db import Error, connections

from durableflow.cluster.drains import DRAINS
from durableflow.core.outages import passes
from durableflow.engine.drain import drain

logger = logging.getLogger("durableflow.cluster")

SLICE: Final = 1.0
"""Seconds after which a drain claims no more, so that ordinary tasks get the worker and a stop is not prolonged."""
FALLBACK_SLICE: Final = 30.0


def drain_task() -> None:
    """Execute what is due for one slice. Handed out by our broker; the body that runs when the slice ends is
    finished."""
    DRAINS.begun()
    if not DRAINS.stopping() and _drain(SLICE):
        DRAINS.fruitful()


def run_due() -> None:
    """Execute what is due, for half a minute at most.

    For clusters with another broker: run each minute by the fallback, and fit to be enqueued by the function that
    ``DURABLEFLOW["DISPATCH"]`` names.
    """
    _drain(FALLBACK_SLICE)


def _drain(seconds: float) -> int:
    """Drain; a database that is away or busy costs no more than a line in the log, since the next drain will follow."""
    try:
        return drain(seconds=seconds)
    except Error as error:
        if not passes(error):
            raise
        logger.warning("A drain ends early, the database is away or busy: %s", error)
        connections.close_all()
        return 0
