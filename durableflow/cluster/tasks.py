"""What a worker of django-q2 runs for us. The dotted paths are stored in queue and schedule rows: they must stay."""

from __future__ import annotations

from typing import Final

from durableflow.cluster.drains import DRAINS
from durableflow.engine.drain import drain

SLICE: Final = 1.0
"""Seconds after which a drain claims no more, so that ordinary tasks get the worker and a stop is not prolonged."""
FALLBACK_SLICE: Final = 30.0


def drain_task() -> None:
    """Execute what is due for one slice. Handed out by our broker; the body that runs when the slice ends is
    finished."""
    DRAINS.begun()
    if not DRAINS.stopping() and drain(seconds=SLICE):
        DRAINS.fruitful()


def run_due() -> None:
    """Execute what is due, for half a minute at most.

    For clusters with another broker: run each minute by the fallback, and fit to be enqueued by the function that
    ``DURABLEFLOW["DISPATCH"]`` names.
    """
    drain(seconds=FALLBACK_SLICE)
