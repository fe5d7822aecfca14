"""How fast work is done: checkpoints, small instances, instances that wait for I/O, replay."""

from __future__ import annotations

import gc
import time
from typing import Any

from django.db import connection, transaction
from django.db.models import Max, Min
from psycopg.conninfo import make_conninfo

from durableflow import drain
from durableflow.models import StepRecord, WorkflowInstance
from tests.benchmarks import bulk, floor
from tests.benchmarks.cluster import cluster, ended
from tests.benchmarks.figures import median
from tests.benchmarks.workflows import Replayed, Sequential, Short, Waiting

STEPS = 1000
INSTANCES = 1000
REQUESTS = 200
POOL = 16
JOURNAL = 10_000
ROUNDS = 5
CLUSTER_ROUNDS = 3


def floor_seconds(rows: int) -> float:
    """The floor on the database in use."""
    if connection.vendor == "sqlite":
        return floor.sqlite(str(connection.settings_dict["NAME"]), rows)
    given: dict[str, Any] = connection.get_connection_params()
    keep = {key: given[key] for key in ("dbname", "user", "password", "host", "port") if given.get(key)}
    return floor.postgresql(make_conninfo(**keep), rows)


def checkpoint() -> dict[str, float]:
    """Steps in a row, drained in this process, against the floor just before and after; median of the rounds."""
    ratios, milliseconds, floors = [], [], []
    for _round in range(ROUNDS):
        before = floor_seconds(STEPS)
        took = drained(Sequential.create({"steps": STEPS}))
        bare = (before + floor_seconds(STEPS)) / 2
        ratios.append(took / bare)
        milliseconds.append(1000 * took / STEPS)
        floors.append(1000 * bare / STEPS)
    return {"ratio": median(ratios, 2), "ms": median(milliseconds), "floor_ms": median(floors)}


def drained(row: WorkflowInstance) -> float:
    """Seconds that a drain takes which ends this instance."""
    began = time.perf_counter()
    drain(seconds=60)
    took = time.perf_counter() - began
    row.refresh_from_db()
    if row.status != "complete":
        raise RuntimeError(f"{row} is {row.status}: {row.error or row.blocked}")
    return took


def instances() -> dict[str, Any]:
    """Instances of three steps, queued before the cluster starts: first body to last end."""
    rates = []
    for _round in range(CLUSTER_ROUNDS):
        with transaction.atomic():
            keys = [Short.create().pk for _number in range(INSTANCES)]
        with cluster(warm=0):
            ended(keys[0], keys[-1])
        rows = WorkflowInstance.objects.filter(pk__gte=keys[0], pk__lte=keys[-1])
        first = StepRecord.objects.filter(instance__in=rows).aggregate(moment=Min("started"))["moment"]
        last = rows.aggregate(moment=Max("finished"))["moment"]
        rates.append(INSTANCES / (last - first).total_seconds())
    return {"per_s": round(median(rates)), "rounds": [round(rate) for rate in rates]}


def io_pool() -> dict[str, Any]:
    """Instances whose only step waits for 50 ms, started in one transaction on an idle cluster with thread pools:
    first body to last end."""
    seconds = []
    with cluster(threads=POOL):
        for _round in range(ROUNDS):
            with transaction.atomic():
                keys = [Waiting.create().pk for _number in range(REQUESTS)]
            ended(keys[0], keys[-1])
            rows = list(WorkflowInstance.objects.filter(pk__gte=keys[0], pk__lte=keys[-1]))
            seconds.append(max(row.finished.timestamp() for row in rows) - min(row.output for row in rows))
    return {"seconds": median(seconds), "rounds": [round(value, 3) for value in seconds]}


def replay() -> dict[str, float]:
    """An event wakes an instance with a journal of 10,000 steps: its whole execution, from the claim to its end."""
    seconds = []
    gc.freeze()  # as a cluster does before it forks
    for _round in range(ROUNDS):
        row = Replayed.create({"steps": 1})
        drain()
        bulk.lengthen(row, JOURNAL)
        bulk.analyze()
        row.send_event("go")
        seconds.append(drained(row))
    return {"seconds": median(seconds)}
