"""Signs of life: who executes workflows tells so each ten seconds, so that silence can be noticed (case OPS-14).

Nothing is decided by them but what the health check says. They are written beside the work, never in its transactions,
and whatever goes wrong with them costs a line in the log.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import metadata
from typing import Final, Literal

from django.db import connections

from durableflow.core import clock
from durableflow.engine.sql import ASYNC_COMMIT, is_postgres, run
from durableflow.models import Heartbeat

logger = logging.getLogger("durableflow.engine")

INTERVAL: Final = 10.0
"""Seconds between two signs of one process group."""
KEPT: Final = timedelta(days=1)
"""How long a group that is no longer seen is remembered."""
SQLITE_PATIENCE: Final = 100
"""Milliseconds for which a sign waits for SQLite's write lock; the next one comes in ten seconds."""
LAST_TRIES: Final = 5
"""So often the last sign is tried: no other one follows."""
SWEEP_EVERY: Final = 360
"""Every so manieth sign of a process, on average, deletes what is no longer remembered: about once an hour."""

_TABLE: Final = Heartbeat._meta.db_table
_RANDOM: Final = random.SystemRandom()
_COLUMNS: Final = "key, kind, host, pid, workers, busy, stopping, version, started, seen, last_claim"
_KEPT_UP: Final = ("kind", "host", "pid", "workers", "busy", "stopping", "version", "seen")


@dataclass(frozen=True, kw_only=True)
class Beat:
    """One sign of a process group.

    ``key``: from ``new_key()``, the same in all signs of the group. ``workers``: executions that it can run at the same
    time; ``busy``: those that run now. ``claimed_ago``: seconds since its last claim by its own monotonic clock; None:
    none since the last sign. ``pid``: the process to tell people of, 0 for this one. ``stopping``: this is the last
    sign, it ends in good order and is no longer counted.
    """

    key: int
    kind: Literal["cluster", "drain"]
    workers: int
    busy: int
    claimed_ago: float | None = None
    pid: int = 0
    stopping: bool = False


def new_key() -> int:
    """A random name for a process group. Made once per group, before it forks."""
    return _RANDOM.getrandbits(62)


def beat(using: str, told: Beat) -> bool:
    """Store a sign; False if it could not be written, which is logged. Never raises.

    One statement of its own, with an asynchronous commit on PostgreSQL; on SQLite it gives up after a tenth of a
    second. Not inside ``atomic()``: there it does nothing.
    """
    connection = connections[using]
    if connection.in_atomic_block:
        return False
    try:
        with _impatient(using):
            _write(using, told)
            if _RANDOM.randrange(SWEEP_EVERY) == 0:
                _sweep(using)
    except Exception as error:
        logger.info("A sign of life could not be stored: %s", error)
        connection.close_if_unusable_or_obsolete()
        return False
    return True


def _write(using: str, told: Beat) -> None:
    group = (told.key, told.kind, socket.gethostname()[:255], str(told.pid or os.getpid()))
    state = (told.workers, told.busy, told.stopping, version())
    if is_postgres(using):
        now = clock.postgres("statement")  # one moment for all three
        times = f"{now}, {now}, {now} - make_interval(secs => %s::float8)"  # NULL where the number is
        moments: tuple[object, ...] = (told.claimed_ago,)
        commit = f"RETURNING {ASYNC_COMMIT}"
    else:
        at = clock.host_now()
        claim = None if told.claimed_ago is None else clock.sqlite_text(at - timedelta(seconds=told.claimed_ago))
        times, moments, commit = "%s, %s, %s", (clock.sqlite_text(at), clock.sqlite_text(at), claim), ""
    keep = ", ".join(f"{name} = excluded.{name}" for name in _KEPT_UP)
    run(
        using,
        f"""INSERT INTO {_TABLE} AS h ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, {times})
            ON CONFLICT (key) DO UPDATE SET {keep}, last_claim = COALESCE(excluded.last_claim, h.last_claim) {commit}""",
        [*group, *state, *moments],
    )


def _sweep(using: str) -> None:
    """Forget groups that nobody has seen for a day."""
    if is_postgres(using):
        old = f"{clock.postgres('statement')} - make_interval(secs => %s::float8)"
        run(using, f"DELETE FROM {_TABLE} WHERE seen < {old}", [KEPT.total_seconds()])
    else:
        run(using, f"DELETE FROM {_TABLE} WHERE seen < %s", [clock.sqlite_text(clock.host_now() - KEPT)])


@contextmanager
def _impatient(using: str) -> Iterator[None]:
    """On SQLite, do not stand in the queue of writers: the caller has work to do."""
    if is_postgres(using):
        yield
        return
    ((before,),) = run(using, "PRAGMA busy_timeout")
    run(using, f"PRAGMA busy_timeout = {SQLITE_PATIENCE}")
    try:
        yield
    finally:
        run(using, f"PRAGMA busy_timeout = {int(before)}")


@cache
def version() -> str:
    """The installed version of the package, '' where it was not installed as one."""
    try:
        return metadata.version("django-durableflow")[:64]
    except metadata.PackageNotFoundError:
        return ""


class _Own:
    """The signs of a process that drains on its own account."""

    def __init__(self) -> None:
        self.key = new_key()
        self.next = float("-inf")
        self.claimed: float | None = None
        self.lock = threading.Lock()


_silent = False
_own = _Own()


def _another() -> None:
    """A process forked from another is another group."""
    global _own
    _own = _Own()


os.register_at_fork(after_in_child=_another)


def silence() -> None:
    """This process, and what it forks, is spoken for by a cluster's signs: ``sign`` does nothing from now on."""
    global _silent
    _silent = True


def leave(using: str, *, workers: int) -> None:
    """For a process that has drained on its own account and ends in good order: it is no longer counted as live, if it ever
    told of itself. Signs that come at once behind it are dropped; a later drain tells of itself again. Never raises."""
    own, now = _own, time.monotonic()
    with own.lock:
        if _silent or own.next == float("-inf"):
            return
        own.next = now + INTERVAL
        ago = None if own.claimed is None else now - own.claimed
        last = Beat(key=own.key, kind="drain", workers=workers, busy=0, claimed_ago=ago, stopping=True)
        any(beat(using, last) for _ in range(LAST_TRIES))


def sign(using: str, *, workers: int, busy: int, claimed: bool = False) -> None:
    """For a process that drains on its own account: store a sign if the last one is ten seconds old.

    ``claimed``: whether something was claimed just now. Safe to call from any thread, as often as one likes; never
    raises, and never waits for another thread's sign.
    """
    own, now = _own, time.monotonic()
    if claimed:
        own.claimed = now
    if _silent or now < own.next or not own.lock.acquire(blocking=False):
        return
    try:
        if now >= own.next:
            own.next = now + INTERVAL
            ago = None if own.claimed is None else now - own.claimed
            beat(using, Beat(key=own.key, kind="drain", workers=workers, busy=busy, claimed_ago=ago))
    finally:
        own.lock.release()
