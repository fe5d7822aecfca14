"""The host's clock is set back or forward (design 4, "Time").

On SQLite the host's clock says what is due. Set forward, it ends leases early: a live worker renews its own before anybody
takes over (two looks). Set back, it would put off everything that was due already, and the leases of the dead, by as long as
it was set back; that is mended here. Timers are moments, and keep them. PostgreSQL has a clock of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from durableflow.core import clock
from durableflow.core.conf import get_settings
from durableflow.core.transactions import write_transaction
from durableflow.engine.sql import INSTANCE, run
from durableflow.models.instance_fields import CLAIM_CLASSES

logger = logging.getLogger("durableflow.cluster")


def _among(classes: Iterable[int]) -> str:
    return f"claim_class IN ({', '.join(map(str, classes))})"


STEP: Final = 2.0
"""Seconds. Less is the ordinary correction of a clock."""
NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
LONGEST_LEASE: Final = 3600.0
"""What the setting allows: another cluster may have longer leases than this one."""
LATE_COMMITS: Final = 10.0
"""Seconds for which instances still turn up that a transaction created before the clock was set back."""
# What has not been executed yet has an odd class, and may have a start_at, which is a timer.
_NEW: Final = _among(number for number in CLAIM_CLASSES if number % 2)
_RESUMED: Final = _among(number for number in CLAIM_CLASSES if number % 2 == 0)
_NEW_AND_DUE: Final = f"{_NEW} AND status = 'queued' AND hold = '' AND wake_at <= created"
_WAS_DUE: Final = (
    f"{_RESUMED} AND (status = 'waiting' OR status = 'rolling_back' AND lease_token IS NULL "
    "OR status = 'queued' AND hold = '')"
)


class WallClock:
    """Compares the host's clock with the monotonic one, which nobody sets. For SQLite alone; belongs to one process."""

    def __init__(self) -> None:
        self._ahead = _ahead()
        self._edge: datetime | None = None  # what the clock showed before it was set back
        self._late_until = 0.0
        self._mended = False  # it may have been set back while nobody looked

    def look(self, using: str, also: Callable[[datetime], None]) -> None:
        """Notice that the clock was set, say so, and mend what has to be. Cheap as long as nothing has happened.

        ``also``: mends what else was due when the clock is seen to have been set back; it gets what the clock showed
        before. Raises database errors, also those of ``also``; the next call then does all of it again.
        """
        before, self._ahead = self._ahead, _ahead()
        step, now = self._ahead - before, time.monotonic()
        if abs(step) >= STEP:
            _tell(step)
        if step <= -STEP:
            was = datetime.fromtimestamp(now + before, UTC)
            self._edge = was if self._edge is None else max(was, self._edge)
            self._late_until, self._mended = now + LATE_COMMITS, False
        edge, mended = self._edge, self._mended
        if edge is None and mended:
            return
        mend(using, edge, late=mended)
        if edge is not None and not mended:
            also(edge)
        self._mended = True
        if now > self._late_until:
            self._edge = None


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


def mend(using: str, edge: datetime | None, *, late: bool = False) -> None:
    """Make due what was due before the clock was set back from ``edge``, and let no lease end later than it could have
    been claimed for. One transaction.

    A waiting instance that is woken for nothing finds its timer not yet over and waits again; so that is done once.
    ``late``: again, for what was created by a transaction that committed late. ``edge`` None: nobody has seen the clock
    being set; then instances that wait, or were executed before, are left alone, because only their timers could tell, and
    so are leases that might be of another cluster.
    """
    with write_transaction(using):
        now = clock.host_now()
        text, until = clock.sqlite_text(now), clock.sqlite_text(edge or NEVER)
        wake = f"UPDATE {INSTANCE} SET wake_at = %s WHERE wake_at > %s AND wake_at <= %s AND "  # noqa: S608
        run(using, wake + _NEW_AND_DUE, [text, text, until])
        if late:
            return
        if edge is not None:
            run(using, wake + _WAS_DUE, [text, text, until])
        lease = float(get_settings().LEASE)
        longest = LONGEST_LEASE if edge is None else lease
        run(
            using,
            f"UPDATE {INSTANCE} SET wake_at = %s WHERE lease_token IS NOT NULL AND wake_at > %s",  # noqa: S608
            [clock.sqlite_text(now + timedelta(seconds=seconds)) for seconds in (lease, longest)],
        )
