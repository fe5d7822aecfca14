"""Queues of the cluster that outlive a process that is killed (design 4, "a dead worker or monitor ... cannot wedge it").

An idle worker waits inside ``Queue.get`` and holds the queue's read lock. Killed there, it takes the lock with it, and no
other worker ever gets a task again. So the queue remembers which process is inside, and the sentinel, when it replaces a
dead process, gives the lock back; so it does with the write lock, which a process holds for a moment when it puts
something. Of the lock on its timer, which a worker holds while it ends a task, the sentinel
waits only as long as the worker lives.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from typing import Any, Final

from django_q import cluster as q_cluster
from django_q.conf import Conf
from django_q.queues import Queue

logger = logging.getLogger("durableflow.cluster")

LOCK_PATIENCE: Final = 0.1
"""Seconds between two looks at whether the holder of a lock still lives."""


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
        if self._holder.value != pid:
            return False
        self.release()
        return True


class HolderQueue(Queue):  # type: ignore[misc]
    """django-q2's queue, which knows who is reading and who is writing."""

    # Set by multiprocessing.
    _rlock: Any
    _wlock: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rlock, self._wlock = HeldLock(self._rlock), HeldLock(self._wlock)

    def free(self, pid: int) -> bool:
        """Give back the locks that the dead process ``pid`` held; False if it held none."""
        return any([self._rlock.free(pid), self._wlock.free(pid)])


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


class Sentinel(q_cluster.Sentinel):  # type: ignore[misc]
    """django-q2's sentinel with queues that a killed reader cannot wedge."""

    task_queue: Any
    result_queue: Any

    def spawn_cluster(self) -> None:
        """Start the processes, on our queues."""
        self.task_queue = HolderQueue(maxsize=Conf.QUEUE_LIMIT) if Conf.QUEUE_LIMIT else HolderQueue()
        self.result_queue = HolderQueue()
        super().spawn_cluster()

    def spawn_process(self, target: Any, *args: Any) -> Any:
        """Start a process. A worker's timer becomes one whose lock dies with the worker."""
        process = super().spawn_process(target, *args)
        if target is q_cluster.worker:
            process.timer = Timer(process, process.timer)
        return process

    def reincarnate(self, process: Any) -> None:
        """Replace a process that has died; the locks that it held are given back first."""
        if not process.is_alive():
            for queue, name in ((self.task_queue, "task"), (self.result_queue, "result")):
                if queue.free(process.pid):
                    logger.warning(
                        "Process %s died while it waited for the %s queue or wrote to it; its lock is free again.",
                        process.pid,
                        name,
                    )
        super().reincarnate(process)


def install() -> None:
    """Have the cluster of this process started with our sentinel."""
    q_cluster.Sentinel = Sentinel
