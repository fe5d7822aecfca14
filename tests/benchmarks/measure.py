"""The measurements of one database; prints one JSON object."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.db.models import Max, Min  # noqa: E402

from durableflow import drain  # noqa: E402
from durableflow.models import StepRecord, WorkflowInstance  # noqa: E402
from tests.benchmarks import floor  # noqa: E402
from tests.benchmarks.cluster import cluster  # noqa: E402
from tests.benchmarks.workflows import Answered, Once, Sequential, Short, Timed  # noqa: E402

STEPS = 1000
ROUNDS = 5
INSTANCES = 1000
SAMPLES = 60


def checkpoint() -> dict[str, float]:
    """Steps in a row, drained in this process, against the floor just before and after; median of the rounds."""
    ratios, milliseconds = [], []
    for _round in range(ROUNDS):
        before = floor.seconds(STEPS)
        Sequential.create({"steps": STEPS})
        began = time.perf_counter()
        drain()
        took = time.perf_counter() - began
        after = floor.seconds(STEPS)
        ratios.append(took / ((before + after) / 2))
        milliseconds.append(took)
    return {"ratio": round(statistics.median(ratios), 2), "ms": round(statistics.median(milliseconds), 3)}


def instances() -> dict[str, float]:
    """Instances of three steps, queued before the cluster starts: first body to last end."""
    with transaction.atomic():
        keys = [Short.create().pk for _number in range(INSTANCES)]
    with cluster():
        wait_for(lambda: not WorkflowInstance.objects.filter(pk__gte=keys[0], pk__lte=keys[-1]).active().exists())
    rows = WorkflowInstance.objects.filter(pk__gte=keys[0], pk__lte=keys[-1])
    first = StepRecord.objects.filter(instance__in=rows).aggregate(moment=Min("started"))["moment"]
    last = rows.aggregate(moment=Max("finished"))["moment"]
    return {"per_s": round(INSTANCES / (last - first).total_seconds())}


def start() -> dict[str, float]:
    """Commit of the start to the first line of the first body, on an idle cluster."""
    return latency()


def event() -> dict[str, float]:
    """Commit of an event to the first line of the next body."""

    def waiting() -> Any:
        row = Answered.create()
        wait_for(lambda: WorkflowInstance.objects.filter(pk=row.pk, status="waiting").exists())
        return row

    return latency(waiting)


def latency(prepare: Callable[[], Any] | None = None) -> dict[str, float]:
    """Median and 95th percentile over samples at random distances."""
    found = []
    for _sample in range(SAMPLES):
        row = prepare() if prepare else None
        time.sleep(random.uniform(0.05, 0.25))
        committed: list[float] = []
        with transaction.atomic():
            # Registered first, so it runs right after the commit.
            transaction.on_commit(partial(note, committed))
            if row is None:
                row = Once.create()
            else:
                row.send_event("go")
        found.append(1000 * (row.result(timeout=30) - committed[0]))
    return percentiles(found)


def note(moments: list[float]) -> None:
    """Remember the present moment."""
    moments.append(time.time())


def timer() -> dict[str, float]:
    """How late the body after a timer runs, one timer at a time."""
    late = []
    for _sample in range(SAMPLES):
        due = time.time() + random.uniform(0.2, 0.5)
        late.append(1000 * (Timed.create({"due": due}).result(timeout=30) - due))
    return percentiles(late)


def percentiles(values: list[float]) -> dict[str, float]:
    """``p50_ms`` and ``p95_ms``."""
    ordered = sorted(values)
    return {
        "p50_ms": round(statistics.median(ordered), 1),
        "p95_ms": round(ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))], 1),
    }


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Look until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("The measurement did not end: is a cluster running?")
        time.sleep(0.02)


def main() -> None:
    """Measure everything on the database in use."""
    call_command("migrate", verbosity=0)
    result: dict[str, Any] = {"checkpoint": checkpoint(), "instances": instances()}
    with cluster():
        result |= {"start": start(), "event": event(), "timer": timer()}
    result["server"] = connection.vendor
    print(json.dumps(result))


if __name__ == "__main__":
    main()
