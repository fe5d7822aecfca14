"""The cluster as ``manage.py durableflow_cluster`` runs it."""

from __future__ import annotations

import logging
import threading
from typing import Any

from django.db import connections
from django_q.cluster import Cluster as QCluster
from django_q.conf import Conf

from durableflow.cluster import queues
from durableflow.cluster.broker import DRAIN
from durableflow.cluster.drains import DRAINS
from durableflow.models.creation import database


class Cluster(QCluster):  # type: ignore[misc]
    """django-q2's cluster. It runs until SIGTERM or SIGINT: then what runs is finished, and nothing new is begun."""

    stop_event: Any
    start_event: Any
    sentinel: Any

    def __init__(self) -> None:
        super().__init__()
        self.asked_to_stop = False

    def stop(self) -> bool:
        """Have the processes end, and wait for it. The signal handlers call this; a second call changes nothing."""
        self.asked_to_stop = True
        DRAINS.stop()
        if self.sentinel is None or not self.sentinel.is_alive():
            return False
        # Event.set() waits for those who wait on the event. A signal to the whole process group has killed them: it
        # would wait for ever.
        threading.Thread(target=self.stop_event.set, daemon=True).start()
        self.sentinel.join()
        self.start_event = self.stop_event = None
        return True

    def run(self) -> bool:
        """Start, and return when all is over: True if that was asked for, False if the cluster died."""
        # Nothing that is open here may be used on both sides of a fork.
        connections.close_all()
        self.start()
        if self.asked_to_stop:
            self.stop()
        self.sentinel.join()
        return self.asked_to_stop


class _NoDrains(logging.Filter):
    """Drops django-q2's two lines about each drain: workflows have a log of their own."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or DRAIN not in record.getMessage()


def run() -> bool:
    """Run the configured cluster in this process; see ``Cluster.run``."""
    logging.getLogger("django-q").addFilter(_NoDrains())
    queues.install()
    return Cluster().run()


def broker_class() -> str | None:
    """``broker_class`` as django-q2 has read it in this process: its settings are fixed at import."""
    return Conf.BROKER_CLASS  # type: ignore[no-any-return]


def describe() -> str:
    """What the cluster serves, for people: database, queue, workers."""
    using = database()
    settings = connections[using].settings_dict
    return (
        f"Executing workflows of the database {using!r} ({connections[using].vendor}, {settings['NAME']}) "
        f"with {Conf.WORKERS} workers, queue {Conf.CLUSTER_NAME!r}."
    )
