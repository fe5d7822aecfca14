"""The broker: django-q2's ORM queue for ordinary tasks, and the tick that hands workflows' due work to the workers
(design 4)."""

from __future__ import annotations

import logging
import os
import time
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db import Error, close_old_connections, connections, router, transaction
from django.utils import timezone
from django_q.brokers.orm import ORM
from django_q.conf import Conf
from django_q.models import OrmQ
from django_q.signing import SignedPackage

from durableflow.cluster.drains import DRAINS, Pace
from durableflow.cluster.hint import notify
from durableflow.cluster.listening import TICK, Listener, Poller, pause
from durableflow.cluster.postgresql import PostgresListener
from durableflow.cluster.sqlite import SqliteListener
from durableflow.cluster.table import TABLE
from durableflow.cluster.wallclock import WallClock
from durableflow.core.conf import get_settings
from durableflow.core.outages import passes
from durableflow.engine import heartbeat, schedules
from durableflow.engine.delivery import delivery
from durableflow.engine.look import SCHEDULE, NextDue, next_due
from durableflow.engine.takeover import expire
from durableflow.models.creation import database

logger = logging.getLogger("durableflow.cluster")

LONGEST_WAIT: Final = 1.0
"""Seconds. django-q2's pusher looks at its stop event only between two calls of ``dequeue``."""
DELIVERY_AGAIN: Final = 0.02
OUTAGE_PAUSE: Final = 1.0
COMPLAIN_EVERY: Final = 60.0
NEWS_EVERY: Final = 0.1
"""Seconds between two glances at what other processes of the cluster have to tell."""
LOST_AFTER: Final = 2.0
"""Seconds after which a drain that is no longer in the queue, and that no worker has begun, is taken for lost."""
BEGUN_WITHIN: Final = 0.002
"""Seconds that an idle worker may take until it has begun a drain."""
DRAIN: Final = "durableflow.cluster.tasks.drain_task"

Tasks = list[tuple[Any, str]]


class Broker(ORM):  # type: ignore[misc]
    """``Q_CLUSTER["broker_class"]``. Everything but ``dequeue`` is the ORM broker's: ordinary tasks are rows in
    django-q2's queue table.

    No queue row exists for a workflow. ``dequeue``, which the pusher calls all the time, delivers sent events, looks
    when work is next due and hands out a *drain* task then; a worker that gets it claims due instances by itself. It
    returns within about a second, always.
    """

    # Class attributes: a broker that was pickled for a spawned process comes back without __init__.
    _pid: int | None = None
    _using = ""
    _listener: Listener = Poller()
    _clock: WallClock | None = None
    _pace = Pace(DRAINS)
    _away_since: float | None = None
    _complain_at = 0.0
    _sign_at = 0.0
    _left = False
    _key = 0
    queue: Any = None
    """The workers' queue in a cluster of ours, so that ``put`` never waits; None in a plain ``qcluster``."""

    @staticmethod
    def get_connection(list_key: str | None = None) -> Any:
        """The queue's rows, in ``Q_CLUSTER["orm"]`` or where the router puts them."""
        using = Conf.ORM or router.db_for_write(OrmQ)
        if not connections[using].in_atomic_block:
            close_old_connections()
        return OrmQ._default_manager.using(using)

    def info(self) -> str:
        """What ``qinfo`` shows."""
        return f"durableflow on {self.get_connection().db!r}"

    def enqueue(self, task: str) -> Any:
        """Put an ordinary task into the queue, as part of the caller's transaction, and wake the cluster after its
        commit."""
        pk = super().enqueue(task)
        using = self.get_connection().db
        transaction.on_commit(partial(notify, using), using=using, robust=True)
        return pk

    def acknowledge(self, task_id: Any) -> None:
        """Take a task that was done out of the queue. A database that is away is waited out: the monitor, which calls
        this, would die, and the task would run again. A stop does not wait for longer than its patience with the
        monitor."""
        complained = False
        while True:
            try:
                super().acknowledge(task_id)
                return
            except Error as error:
                if not passes(error):
                    raise
                if not complained:
                    logger.warning("A task that was done stays in the queue until the database answers: %s", error)
                complained = True
                connections[self.get_connection().db].close_if_unusable_or_obsolete()
            time.sleep(OUTAGE_PAUSE)

    def dequeue(self) -> Tasks | None:
        """What the workers shall do next, or None after a wait of at most a second.

        A database that is away or busy is waited out here: django-q2 would end the pusher and start it again ten
        seconds later. Other errors are raised; django-q2 logs them.
        """
        if self._pid != os.getpid():
            self._begin()
        TABLE.ticked()
        if DRAINS.stopping():
            self._leave()
            time.sleep(NEWS_EVERY)
            return None
        try:
            tasks = self._tick()
        except Error as error:
            if not passes(error):
                raise
            self._wait_out(error)
            return None
        if self._away_since is not None:
            logger.info("The database answers again after %.0f s.", time.monotonic() - self._away_since)
            self._away_since = None
        if DRAINS.stopping():
            self._leave()  # now: the pusher's own flag may be set by the time it would ask again
        return tasks

    def _begin(self) -> None:
        """Start in this process. What was open in the parent belongs to the parent: it is left alone, not closed."""
        self._pid = os.getpid()
        self._using = database()
        self._listener = _listener(self._using)
        self._clock = WallClock() if connections[self._using].vendor == "sqlite" else None
        self._pace = Pace(DRAINS)
        DRAINS.forget()
        self._key, self._sign_at, self._left = TABLE.key or heartbeat.new_key(), 0.0, False
        # The ORM broker sleeps after an empty look; this one waits for something.
        Conf.POLL = 0

    def _tick(self) -> Tasks | None:
        if DRAINS.unbegun() and DRAINS.age() < BEGUN_WITHIN:
            # The drain that was just handed out: the next look would take processor and database from the worker that begins it.
            pause(BEGUN_WITHIN, _begun, BEGUN_WITHIN / 10)
        close_old_connections()
        if dead := TABLE.dead():
            expire(self._using, dead)
            TABLE.bury(len(dead))
        self._sign()
        if self._clock is not None:
            self._clock.look(self._using, self._tasks_were_due)
        self._listener.arm()
        schedules.look(self._using)
        delivered = delivery(self._using)
        if delivered.due is None:
            due = next_due(self._using)
            TABLE.saw(0.0 if due is None else -due.seconds)  # that of a schedule is never late
        else:  # whoever is due first will be claimed first; that somebody is due is known without asking
            due = NextDue(0.0, delivered.due)
        asked = time.monotonic()
        if due is None or due.seconds > 0:
            self._pace.reset()
        elif not self._pace.left(due.instance) and (drain := self._hand_out(due)):
            return drain
        tasks: Tasks | None = super().dequeue() if self._room() else None
        if not tasks and self._wait(due, asked, locked=delivered.again) and due is not None:
            if due.instance != SCHEDULE:
                return self._hand_out(due)  # a timer's moment is known: nothing has to be asked first
        return tasks or None

    def _tasks_were_due(self, edge: datetime) -> None:
        """The host's clock was set back from ``edge``: ordinary tasks that were due are due. Those that somebody works on
        are locked for longer."""
        now = timezone.now()
        self.get_connection().filter(key=self.list_key, lock__gt=now, lock__lte=edge).update(lock=now)

    def _hand_out(self, due: NextDue) -> Tasks | None:
        """A drain, unless one is on its way. Where all workers are busy, their idle threads are called too."""
        unbegun = self._unbegun()
        if self._helpers():
            TABLE.call()
        elif unbegun:
            return None
        self._pace.sent(due.instance)
        if unbegun:
            return None
        DRAINS.hand_out()
        return [(None, drain_package())]

    def _helpers(self) -> bool:
        """Whether no worker is idle, but threads of theirs may be."""
        return get_settings().THREADS > 1 and self.queue is not None and not TABLE.idle_workers()

    def _unbegun(self) -> bool:
        """Whether a drain is on its way. One that died with a worker, between the queue and its first line, is not."""
        if DRAINS.unbegun() and self.queue is not None and DRAINS.age() > LOST_AFTER and self.queue.empty():
            DRAINS.forget()
        return DRAINS.unbegun()

    def _room(self) -> bool:
        """Whether the workers' queue takes an ordinary task; else it stays in the table, for this cluster or another."""
        return self.queue is None or not Conf.QUEUE_LIMIT or self.queue.qsize() < Conf.QUEUE_LIMIT

    def _leave(self) -> None:
        """Tell, once, that the cluster ends: from now on nobody counts on it."""
        if not self._left:
            self._left = True
            heartbeat.beat(self._using, _beat(self._key, stopping=True))

    def _sign(self) -> None:
        """Tell that the cluster lives (case OPS-14)."""
        now = time.monotonic()
        if now >= self._sign_at:
            self._sign_at = now + heartbeat.INTERVAL
            heartbeat.beat(self._using, _beat(self._key))

    def _wait(self, due: NextDue | None, asked: float, *, locked: bool) -> bool:
        """Wait until another look is worth it. True: nothing else has happened until ``due``, which counts from ``asked``, is
        due."""
        seconds = DELIVERY_AGAIN if locked else LONGEST_WAIT
        signs, every = [_news], NEWS_EVERY
        if due is not None and due.seconds > 0:
            seconds = min(seconds, max(0.0, asked + due.seconds - time.monotonic()))
        elif due is not None and DRAINS.unbegun():
            signs, every = [_news, _begun], TICK
            if self._helpers():
                seconds = min(seconds, self._pace.next_look(due.instance))
        elif due is not None:
            seconds = min(seconds, self._pace.next_look(due.instance))
        if not self._room():
            signs, every = [*signs, self._room], TICK
        if self._listener.wait(seconds, lambda: any(sign() for sign in signs), every):
            self._pace.heard()
            return False
        return due is not None and 0 < due.seconds <= time.monotonic() - asked and not _news()

    def _wait_out(self, error: Error) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since, self._complain_at = now, now
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_EVERY
            logger.warning("The database does not answer, trying again each second: %s", error)
        connections.close_all()
        time.sleep(OUTAGE_PAUSE)


def drain_package() -> str:
    """A drain as django-q2 takes it: without time limit (a step has its own), without a result row, and done
    whatever becomes of it.

    The id is constant, so that failing drains change one row of django-q2's failures instead of adding to them.
    """
    package = {
        "id": "durableflow-drain",
        "name": "durableflow-drain",
        "func": DRAIN,
        "args": (),
        "kwargs": {},
        "started": timezone.now(),
        "timeout": -1,
        "save": False,
        "cached": False,
        "ack_failure": True,
    }
    return str(SignedPackage.dumps(package))


def _beat(key: int, *, stopping: bool = False) -> heartbeat.Beat:
    """A sign of life of this cluster. In a plain ``qcluster`` it is the pusher's own, and nobody knows who is busy."""
    workers = Conf.WORKERS * get_settings().THREADS
    return heartbeat.Beat(
        key=key,
        kind="cluster",
        pid=TABLE.main,
        workers=workers,
        busy=TABLE.executing(),
        claimed_ago=DRAINS.executed_ago() if TABLE.claimed_ago() is None else TABLE.claimed_ago(),
        stopping=stopping,
    )


def _news() -> bool:
    """Whether the sentinel or the main process has something to tell."""
    return DRAINS.stopping() or bool(TABLE.dead())


def _begun() -> bool:
    return not DRAINS.unbegun()


def _listener(using: str) -> Listener:
    connection = connections[using]
    if connection.vendor == "postgresql":
        return PostgresListener(using, get_settings().LISTEN_DATABASE or using)
    if connection.vendor == "sqlite" and not connection.is_in_memory_db():  # type: ignore[attr-defined]
        return SqliteListener(using)
    return Poller()
