"""Running alone: an instance whose worker was lost has its process for itself until it has checkpointed (design 6,
"Interruptions"). If it is the one that kills its workers, it shall take nobody along."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from durableflow.core import clock, dispatch
from durableflow.engine import endings, shutdown
from durableflow.engine.lease import Claim, Lease, owner
from durableflow.engine.patience import patient
from durableflow.engine.sql import INSTANCE, is_postgres, run
from durableflow.engine.unwind import LeaseLost

LOOK: Final = 0.1


class Room:
    """The executions of a process, and which of them is to be alone."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._state = threading.Condition()
        self._running: dict[int, int] = {}
        self._alone: int | None = None

    @contextmanager
    def entered(self, claim: Claim) -> Iterator[bool]:
        """Whether the claim may run here, for as long as the block does. One that was interrupted waits until the others,
        which leave at their next durable call, are gone; while it is there nobody else gets in."""
        token = claim.lease.token
        try:
            with self._state:
                admitted = self._alone is None or self._is_mine(self._alone)
                if admitted:
                    self._running[token] = threading.get_ident()
                if admitted and claim.interruptions and self._alone is None:
                    self._alone = token
                    while self._others() and not (shutdown.requested() or claim.lease.lost):
                        self._state.wait(LOOK)
            yield admitted
        finally:
            self.left(claim.lease)

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


def hand_back(claim: Claim, *, uncharged: bool = True) -> None:
    """Give an instance back of which nothing was executed. ``uncharged``: the attempt that the lost worker was in, if
    there was one, is still to be charged, by whoever takes over next."""
    if uncharged and claim.lost_token is not None:
        _restore(claim.lease, claim.lost_token)
    else:
        endings.give_back(claim.lease)
    dispatch.hint(claim.lease.using)


@patient
def _restore(lease: Lease, lost_token: int) -> None:
    """Undo a takeover: the row is an expired lease again, for somebody else to take over."""
    now = clock.postgres("clock") if is_postgres(lease.using) else "%s"
    values = [] if is_postgres(lease.using) else [clock.sqlite_text(clock.host_now())]
    rows = run(
        lease.using,
        f"""UPDATE {INSTANCE} SET lease_token = %s, owner = %s, suspect = true, wake_at = {now},
                interruptions = interruptions - 1
            WHERE id = %s AND lease_token = %s RETURNING id""",
        [lost_token, owner(), *values, lease.pk, lease.token],
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
