"""The last net: the main process ends a cluster that stands still, so that a service manager starts it anew (design 4,
"a watchdog exits non-zero when claimable work is over 60 s old while a local worker is idle")."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final

from django.db import Error, connections

from durableflow.cluster.table import TABLE
from durableflow.core import clock
from durableflow.core.outages import passes
from durableflow.core.transactions import write_transaction
from durableflow.engine.look import next_due
from durableflow.engine.sql import INSTANCE, is_postgres, run
from durableflow.models.instance_fields import CLAIM_CLASSES

logger = logging.getLogger("durableflow.cluster")

OVERDUE: Final = 60.0
"""Seconds that claimable work may wait while a worker has nothing to do."""
SILENT: Final = 60.0
"""Seconds that the pusher, or the sentinel, may give no sign of life while the database answers."""
IDLE: Final = 5.0
"""Seconds after which a worker that waits for a task counts as idle."""
LOOK: Final = 5.0
"""Seconds between two looks."""
SQLITE_PATIENCE: Final = 500
"""Milliseconds for which a look waits for SQLite's write lock."""
LOOKS: Final = 3
"""Looks in a row that must find the same. One may come after the whole machine has slept, or the database was away."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One look. ``overdue``: seconds for which the oldest work that nobody holds has been due, 0 for none, None where
    the database does not answer, or cannot be written to, ``because`` of what it says; ``idle``: workers that have
    nothing to do; ``silent`` and ``unguarded``: seconds since the last signs of life of the pusher and of the sentinel."""

    overdue: float | None
    idle: int
    silent: float
    unguarded: float = 0.0
    because: str = ""


def complaint(seen: Observed) -> str:
    """What is wrong by this one look; '' if nothing is."""
    if seen.overdue is None:
        return ""  # nothing can be expected of anybody
    if seen.silent > SILENT:
        return f"the pusher has given no sign of life for {seen.silent:.0f} s although the database answers"
    if seen.unguarded > SILENT:
        return f"the sentinel has given no sign of life for {seen.unguarded:.0f} s although the database answers"
    if seen.overdue > OVERDUE and seen.idle:
        workers = "1 worker is" if seen.idle == 1 else f"{seen.idle} workers are"
        return f"work has been due for {seen.overdue:.0f} s and is not claimed although {workers} idle"
    return ""


class Watchdog:
    """Counts the looks that found something wrong."""

    def __init__(self) -> None:
        self._looks = 0

    def look(self, seen: Observed) -> str:
        """The reason to end the cluster; '' to go on."""
        said = complaint(seen)
        self._looks = self._looks + 1 if said else 0
        return said if self._looks >= LOOKS else ""


def claimable_since(using: str) -> float:
    """Seconds for which the oldest work that nobody holds has been due; 0 if there is none.

    A row that a transaction has locked is left out: no cluster could claim it. On PostgreSQL only rows that have been due
    for ``OVERDUE`` are looked at, because the look locks them for its moment.
    """
    if not is_postgres(using):
        due = next_due(using)
        return 0.0 if due is None or due.seconds > -OVERDUE else -due.seconds
    rows = run(
        using,
        f"""SELECT COALESCE(max(extract(epoch FROM {clock.postgres("clock")} - x.wake_at)), 0)::float8
            FROM generate_series(0, {CLAIM_CLASSES[-1]}) AS k,
            LATERAL (SELECT wake_at FROM {INSTANCE} WHERE claim_class = k
                     AND wake_at < {clock.postgres("statement")} - make_interval(secs => %s::float8)
                     ORDER BY wake_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS x""",  # noqa: S608 - names of ours
        [OVERDUE],
    )
    return float(rows[0][0])


def try_to_write(using: str) -> None:
    """On SQLite one transaction locks all, and everybody waits for it, a pusher too: raise the error of a database that is
    busy."""
    if not is_postgres(using):
        run(using, f"PRAGMA busy_timeout = {SQLITE_PATIENCE}")
        with write_transaction(using):
            pass


def observe(using: str) -> Observed:
    """Look at the database, and at the table of workers."""
    overdue: float | None
    because, silent, unguarded = "", TABLE.silent(), TABLE.unguarded()
    try:
        overdue = claimable_since(using)
        if overdue or max(silent, unguarded) > SILENT:
            try_to_write(using)
    except Error as error:
        if not passes(error):
            raise
        overdue, because = None, " ".join(str(error).split())
    finally:
        connections.close_all()  # a look in five seconds is not worth a connection
    return Observed(overdue=overdue, idle=TABLE.idle_workers(IDLE), silent=silent, unguarded=unguarded, because=because)


class Waiting:
    """Tells once of a database that keeps everybody waiting: nobody is to blame, but somebody should know."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._told = False

    def look(self, seen: Observed) -> None:
        """Note what is observed."""
        if seen.overdue is not None:
            if self._told:
                logger.info("The database can be worked with again.")
            self._since, self._told = None, False
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= OVERDUE and not self._told:
            self._told = True
            logger.warning(
                "For %.0f s the cluster has waited for the database (%s). It goes on by itself when that is over. Where the "
                "database is locked, some transaction holds it: see which program keeps one open for so long.",
                now - self._since,
                seen.because,
            )


class Guard:
    """Looks each ``LOOK`` seconds, in a thread of the main process, which must never wait for a database."""

    def __init__(self, using: str, alarm: Callable[[str], None]) -> None:
        self._using = using
        self._alarm = alarm
        self._over = Event()

    def start(self) -> None:
        """Begin. Not before the cluster has forked."""
        Thread(target=self._run, name="durableflow-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        dog, waiting, failing = Watchdog(), Waiting(), False
        while not self._over.wait(LOOK):
            try:
                seen = observe(self._using)
                reason = dog.look(seen)
                waiting.look(seen)
                failing = False
            except Exception as error:
                level = logging.DEBUG if failing else logging.WARNING  # once until it can look again
                failing = True
                logger.log(level, "The watchdog cannot look: %s", error)
                continue
            if reason and not self._over.is_set():
                self._alarm(reason)
                return
