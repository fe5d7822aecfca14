"""The sentinel: django-q2's supervisor of workers, pusher and monitor, made so that no death wedges it (design 4)."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from typing import Any, Final, NoReturn

from django.db import connections
from django_q import cluster as q_cluster
from django_q.conf import Conf
from django_q.status import Stat

# Tasks: loaded before the workers fork. One that is recycled after a deploy has replaced the files would load new code
# beside the old.
from durableflow.cluster import children, tasks  # noqa: F401
from durableflow.cluster.children import Flag
from durableflow.cluster.drains import DRAINS
from durableflow.cluster.hung import Silence, give_signs
from durableflow.cluster.queues import STOP, HolderQueue, TaskQueue, Timer
from durableflow.cluster.table import TABLE
from durableflow.engine import replacement, shutdown
from durableflow.engine.lease import be, new_token
from durableflow.engine.watcher import watcher

logger = logging.getLogger("durableflow.cluster")

PUSHER_PATIENCE: Final = 5.0
"""Seconds that the pusher has to end after its flag; its longest wait is one."""
TIMEOUT_PATIENCE: Final = 1.0
"""Seconds that a worker has to end by itself after its task ran out of time: it is handing in the result."""
MONITOR_PATIENCE: Final = 30.0
"""Seconds that the monitor has to store the last results."""
THREADS_PATIENCE: Final = 2.0
"""Seconds that threads without a lease have to notice the end of their process."""
LOOK: Final = 0.1


class TornQueueError(RuntimeError):
    """A process died in the middle of a message; the queue cannot be read any more."""


class Sentinel(q_cluster.Sentinel):  # type: ignore[misc]
    """django-q2's sentinel, on queues that a killed process cannot wedge, with children that die with it."""

    task_queue: Any
    result_queue: Any
    event_out: Any
    pool: list[Any]
    monitor: Any
    pusher: Any
    broker: Any
    stop_event: Any

    def __init__(self, stop: Flag, start: Flag, cluster_id: uuid.UUID, parent: int) -> None:
        with children.signals_held():
            super().__init__(stop, start, cluster_id, start=False)
            children.settle(parent)  # again: the line above has changed what signals do
        self._empty_since: float | None = None

    def spawn_cluster(self) -> None:
        """Start the processes, on our queues."""
        self.task_queue, self.result_queue, self.event_out = TaskQueue(), HolderQueue(), Flag()
        self.broker.queue = self.task_queue
        super().spawn_cluster()

    def spawn_process(self, target: Any, *args: Any) -> Any:
        """Start a process that dies with this one; a worker gets a seat in the table, and a name for its leases."""
        seat = owner = None
        if target is q_cluster.worker:
            owner = new_token()
            seat = TABLE.seat(owner)
        process = children.context().Process(
            target=_child, args=(os.getpid(), seat, owner, target, args), name=f"Process-{uuid.uuid4().hex}"
        )
        process.daemon = target is not q_cluster.worker or Conf.DAEMONIZE_WORKERS
        if seat is not None:
            process.timer = Timer(process, args[2])
            process.seat = seat
            process.silence = Silence(seat)
            self.pool.append(process)
        process.start()
        if seat is not None:
            TABLE.sits(seat, process.pid)
        return process

    def reincarnate(self, process: Any) -> None:
        """Replace a process that has died, or that has run out of time: it is gone first, and what it held is free."""
        timed_out = process.is_alive()
        if timed_out:
            process.join(TIMEOUT_PATIENCE)
            children.kill(process)
        self._clear(process)
        if process in self.pool and not timed_out and process.exitcode:
            logger.warning(
                "Worker %s died of %s; what it executed goes on elsewhere.",
                process.pid,
                children.ended(process.exitcode),
            )
        super().reincarnate(process)

    def _clear(self, process: Any) -> None:
        """Free what a dead process held, and have its leases expired."""
        for queue, name in ((self.task_queue, "task"), (self.result_queue, "result")):
            if queue.torn(process.pid):
                raise TornQueueError(
                    f"Process {process.pid} died of {children.ended(process.exitcode)} in the middle of a message of "
                    f"the {name} queue. The cluster ends; nothing is lost, start it again."
                )
            if queue.free(process.pid):
                logger.warning(
                    "Process %s died while it waited for the %s queue or wrote to it; its lock is free again.",
                    process.pid,
                    name,
                )
        if getattr(process, "seat", None) is not None:
            TABLE.leave(process.seat)
            process.seat = None
            DRAINS.forget()  # it may have taken a drain that it never began; one too many does no harm

    def status(self) -> str:
        """django-q2's state of the cluster. Asked at each turn of the guard's loop, and of a stop, which gives the chance
        to look after more than django-q2 does."""
        TABLE.guarded()
        self._mend()
        self._end_hung()
        return str(super().status())

    def _end_hung(self) -> None:
        """Kill workers that can neither work nor end; the next turn replaces them."""
        for worker in self.pool:
            why = worker.silence.look(stopping=self.stop_event.is_set()) if worker.is_alive() else ""
            if why:
                logger.error("Worker %s %s; it is killed.", worker.pid, why)
                children.kill(worker)

    def _mend(self) -> None:
        """A worker that was killed with a task in its hands has not counted it."""
        if self.task_queue.size.value <= 0 or not self.task_queue.drained():
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = time.monotonic()
        elif time.monotonic() - self._empty_since > MONITOR_PATIENCE:
            self.task_queue.size.reset()
            self._empty_since = None

    def stop(self) -> None:
        """End all processes: the pusher, then the workers when what they run is finished, then the monitor.

        A worker that dies meanwhile is not replaced, and holds nobody up. How long a body may go on is the worker's own
        affair (SHUTDOWN_GRACE); ordinary tasks are finished, however long they take.
        """
        Stat(self).save()
        self.event_out.set()
        self.pusher.join(PUSHER_PATIENCE)
        if self.pusher.is_alive():
            logger.warning("The pusher does not end; it is killed.")
            children.kill(self.pusher)
        self._clear(self.pusher)
        while self.pool:
            for worker in [each for each in self.pool if not each.is_alive()]:
                self.pool.remove(worker)
                self._clear(worker)
            if not self.monitor.is_alive():
                self.reincarnate(self.monitor)
            if self.pool and self.task_queue.size.value < len(self.pool):
                self.task_queue.put(STOP)
            Stat(self).save()
            time.sleep(LOOK)
        self._end_monitor()
        Stat(self).save()

    def _end_monitor(self) -> None:
        end = time.monotonic() + max(MONITOR_PATIENCE, self.timeout or 0)
        self.result_queue.put(STOP)
        while self.monitor.is_alive() and time.monotonic() < end:
            self.monitor.join(LOOK)
        if self.monitor.is_alive():
            logger.warning("The monitor does not end; it is killed. Tasks whose results it had run again.")
            children.kill(self.monitor)

    def end(self) -> None:
        """Leave no child, whatever happened."""
        for process in (*self.pool, self.monitor, self.pusher):
            if process is not None and process.is_alive():
                children.kill(process)


def sentinel(parent: int, stop: Flag, start: Flag, cluster_id: uuid.UUID) -> None:
    """What the sentinel's process does. It ends with status 0 after a stop, else with an error."""
    children.settle(parent)
    made = Sentinel(stop, start, cluster_id, parent)
    try:
        made.start()
    except TornQueueError as error:
        logger.critical("%s", error)
        raise SystemExit(1) from None
    finally:
        # multiprocessing would send SIGTERM, which they do not heed, and then wait for them for ever.
        made.end()


def _child(parent: int, seat: int | None, owner: int | None, target: Any, args: tuple[Any, ...]) -> None:
    """What any other process of the cluster does."""
    children.settle(parent)
    if seat is None or owner is None:
        target(*args)
        return
    be(owner)
    TABLE.take(seat)
    give_signs()
    shutdown.heed(DRAINS.stopping)
    replacement.allow()
    args[0].leave = _must_leave
    target(*args)
    _end(args[1])


def _must_leave() -> bool:
    return bool(replacement.wanted())


def _end(results: HolderQueue) -> None:
    """End a worker when its helper threads have finished their bodies; threads that never end do not keep it."""
    while watcher().held():
        time.sleep(LOOK)
    results.close()
    results.join_thread()
    connections.close_all()
    # Python waits for the other threads when this one has ended.
    threading.Thread(target=_leave, name="durableflow-end", daemon=True).start()


def _leave() -> NoReturn:
    time.sleep(THREADS_PATIENCE)
    replacement.end(replacement.STUCK, "threads in it do not end.")
