"""Running alone: an instance whose worker was lost has its process for itself until it has checkpointed (design 6,
"Interruptions"). If it is the one that kills its workers, it shall take nobody along."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from durableflow.core import clock, dispatch
from durableflow.engine import endings, shutdown
from durableflow.engine.lease import Claim, Lease, owner
from durableflow.engine.patience import patient
from durableflow.engine.sql import INSTANCE, is_postgres, run
from durableflow.engine.unwind import LeaseLost

LOOK: Final = 0.1
PAUSE: Final = 0.5
"""Seconds for which an instance that finds its process busy is left to processes that are not."""
INSIST_AFTER: Final = 3.0
"""Seconds after which it makes the process that it finds busy go idle."""
FORGOTTEN_AFTER: Final = 60.0


class Room:
    """The executions of a process, and which of them is to be alone."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._state = threading.Condition()
        self._running: dict[int, int] = {}
        self._alone: int | None = None
        self._turned_away: dict[tuple[int, int | None], float] = {}

    @contextmanager
    def entered(self, claim: Claim) -> Iterator[bool]:
        """Whether the claim may run here, for as long as the block does. While one that was interrupted is there, nobody
        else gets in. It does not get into a process that is busy: another one may have nothing to do, and this one's free
        threads would have to wait for the longest body. But if none has had room for it for INSIST_AFTER seconds, it waits
        here until the others, which leave at their next durable call, are gone."""
        token = claim.lease.token
        try:
            with self._state:
                admitted = self._alone is None or self._is_mine(self._alone) or claim.lease.pausing
                alone = claim.interruptions and not claim.lease.pausing  # of one that is to be paused nothing runs
                if admitted and alone and self._others() and not self._insists(claim):
                    admitted = False
                if admitted:
                    self._running[token] = threading.get_ident()
                if admitted and alone and self._alone is None:
                    self._alone = token
                    while self._others() and not (shutdown.requested() or claim.lease.lost):
                        self._state.wait(LOOK)
            yield admitted
        finally:
            self.left(claim.lease)

    def _insists(self, claim: Claim) -> bool:
        """Whether it was turned away here for so long that this process has to make room."""
        now = time.monotonic()
        known = {key: first for key, first in self._turned_away.items() if now - first < FORGOTTEN_AFTER}
        key = claim.lease.pk, claim.lost_token
        insists = now - known.setdefault(key, now) >= INSIST_AFTER
        if insists:
            del known[key]
        self._turned_away = known
        return insists

    def left(self, lease: Lease) -> None:
        """It runs no longer, or its thread is given up."""
        with self._state:
            self._running.pop(lease.token, None)
            self._state.notify_all()
        self.calm(lease)

    def calm(self, lease: Lease) -> None:
        """It has made progress: others may run beside it."""
        if self._alone == lease.token:
            with self._state:
                self._alone = None

    def occupied(self) -> bool:
        """Whether an instance is to be alone: then the process claims nothing."""
        return self._alone is not None

    def unwanted(self, lease: Lease) -> bool:
        """Whether this instance must leave because another one is to be alone."""
        alone = self._alone
        return alone is not None and alone != lease.token and not self._is_mine(alone)

    def _is_mine(self, token: int) -> bool:
        """Whether it runs in this very thread, further out: a body may drain."""
        return self._running.get(token) == threading.get_ident()

    def _others(self) -> bool:
        return any(thread != threading.get_ident() for thread in self._running.values())


def turn_away(claim: Claim) -> None:
    """There is no room for it here."""
    hand_back(
        claim, delay=PAUSE if claim.interruptions else 0.0
    )  # another thread of this process would claim it at once


def hand_back(claim: Claim, *, uncharged: bool = True, delay: float = 0.0, count: bool = False) -> None:
    """Give an instance back of which nothing was executed, due after ``delay`` seconds. ``uncharged``: the attempt that the
    lost worker was in, if there was one, is still to be charged, by whoever takes over next. ``count``: this may not go on
    for ever."""
    if uncharged and claim.lost_token is not None and claim.counted:
        _restore(claim.lease, claim, claim.lost_token, delay, count)
    else:
        lost = claim.lost_mark if uncharged else None
        endings.give_back(claim.lease, timedelta(seconds=delay), count=count, lost=lost)
    dispatch.hint(claim.lease.using)


@patient
def _restore(lease: Lease, claim: Claim, lost_token: int, delay: float, count: bool) -> None:
    """Undo a takeover: the row is an expired lease again, for somebody else to take over, with the counts that it had."""
    values: list[float | str]
    interruptions, give_backs = (0, -1) if claim.by_stop else (-1, 0)
    if is_postgres(lease.using):
        now, values = f"{clock.postgres('clock')} + make_interval(secs => %s)", [delay]
    else:
        now, values = "%s", [clock.sqlite_text(clock.host_now() + timedelta(seconds=delay))]
    rows = run(
        lease.using,
        f"""UPDATE {INSTANCE} SET lease_token = %s, owner = %s, suspect = true, wake_at = {now},
                interruptions = interruptions + %s, give_backs = give_backs + %s
            WHERE id = %s AND lease_token = %s RETURNING id""",
        [
            lost_token,
            -owner() if claim.by_stop else owner(),
            *values,
            interruptions,
            give_backs + count,
            lease.pk,
            lease.token,
        ],
    )
    if not rows:
        raise LeaseLost(lease.label)


_room = Room()
_making = threading.Lock()


def room() -> Room:
    """This process's room; a new one after a fork."""
    global _room
    if _room.pid != os.getpid():
        with _making:
            if _room.pid != os.getpid():
                _room = Room()
    return _room
