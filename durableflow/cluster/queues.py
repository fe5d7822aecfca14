"""Queues of the cluster that outlive a reader that is killed (design 4, "a dead worker or monitor ... cannot wedge it").

An idle worker waits inside ``Queue.get`` and holds the queue's read lock. Killed there, it takes the lock with it, and no
other worker ever gets a task again. So the queue remembers which process is inside, and the sentinel, when it replaces a
dead process, gives the lock back.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

from django_q import cluster as q_cluster
from django_q.conf import Conf
from django_q.queues import Queue

logger = logging.getLogger("durableflow.cluster")


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


class Sentinel(q_cluster.Sentinel):  # type: ignore[misc]
    """django-q2's sentinel with queues that a killed reader cannot wedge."""

    task_queue: Any
    result_queue: Any

    def spawn_cluster(self) -> None:
        """Start the processes, on our queues."""
        self.task_queue = HolderQueue(maxsize=Conf.QUEUE_LIMIT) if Conf.QUEUE_LIMIT else HolderQueue()
        self.result_queue = HolderQueue()
        super().spawn_cluster()

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
