"""How soon an idle cluster begins: after a start, an event, a timer; and what it costs while nothing happens."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import transaction

from durableflow.models import WorkflowInstance
from tests.benchmarks.cluster import cluster, wait_for
from tests.benchmarks.figures import percentiles
from tests.benchmarks.processes import cpu_seconds, family
from tests.benchmarks.workflows import Answered, Once, Timed

SAMPLES = 60
SETTLE_SECONDS = 3
IDLE_SECONDS = 15


def start() -> dict[str, float]:
    """Commit of the start to the first line of the first body, on an idle cluster."""
    with cluster():
        return _samples()


def event() -> dict[str, float]:
    """Commit of an event to the first line of the next body."""

    def waiting() -> Any:
        row = Answered.create()
        wait_for(lambda: WorkflowInstance.objects.filter(pk=row.pk, status="waiting").exists())
        return row

    with cluster():
        return _samples(waiting)


def timer() -> dict[str, float]:
    """How late the body after a timer runs, one timer at a time."""
    late = []
    with cluster():
        for _sample in range(SAMPLES):
            due = time.time() + random.uniform(0.2, 0.4)
            late.append(1000 * (Timed.create({"due": due}).result(timeout=30) - due))
    return percentiles(late)


def idle() -> dict[str, float]:
    """Percent of one core that all processes of a cluster use while nothing is due."""
    with cluster() as root:
        time.sleep(SETTLE_SECONDS)
        members = family(root)
        before, began = cpu_seconds(members), time.monotonic()
        time.sleep(IDLE_SECONDS)
        used, took = cpu_seconds(members) - before, time.monotonic() - began
    return {"cpu_percent": round(100 * used / took, 2), "processes": len(members)}


def _samples(prepare: Callable[[], Any] | None = None) -> dict[str, float]:
    """Samples at random distances, so that no poll falls into step with them."""
    found = []
    for _sample in range(SAMPLES):
        row = prepare() if prepare else None
        time.sleep(random.uniform(0.05, 0.25))
        committed: list[float] = []
        with transaction.atomic():
            # Registered first, so it runs right after the commit.
            transaction.on_commit(partial(_note, committed))
            if row is None:
                row = Once.create()
            else:
                row.send_event("go")
        found.append(1000 * (row.result(timeout=30) - committed[0]))
    return percentiles(found)


def _note(moments: list[float]) -> None:
    moments.append(time.time())
