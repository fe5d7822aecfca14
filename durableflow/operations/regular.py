"""What is done each hour: the purge, and a look at schedules that a wrong clock has put off. Chores of the engine (design 9)."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Final

from durableflow.engine import chores, replanning
from durableflow.operations.leftovers import leftovers
from durableflow.operations.purge import Purge

logger = logging.getLogger("durableflow.operations")

EVERY: Final = timedelta(hours=1)
ROWS_AT_ONCE: Final = 100
"""Instances of one batch: due instances wait for its end."""
RECORDS_AT_ONCE: Final = 5_000
"""Step records of one batch."""
LONGEST: Final = 600.0
"""Seconds after which a pass that another process has gone on with is begun anew."""

_passes: dict[str, tuple[float, Purge]] = {}


def connect() -> None:
    """Called when the app is ready; no query."""
    chores.register("purge", EVERY, one_batch)
    replanning.connect()


def one_batch(using: str) -> bool:
    """The next batch of this process's pass; whether more is left."""
    now = time.monotonic()
    began, work = _passes.get(using, (float("-inf"), None))
    if work is None or now - began > LONGEST:
        began, work = now, Purge(using, size=ROWS_AT_ONCE, records=RECORDS_AT_ONCE)
    _passes.pop(using, None)  # whatever is raised ends the pass
    if work.batch():
        _passes[using] = (began, work)
        return True
    leftovers(using)
    if work.report.total or work.report.protected:
        logger.info(
            "Purged %d instances whose retention was over; %d are protected by rows of the project.",
            work.report.total,
            sum(work.report.protected.values()),
        )
    return False


__all__ = ["connect", "one_batch"]
