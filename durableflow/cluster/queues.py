"""Queues of the cluster that outlive a reader that is killed (design 4, "a dead worker or monitor ... cannot wedge it").

An idle worker waits inside ``Queue.get`` and holds the queue's read lock. Killed there, it takes the lock with it, and no
other worker ever gets a task again. So the queue remembers which process is inside, and the sentinel, when it replaces a
dead process, gives the lock back. Of the lock on its timer, which a worker holds while it ends a task, the sentinel
waits only as long as the worker lives.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from django_q import cluster as q_cluster
from django_q.conf import Conf
from django_q.queues import Queue

logger = logging.getLogger("durableflow.cluster")

LOCK_PATIENCE: Final = 0.1
"""Seconds between two looks at whether the holder of a lock still lives."""


class HolderQueue(Queue):  # type: ignore[misc]
    """django-q2's queue, which knows who is reading."""

    # Set by multiprocessing.
    _rlock: Any
    _sem: Any
    _recv_bytes: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.holder = multiprocessing.RawValue("i", 0)

    def __getstate__(self) -> Any:
        return (*super().__getstate__(), self.holder)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[:-1])
        self.holder = state[-1]

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next item; waits for one. The cluster never asks in another way."""
        if not block or timeout is not None:
            return super().get(block, timeout)
        with self._rlock:
            self.holder.value = os.getpid()
            data = self._recv_bytes()
            self._sem.release()
            self.holder.value = 0
        self.size.increment(-1)
        return ForkingPickler.loads(data)

    def free(self, pid: int) -> bool:
        """Give back the read lock that the dead process ``pid`` held; False if it held none."""
        if self.holder.value != pid:
            return False
        self.holder.value = 0
        self._rlock.release()
        return True


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
                        "Process %s died while it waited for the %s queue; its lock is free again.", process.pid, name
                    )
        super().reincarnate(process)


def install() -> None:
    """Have the cluster of this process started with our sentinel."""
    q_cluster.Sentinel = Sentinel
