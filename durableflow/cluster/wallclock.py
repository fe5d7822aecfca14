"""The host's clock is set back or forward (design 4, "Time").

On SQLite the host's clock says what is due. Set forward, it ends leases early: a live worker renews its own before anybody
takes over (two looks). Set back, it would put off everything that was due already, and the leases of the dead, by as long as
it was set back; that is mended here. Timers are moments, and keep them. PostgreSQL has a clock of its own.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from durableflow.core import clock
from durableflow.core.conf import get_settings
from durableflow.core.transactions import write_transaction
from durableflow.engine.sql import INSTANCE, run
from durableflow.models.instance_fields import CLAIM_CLASSES

logger = logging.getLogger("durableflow.cluster")

STEP: Final = 2.0
"""Seconds. Less is the ordinary correction of a clock."""
LATE_COMMITS: Final = 10.0
"""Seconds for which instances still turn up that a transaction created before the clock was set back."""
_CLASSES: Final = f"claim_class IN ({', '.join(map(str, CLAIM_CLASSES))})"
# An instance that has not been executed may have a start_at, which is a timer.
_WAS_DUE: Final = "status = 'queued' AND hold = '' AND (claim_class % 2 = 0 OR wake_at <= created)"


class WallClock:
    """Compares the host's clock with the monotonic one, which nobody sets. For SQLite alone; belongs to one process."""

    def __init__(self) -> None:
        self._ahead = _ahead()
        self._edge: datetime | None = None  # what the clock showed before it was set back
        self._late_until = 0.0
        self._thorough = False

    def look(self, using: str) -> datetime | None:
        """Notice that the clock was set, say so, and mend what has to be. Gives what the clock showed before, when it has
        just been set back. Cheap as long as nothing has happened. Raises database errors; the next call then tries
        again."""
        before, self._ahead = self._ahead, _ahead()
        step, now = self._ahead - before, time.monotonic()
        if abs(step) >= STEP:
            _tell(step)
        if step <= -STEP:
            was = datetime.fromtimestamp(now + before, UTC)
            self._edge = was if self._edge is None else max(was, self._edge)
            self._late_until, self._thorough = now + LATE_COMMITS, True
        if self._edge is None:
            return None
        edge, thorough = self._edge, self._thorough
        mend(using, edge, thorough=thorough)
        self._thorough = False
        if now > self._late_until:
            self._edge = None
        return edge if thorough else None


def _ahead() -> float:
    return clock.host_now().timestamp() - time.monotonic()


def _tell(step: float) -> None:
    if step < 0:
        logger.warning(
            "The host's clock was set back by %.0f s. What was due goes on; timers keep the moments they were set for.",
            -step,
        )
    else:
        logger.warning(
            "The host's clock was set forward by %.0f s, or the machine has slept. Timers up to now are due.", step
        )


def mend(using: str, edge: datetime, *, thorough: bool = True) -> None:
    """Make due what was due before the clock was set back from ``edge``, and let no lease end later than it could have
    been claimed for. One transaction.

    Not ``thorough``: only instances that are queued. A waiting one that is woken for nothing finds its timer not yet
    over and waits again, so once is enough.
    """
    was_due = f"({_WAS_DUE} OR status = 'waiting')" if thorough else _WAS_DUE
    with write_transaction(using):
        now = clock.host_now()
        text = clock.sqlite_text(now)
        run(
            using,
            f"""UPDATE {INSTANCE} SET wake_at = %s WHERE {_CLASSES} AND wake_at > %s AND wake_at <= %s
                AND lease_token IS NULL AND {was_due}""",  # noqa: S608 - names of ours
            [text, text, clock.sqlite_text(edge)],
        )
        if thorough:
            end = clock.sqlite_text(now + timedelta(seconds=float(get_settings().LEASE)))
            run(
                using,
                f"UPDATE {INSTANCE} SET wake_at = %s WHERE lease_token IS NOT NULL AND {_CLASSES} AND wake_at > %s",  # noqa: S608
                [end, end],
            )
