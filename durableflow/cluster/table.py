"""What the processes of one cluster know of each other: numbers in shared memory (design 4, "a shared array tells the
broker who is idle").

Each number has one writer, so that none needs a lock: a process may be killed at any line. The memory is made before the
cluster forks and shared by inheritance. In a plain ``qcluster`` nobody takes a seat, and all of this does nothing.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from collections.abc import Iterator
from typing import Any, Final

from django_q.conf import Conf

DEAD: Final = 256
"""Names of dead workers that can wait for their leases to be expired. Those above it wait for the leases' own end."""


class _Seat(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_int64),  # the sentinel writes these two; pid 0: free
        ("owner", ctypes.c_uint64),
        ("idle_since", ctypes.c_double),  # monotonic; 0: busy, or not yet begun
        ("held", ctypes.c_int64),
        ("alone", ctypes.c_int64),  # 1: may execute nothing beside what it executes
        ("draining", ctypes.c_int64),  # 1: in a drain
        ("signs", ctypes.c_uint64),  # rises as long as its threads get to run
    ]


class Table:
    """The workers of a cluster, what its pusher last saw, and the dead whose leases shall end."""

    def __init__(self, workers: int) -> None:
        self._seats: Any = multiprocessing.RawArray(_Seat, max(workers, 1))
        # Outside of the seats, since they outlive who sat there.
        self._executions = multiprocessing.RawArray(ctypes.c_uint64, max(workers, 1))
        self._claimed_at = multiprocessing.RawArray("d", max(workers, 1))  # monotonic; 0: never
        self._dead = multiprocessing.RawArray(ctypes.c_uint64, DEAD)
        self._buried = multiprocessing.RawValue(ctypes.c_uint64, 0)  # entries ever written, by the sentinel
        self._expired = multiprocessing.RawValue(ctypes.c_uint64, 0)  # entries ever read, by the pusher
        self._ticked_at = multiprocessing.RawValue("d", 0.0)
        self._guarded_at = multiprocessing.RawValue("d", 0.0)
        self._due_since = multiprocessing.RawValue("d", 0.0)
        self._calls = multiprocessing.RawValue(ctypes.c_uint64, 0)
        self.key = self.main = 0  # of the cluster's signs of life; set before the forks
        self._mine: int | None = None
        self._heard = 0

    # In the sentinel

    def seat(self, owner: int) -> int:
        """Take a free seat for a worker that is about to be made under the name ``owner``."""
        index = next(n for n, seat in enumerate(self._seats) if not seat.pid)
        seat = self._seats[index]  # as empty as at the beginning: see ``leave``
        seat.owner, seat.pid = owner, -1
        return index

    def sits(self, index: int, pid: int) -> None:
        """The worker of that seat runs under ``pid``."""
        self._seats[index].pid = pid

    def leave(self, index: int) -> None:
        """The worker of that seat is dead: its leases are to be expired."""
        seat = self._seats[index]
        if self._buried.value - self._expired.value < DEAD:
            self._dead[self._buried.value % DEAD] = seat.owner
            self._buried.value += 1
        seat.idle_since, seat.held, seat.draining, seat.alone, seat.pid = 0.0, 0, 0, 0, 0

    def signs(self, index: int) -> int | None:
        """A number that rises as long as the worker of that seat lives; None while it executes no workflow."""
        seat = self._seats[index]
        return int(seat.signs) if seat.draining or seat.held else None

    def guarded(self) -> None:
        """The sentinel is alive."""
        self._guarded_at.value = time.monotonic()

    # In a worker

    def take(self, index: int) -> None:
        """This process is the worker of that seat."""
        self._mine, self._heard = index, self._calls.value

    def idle(self) -> None:
        """It waits for something to do."""
        if self._mine is not None:
            self._seats[self._mine].idle_since = time.monotonic()

    def busy(self) -> None:
        """It has got something to do."""
        if self._mine is not None:
            self._seats[self._mine].idle_since = 0.0

    def holds(self, leases: int, *, alone: bool = False) -> None:
        """So many instances are executed here now; ``alone``: one that nothing may be executed beside."""
        if self._mine is not None:
            seat = self._seats[self._mine]
            if leases > seat.held:
                self._claimed_at[self._mine] = time.monotonic()
            seat.held, seat.alone = leases, alone

    def executed(self, executions: int) -> None:
        """So many more executions have ended here."""
        if self._mine is not None and executions:
            self._executions[self._mine] += executions
            self._claimed_at[self._mine] = time.monotonic()

    def drains(self, so: bool) -> None:
        """Whether it is in a drain."""
        if self._mine is not None:
            self._seats[self._mine].draining = so

    def sign(self) -> None:
        """Its threads get to run."""
        if self._mine is not None:
            self._seats[self._mine].signs += 1

    def called(self) -> bool:
        """Whether the pusher has called since this was last asked: work is due, and no worker is idle."""
        before, self._heard = self._heard, self._calls.value
        return self._heard != before

    # In the pusher

    def ticked(self) -> None:
        """It is alive."""
        self._ticked_at.value = time.monotonic()

    def saw(self, overdue: float) -> None:
        """The oldest work that is due has been so for ``overdue`` seconds; 0: nothing is due."""
        self._due_since.value = time.monotonic() - overdue if overdue > 0 else 0.0

    def call(self) -> None:
        """Have the threads that have nothing to do look for work, though their process is busy."""
        self._calls.value += 1

    def dead(self) -> list[int]:
        """Names of dead workers whose leases shall be expired."""
        return [self._dead[n % DEAD] for n in range(self._expired.value, self._buried.value)]

    def bury(self, count: int) -> None:
        """The first ``count`` of them are done with."""
        self._expired.value += count

    # Anywhere

    def idle_workers(self, seconds: float = 0.0) -> int:
        """How many workers have had nothing to do for ``seconds``. One that executes an instance alone, in a helper
        thread, would do nothing with a drain either."""
        at = time.monotonic() - seconds
        return sum(0 < seat.idle_since <= at and not seat.alone for seat in self._taken())

    def busy_workers(self) -> int:
        """How many workers have something to do, an ordinary task or a drain, or execute an instance."""
        return sum(not seat.idle_since or seat.held > 0 for seat in self._taken() if seat.pid > 0)

    def executing(self) -> int:
        """How many instances are executed now."""
        return sum(seat.held for seat in self._taken())

    def workers(self) -> int:
        """How many workers there are."""
        return sum(1 for _ in self._taken())

    def executions(self) -> int:
        """How many executions have ended since the cluster started."""
        return sum(self._executions)

    def claimed_ago(self) -> float | None:
        """Seconds since the last claim that shows; None: there was none."""
        last: float = max(self._claimed_at)
        return time.monotonic() - last if last else None

    def silent(self) -> float:
        """Seconds since the pusher's last tick; 0 before its first."""
        at: float = self._ticked_at.value
        return time.monotonic() - at if at else 0.0

    def unguarded(self) -> float:
        """Seconds since the sentinel's last turn; 0 before its first."""
        at: float = self._guarded_at.value
        return time.monotonic() - at if at else 0.0

    def overdue(self) -> float:
        """Seconds for which the oldest due work has waited, by the pusher's last look."""
        at: float = self._due_since.value
        return time.monotonic() - at if at else 0.0

    def names(self) -> dict[int, int]:
        """Pid and name of every worker."""
        return {seat.pid: seat.owner for seat in self._taken() if seat.pid > 0}

    def _taken(self) -> Iterator[Any]:
        return (seat for seat in self._seats if seat.pid)


TABLE: Final = Table(Conf.WORKERS)
