"""Workers whose threads get no more to run: code in C that holds the interpreter's lock, a process that was stopped
(issue, "hangs in C code"; design 6, "Timeouts").

Such a worker cannot renew its leases, record a time-out or end itself, so its instances go on elsewhere when their leases
are over, and it would be lost to its cluster for good. It is killed and replaced, but never because of an ordinary task.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from durableflow.cluster.table import TABLE, Table
from durableflow.core.conf import get_settings

SIGN_EVERY: Final = 1.0
"""Seconds between two signs of a worker."""
PATIENCE: Final = 30.0
"""Seconds without a sign after which a worker is taken for hung, if two leases are not longer."""
LEASES: Final = 2
STOP_PATIENCE: Final = 15.0
"""The same in a stop, counted from its beginning and above the grace, sign or not: the worker should have ended itself."""
TURN: Final = 1.0
"""Seconds that one look counts at most: while the supervisor itself did not run, nobody did."""


def give_signs() -> None:
    """In a worker: give signs of life from now on."""
    threading.Thread(target=_sign, name="durableflow-signs", daemon=True).start()


def _sign() -> None:
    while True:
        TABLE.sign()
        time.sleep(SIGN_EVERY)


class Silence:
    """For how long the worker of one seat has given no sign, in time in which its supervisor ran."""

    def __init__(self, seat: int, table: Table = TABLE) -> None:
        self._seat, self._table = seat, table
        self._signs: int | None = None
        self._looked_at = time.monotonic()
        self._silent = self._stopping = 0.0

    def look(self, *, stopping: bool = False) -> str:
        """Why the worker must be killed; '' if it need not. To be asked about twice a second."""
        now = time.monotonic()
        passed, self._looked_at = min(now - self._looked_at, TURN), now
        signs = self._table.signs(self._seat)
        self._silent = self._silent + passed if signs is not None and signs == self._signs else 0.0
        self._stopping = self._stopping + passed if stopping and signs is not None else 0.0
        self._signs = signs
        settings = get_settings()
        if self._silent > max(PATIENCE, LEASES * settings.LEASE):
            return f"gives no sign of life for {self._silent:.0f} s while it executes workflows"
        if self._stopping > settings.SHUTDOWN_GRACE + STOP_PATIENCE:
            return f"still executes workflows {self._stopping:.0f} s after it was asked to stop"
        return ""
