"""Queues of the cluster that outlive a process that is killed (design 4, "a dead worker or monitor ... cannot wedge it").

An idle worker waits inside ``Queue.get`` and holds the queue's read lock. Killed there, it takes the lock with it, and no
other worker ever gets a task again. So every lock of a queue remembers which process has it, and the sentinel gives back
what a dead process held. Of the lock on its timer, which a worker holds while it ends a task, the sentinel waits only as
long as the worker lives.

A process that dies in the middle of a message leaves half of it behind, and whoever reads next reads nonsense. That lasts
for microseconds, cannot be cured in place, and is noticed (``HolderQueue.torn``): the cluster ends, to be started anew.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from django_q.queues import Queue

from durableflow.cluster.table import TABLE

LOCK_PATIENCE: Final = 0.1
"""Seconds between two looks at whether the holder of a lock still lives."""
WHOLE: Final = 4096
"""A message of so many bytes goes into a pipe in one piece, or not at all (PIPE_BUF)."""
HEADER: Final = 4
STOP: Final = "STOP"
"""What makes a worker, or the monitor, end."""


class HeldLock:
    """A lock between processes that knows who holds it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._holder = multiprocessing.RawValue("i", 0)

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Wait for the lock, as a lock of multiprocessing does."""
        taken = bool(self._lock.acquire(block, timeout))
        if taken:
            self._holder.value = os.getpid()
        return taken

    def release(self) -> None:
        """Give it back."""
        self._holder.value = 0
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def free(self, pid: int) -> bool:
        """Give it back for the dead process ``pid``; False if that did not hold it."""
        if self._holder.value != pid and not self._orphaned():
            return False
        self.release()
        return True

    def _orphaned(self) -> bool:
        """Whether it is taken and nobody has it: the holder died between taking it and saying so, or the reverse. The
        living are there for a moment only."""
        end = time.monotonic() + LOCK_PATIENCE
        while not self._holder.value and self._lock._semlock._is_zero():
            if time.monotonic() >= end:
                return True
            time.sleep(LOCK_PATIENCE / 10)
        return False


class Size:
    """How many messages are in a queue: django-q2's ``SharedCounter``, with a lock that can be freed."""

    def __init__(self) -> None:
        self.lock = HeldLock(multiprocessing.Lock())
        self._count = multiprocessing.RawValue("i", 0)

    def increment(self, n: int = 1) -> None:
        """Add ``n``."""
        with self.lock:
            self._count.value += n

    @property
    def value(self) -> int:
        """The number. It may be wrong by one for each process that was killed with a message in its hands."""
        return int(self._count.value)

    def reset(self) -> None:
        """There is none."""
        with self.lock:
            self._count.value = 0


class HolderQueue(Queue):  # type: ignore[misc]
    """django-q2's queue, which knows who is reading and who is writing. ``put`` never waits: the broker asks for the
    size before it takes ordinary tasks."""

    # Set by multiprocessing.
    _rlock: Any
    _wlock: Any
    _sem: Any
    _reader: Any
    _writer: Any
    _buffer: Any
    _closed: bool
    _recv_bytes: Callable[[], bytes]
    _send_bytes: Callable[[bytes], None]

    def __init__(self) -> None:
        self._reading = multiprocessing.RawValue("i", 0)
        self._writing = multiprocessing.RawValue("i", 0)
        super().__init__()
        self._rlock, self._wlock = HeldLock(self._rlock), HeldLock(self._wlock)
        self.size = Size()

    def _reset(self, after_fork: bool = False) -> None:
        super()._reset(after_fork)
        self._send_bytes = self._send

    def _send(self, message: bytes) -> None:
        if len(message) + HEADER > WHOLE:
            self._writing.value = os.getpid()
        self._writer.send_bytes(message)
        self._writing.value = 0

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Send a message. A small one goes at once, without the queue's thread, which would have to wait for this one: that is
        a tenth of the way from a commit to the body."""
        if self._closed or self._buffer or not self._put_now(obj):
            super().put(obj, block, timeout)

    def _put_now(self, obj: Any) -> bool:
        """Write it into the pipe if that neither waits for anybody nor can leave a part behind."""
        try:
            message: Any = ForkingPickler.dumps(obj)
        except Exception:  # a result that cannot be sent: told by the queue's thread, as ever
            return False
        if len(message) + HEADER > WHOLE or not self._sem.acquire(False):
            return False
        sent = False
        if self._wlock.acquire(False):
            try:
                writable = select.poll()
                writable.register(self._writer, select.POLLOUT)
                if writable.poll(0):
                    self._send(message)
                    sent = True
            finally:
                self._wlock.release()
        if sent:
            self.size.increment()
        else:
            self._sem.release()
        return sent

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Wait for a message and take it."""
        if not block or timeout is not None:
            return super().get(block, timeout)
        with self._rlock:
            self._reader.poll(None)  # who waits here has not taken anything yet
            self._reading.value = os.getpid()
            message = self._recv_bytes()
            self._sem.release()
            self._reading.value = 0
        self.size.increment(-1)
        return ForkingPickler.loads(message)

    def free(self, pid: int) -> bool:
        """Give back the locks that the dead process ``pid`` held; False if it held none."""
        return any([self._rlock.free(pid), self._wlock.free(pid), self.size.lock.free(pid)])

    def torn(self, pid: int) -> bool:
        """Whether the dead process ``pid`` was in the middle of a message."""
        return pid in (self._reading.value, self._writing.value)

    def drained(self) -> bool:
        """Whether nothing is in the pipe. Only of use where nobody is writing."""
        return not self._reader.poll(0)


class TaskQueue(HolderQueue):
    """The queue of the workers. It notes who of them is idle, and ends those that shall do no more."""

    leave: Callable[[], bool] = staticmethod(lambda: False)
    """Whether this process shall take no more tasks; a worker sets it."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Wait for a task."""
        if self.leave():
            return STOP
        TABLE.idle()
        task = super().get(block, timeout)
        TABLE.busy()
        return task


class Timer:
    """A worker's timer as the sentinel uses it: ``with timer.get_lock(): timer.value``."""

    def __init__(self, process: Any, shared: Any) -> None:
        self._process, self._shared = process, shared
        self._locked = False

    @property
    def value(self) -> float:
        """Seconds left to the task; -1: idle, 0: out of time, -2: recycled."""
        return float(self._shared.get_obj().value)

    @value.setter
    def value(self, seconds: float) -> None:
        self._shared.get_obj().value = seconds

    def get_lock(self) -> Timer:
        """The lock, as a context manager."""
        return self

    def __enter__(self) -> Timer:
        self._locked = self._shared.get_lock().acquire(timeout=LOCK_PATIENCE)
        while not self._locked and self._process.is_alive():
            self._locked = self._shared.get_lock().acquire(timeout=LOCK_PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        if self._locked:
            self._shared.get_lock().release()
