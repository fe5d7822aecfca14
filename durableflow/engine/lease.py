"""What an executor holds while it runs an instance (design 4)."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from durableflow.core import clock
from durableflow.core.conf import get_settings
from durableflow.engine.unwind import LeaseLost

_RANDOM: Final = random.SystemRandom()
_owner: tuple[int, int] | None = None


def _clock() -> Callable[[], float]:
    # Python's own stands still while the machine sleeps, on Linux and macOS: a lease would look fresh after a night.
    number = getattr(time, "CLOCK_BOOTTIME", None)
    if number is None and sys.platform == "darwin":
        number = time.CLOCK_MONOTONIC
    if number is None:
        return time.monotonic
    return lambda: time.clock_gettime(number)


elapsed: Final = _clock()
"""Seconds by a clock that nobody sets and that goes on while the machine sleeps, as the database's does: what leases are
measured by."""


def new_token() -> int:
    """A random number that nobody else has. It alone fences."""
    return _RANDOM.getrandbits(62)


def owner() -> int:
    """The random name of this process (pid and host mean nothing in containers)."""
    global _owner
    pid = os.getpid()
    if _owner is None or _owner[0] != pid:
        _owner = (pid, new_token())
    return _owner[1]


def be(number: int) -> None:
    """Take ``number`` as this process's name: whoever started it knows then which leases end with it."""
    global _owner
    _owner = (os.getpid(), number)


def told_of_stop(name: int | None) -> bool:
    """Whether the owner of a lease, as it stands in its row, had been asked to stop: then nobody has killed it.

    Its renewals write the name with a minus from then on, so that whatever ends the process, its supervisor or a
    container's, is known as the stop (design 6, "Interruptions"). A process that dies before has said nothing.
    """
    return name is not None and name < 0


PAUSING: Final = 1
FOLLOWED: Final = 2


def flags_of(row: str = "") -> str:
    """SQL: what an executor is told of its instance at each statement, as one small number. ``row``: the table's alias with a
    point."""
    return (
        f"(CASE WHEN {row}status = 'waiting_for_pause' THEN {PAUSING} ELSE 0 END + "
        f"CASE WHEN {row}followed_until > CURRENT_TIMESTAMP THEN {FOLLOWED} ELSE 0 END)"
    )


@dataclass
class Lease:
    """One claim. ``renewed``: ``elapsed()`` before the claim or the last renewal was sent, so never later than the
    database counted from; ``lost`` is set by the renewal when somebody else owns the instance, ``told`` when it has written
    that this process was asked to stop; ``slot``: the concurrency key whose slot the instance holds as long as the lease
    lasts, '' for none; ``parent_step``: the record by which another instance has started this one; ``children``: whether it
    may have children of its own. Who has neither ends without a thought of a family. ``arrived``: how often
    the execution itself has taken delivery of what was sent. ``pausing``: somebody has asked for a pause; ``followed``: somebody
    may be reading the history as it is written. Each as the row said at the last claim, checkpoint or renewal."""

    using: str
    pk: int
    token: int
    label: str
    renewed: float
    lost: bool = False
    told: bool = False
    slot: str = ""
    parent_step: int | None = None
    children: bool = False
    arrived: int = 0
    pausing: bool = False
    followed: bool = False
    _noted: float = float("-inf")

    def note(self, flags: int, sent: float) -> None:
        """Take over what a statement has read of the row (``flags_of``). ``sent``: ``elapsed()`` before it was sent.

        Answers of several threads (branches, the renewal) may be taken in in another order than the row was read: one that
        was sent before somebody was told of a pause does not take that back, or one more step would begin.
        """
        late = sent <= self._noted
        self.pausing = bool(flags & PAUSING) or (late and self.pausing)
        self.followed = bool(flags & FOLLOWED) or (late and self.followed)
        if flags:
            self._noted = elapsed()

    def require(self) -> None:
        """Raise LeaseLost unless the last renewal is younger than the lease: else somebody may run the instance
        already."""
        if self.lost or elapsed() - self.renewed > get_settings().LEASE:
            raise LeaseLost(self.label)


@dataclass(kw_only=True)
class Claim:
    """A claimed instance: all that an execution needs to begin.

    ``now``: the database's clock at the claim. ``lost_token``: token of the expired lease that was taken over, else
    None; ``by_stop``: its owner had been asked to stop. ``rolling_back``: ``run`` has ended, and is being undone.
    ``uncharged``: whether the attempt that was lost with it is still to be charged. ``counted``: this claim has counted the loss;
    else an earlier one had, that found the instance to be paused.
    """

    lease: Lease
    workflow: str
    instance_id: str
    run_number: int
    execution: int
    seed: UUID
    params: str | None
    created: datetime
    scheduled_for: datetime | None
    deadline_at: datetime | None
    created_by_id: object
    code_version: int
    interruptions: int
    give_backs: int
    now: datetime
    lost_token: int | None
    by_stop: bool = False
    rolling_back: bool = False
    uncharged: bool = True
    counted: bool = False
    cron: str = ""
    _taken: float = field(default_factory=elapsed)

    @property
    def label(self) -> str:
        """``checkout/order-42``."""
        return self.lease.label

    @property
    def lost_mark(self) -> int | None:
        """What the row's ``owner`` says while nobody holds its lease, so that a lost attempt without a start mark is charged after
        a pause all the same: the token of the lease that was lost, with a minus if its owner had been asked to stop; None if
        there is none, or it is charged."""
        if self.lost_token is None or not self.uncharged:
            return None
        return -self.lost_token if self.by_stop else self.lost_token

    def db_now(self) -> datetime:
        """The database's clock, by what has elapsed here since the claim: good enough to look, never what
        is written."""
        stopped = clock.stopped()
        return stopped or self.now + timedelta(seconds=elapsed() - self._taken)

    @property
    def first(self) -> bool:
        """Whether nobody has executed this instance before, so that it has no journal."""
        return self.execution == 1
