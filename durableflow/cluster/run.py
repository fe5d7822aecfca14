"""The cluster as ``manage.py durableflow_cluster`` runs it: the main process."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
import uuid
from contextlib import suppress
from multiprocessing import connection as waiting
from threading import Thread
from types import FrameType
from typing import Any, Final

from django.db import Error, connections, router
from django_q.cluster import Cluster as QCluster
from django_q.conf import Conf
from django_q.models import OrmQ

from durableflow.cluster import children
from durableflow.cluster.broker import DRAIN
from durableflow.cluster.children import Flag
from durableflow.cluster.drains import DRAINS
from durableflow.cluster.sentinel import sentinel
from durableflow.cluster.status import LiveLine, plural, readable_logs, shows_on, wipe_behind
from durableflow.cluster.table import TABLE
from durableflow.cluster.watchdog import Guard
from durableflow.core.conf import get_settings
from durableflow.core.outages import passes
from durableflow.engine import heartbeat
from durableflow.engine.takeover import expire
from durableflow.models.creation import database

logger = logging.getLogger("durableflow.cluster")

DIED: Final = 1
"""Exit status: the cluster died, or the settings are wrong."""
STANDSTILL: Final = 75
"""Exit status: the watchdog ended it."""
AT_ONCE: Final = 128
"""Exit status, plus the number of the signal: a second signal ended it at once."""

SAME_SIGNAL: Final = 1.0
"""Seconds within which a second signal is taken for the first one's echo: Ctrl-C reaches the group, and a wrapper passes
it on."""
LOOK: Final = 1.0
ORDERLY: Final = 30.0
"""Seconds that a cluster which stands still has to stop in good order, above the grace of its bodies."""
BURIAL: Final = 5.0
"""Seconds in which the workers of a dead sentinel are gone, and the database takes note of it."""


class Cluster(QCluster):  # type: ignore[misc]
    """The main process of a cluster. It runs until SIGTERM or SIGINT: then bodies get SHUTDOWN_GRACE, ordinary tasks are
    finished, and nothing new is begun."""

    stop_event: Any
    start_event: Any
    sentinel: Any

    def __init__(self) -> None:
        super().__init__()
        self.started, self.stopped, self.wake = Flag(), Flag(), Flag()
        self._signals: list[tuple[float, int]] = []
        self._alarm = ""
        self._kill_at: float | None = None

    def sig_handler(self, signum: int, frame: FrameType | None) -> None:
        """Note the signal; the loop acts on it."""
        now = time.monotonic()
        if not self._signals or now - self._signals[-1][0] > SAME_SIGNAL:
            self._signals.append((now, signum))
        self.wake.ring()

    def alarm(self, reason: str) -> None:
        """The watchdog has found that the cluster stands still."""
        self._alarm = reason
        self.wake.ring()

    def start(self) -> int:
        """Start the sentinel, which starts all others. It does not wait for them."""
        # Nothing that is open here may be used on both sides of a fork.
        connections.close_all()
        heartbeat.silence()
        TABLE.key, TABLE.main = heartbeat.new_key(), os.getpid()
        # What is loaded now stays for good: no process shall look through it at each full collection, which a long journal
        # causes, and the pages stay shared.
        gc.collect()
        gc.freeze()
        self.sentinel = children.context().Process(
            target=sentinel,
            args=(os.getpid(), self.stopped, self.started, self.cluster_id),
            name=f"Process-{uuid.uuid4().hex}",
        )
        self.sentinel.start()
        return int(self.pid)

    def stop(self) -> bool:
        """Have the processes end; False if that was said already."""
        if self.stopped.is_set():
            return False
        DRAINS.stop()
        self.stopped.set()
        return True

    def run(self) -> int:
        """Start, and return the exit status when all is over."""
        guard, live, ready = Guard(database(), self.alarm), LiveLine(), False
        self.start()
        while self.sentinel.is_alive():
            if not ready and self.started.is_set():
                ready = True
                guard.start()
                logger.info("Ready: %s wait for work.", plural(Conf.WORKERS, "worker"))
            if len(self._signals) > 1:
                return self._end_at_once()
            if self._signals and self.stop():
                guard.stop()
                logger.info("Stopping on %s.", signal.Signals(self._signals[0][1]).name)
            elif self._alarm and self.stop():
                self._kill_at = time.monotonic() + get_settings().SHUTDOWN_GRACE + ORDERLY
                logger.critical("The cluster stands still and is ended: %s.", self._alarm)
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self._kill()
            live.show()
            waiting.wait([self.sentinel.sentinel, self.wake.bell()], LOOK if ready else 0.1)
            self.wake.hush()
        guard.stop()
        live.clear()
        return self._ended()

    def _ended(self) -> int:
        self.sentinel.join()
        self._bury()  # also of workers whose bodies outlasted the grace, when the pusher was gone
        if self._alarm:
            _say(
                f"The cluster has ended with status {STANDSTILL}, because it stood still: {self._alarm}. "
                "Nothing is lost; start it again."
            )
            return STANDSTILL
        if self.sentinel.exitcode == 0 and self.stopped.is_set():
            logger.info("Stopped.")
            return 0
        _say(
            f"The cluster has died: its sentinel {self.sentinel.pid} ended with "
            f"{children.ended(self.sentinel.exitcode)}. No process of it is left; start it again."
        )
        return DIED

    def _end_at_once(self) -> int:
        number = self._signals[-1][1]
        _say(f"Ended at once by a second {signal.Signals(number).name}; what was executed goes on elsewhere.")
        self._kill()
        self._bury()
        return AT_ONCE + number

    def _kill(self) -> None:
        """End all processes: the others die with the sentinel."""
        children.kill(self.sentinel)

    def _bury(self) -> None:
        """See that the workers are gone, and have the leases of those expired that died with something in hand."""
        names, end = TABLE.names(), time.monotonic() + BURIAL
        while (left := [pid for pid in names if not children.gone(pid)]) and time.monotonic() < end:
            time.sleep(0.02)
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        dead = [owner for pid, owner in names.items() if pid not in left] + TABLE.dead()
        if dead:
            # In a thread that is left alone in the end: a connection that nobody answers may take minutes to fail.
            burying = Thread(target=_expire, args=(dead, end), name="durableflow-burial", daemon=True)
            burying.start()
            burying.join(BURIAL + 1)
            if burying.is_alive():
                logger.warning("The leases of its workers end by themselves, the database does not answer.")


def _expire(dead: list[int], end: float) -> None:
    """Have the leases of dead workers expired, and try again until ``end`` (monotonic)."""
    while True:
        try:
            expire(database(), dead)
            return
        except Error as error:
            if time.monotonic() > end:
                logger.warning("The leases of its workers end by themselves, the database does not answer: %s", error)
                return
            time.sleep(0.2)
        finally:
            connections.close_all()


def _say(text: str) -> None:
    """Tell it in the log, and on stderr where the log goes elsewhere."""
    logger.critical("%s", text)
    if shows_on(sys.stderr, logger, logging.CRITICAL):
        return
    with suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class _QLog(logging.Filter):
    """Drops django-q2's two lines about each drain, because workflows have a log of their own, and the tracebacks of a
    database that is away, which the pusher tells of."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Error) and passes(error):
            record.msg, record.args = f"{record.getMessage()}: {error}", ()
            record.exc_info = record.exc_text = None
        return record.levelno > logging.INFO or DRAIN not in record.getMessage()


def run() -> int:
    """Run the configured cluster in this process, and give its exit status; see ``Cluster.run``."""
    logging.getLogger("django-q").addFilter(_QLog())
    readable_logs()
    wipe_behind(sys.stdout)
    return Cluster().run()


def broker_class() -> str | None:
    """``broker_class`` as django-q2 has read it in this process: its settings are fixed at import."""
    return Conf.BROKER_CLASS  # type: ignore[no-any-return]


def queue_database() -> str:
    """Where django-q2 keeps its queue of ordinary tasks."""
    return Conf.ORM or router.db_for_write(OrmQ)


def describe() -> str:
    """What the cluster serves, for people: database, queue, workers."""
    using = database()
    settings, threads = connections[using].settings_dict, get_settings().THREADS
    workers = plural(Conf.WORKERS, "worker") + (f" of {threads} threads" if threads > 1 else "")
    return (
        f"Executing workflows of the database {using!r} ({connections[using].vendor}, {settings['NAME']}) "
        f"with {workers}, queue {Conf.CLUSTER_NAME!r}."
    )
