"""DBOS: ``python -m tests.benchmarks.peers.dbos URL ROW...`` (``URL work ID``: a worker).

Set: two processes with an executor id each, a queue polled every 50 ms in place of the default second, 16 workflows at
the same time in each process, LISTEN and NOTIFY on (its default).
"""

from __future__ import annotations

import sys
import threading
import time
from importlib.metadata import version
from typing import Any

from dbos import DBOS, DBOSClient

from tests.benchmarks.peers import common

QUEUE = "bench"
NAME = "bench"
VERSION = "1"
INSTANCES = 500
POLL_SECONDS = 0.05
CONCURRENCY = 16


@DBOS.step()
def number_of(number: int) -> int:
    """A step that does nothing."""
    return number


@DBOS.step()
def moment() -> float:
    """A step that says when it ran."""
    return time.time()


@DBOS.workflow()
def sequential(steps: int) -> int:
    """Steps in a row."""
    return sum(number_of(number) for number in range(steps))


@DBOS.workflow()
def short() -> list[float]:
    """Three steps."""
    first = moment()
    moment()
    moment()
    return [first, time.time()]


@DBOS.workflow()
def answered() -> float:
    """A message, then a step."""
    DBOS.recv("go", timeout_seconds=60)
    return moment()


def launch(url: str, executor: str) -> None:
    """DBOS in this process."""
    config: Any = {
        "name": NAME,
        "system_database_url": url,
        "executor_id": executor,
        "application_version": VERSION,
        "log_level": "ERROR",
        "run_migrations": True,
    }
    DBOS(config=config)
    DBOS.launch()


class Bench:
    """The measurements."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.conninfo = url.replace("postgresql+psycopg:", "postgresql:")
        launch(url, "bench")
        queue: Any = DBOS.register_queue(
            QUEUE, polling_interval_sec=POLL_SECONDS, worker_concurrency=CONCURRENCY, on_conflict="always_update"
        )
        assert queue is not None
        self.steps_found = common.ratio(self.conninfo, self._sequential)
        DBOS.destroy()
        self.client = DBOSClient(system_database_url=url, application_name=NAME, use_listen_notify=True)

    def _sequential(self) -> float:
        began = time.perf_counter()
        sequential(common.STEPS)
        return time.perf_counter() - began

    def steps(self) -> dict[str, Any]:
        """A thousand steps in a row, executed in this process."""
        return self.steps_found

    def instances(self) -> dict[str, Any]:
        """Workflows of three steps, queued before two processes start: first body to last end."""
        started = [self.enqueue("short") for _number in range(INSTANCES)]
        with self.workers():
            found = [handle.get_result() for handle in started]
        rate = INSTANCES / (max(end for _first, end in found) - min(first for first, _end in found))
        return {"per_s": round(rate), "instances": INSTANCES}

    def start(self) -> dict[str, Any]:
        """Commit of the enqueue to the first body, processes idle."""

        def sample() -> float:
            handle = self.enqueue("short")
            committed = time.time()
            return float(handle.get_result()[0]) - committed

        with self.workers():
            self.enqueue("short").get_result()
            return common.latency(sample)

    def event(self) -> dict[str, Any]:
        """Commit of a message to the next body."""

        def sample() -> float:
            handle = self.enqueue("answered")
            common.until(lambda: handle.get_status().status == "PENDING")
            time.sleep(0.3)
            self.client.send(handle.get_workflow_id(), "go", "go")
            sent = time.time()
            return float(handle.get_result()) - sent

        with self.workers():
            self.enqueue("short").get_result()
            return common.latency(sample)

    def enqueue(self, name: str) -> Any:
        """Put a workflow into the queue."""
        return self.client.enqueue({"queue_name": QUEUE, "workflow_name": name, "app_version": VERSION})

    def workers(self) -> Any:
        """Two processes; an executor id for each is taken from its process id."""
        return common.workers([sys.executable, "-m", "tests.benchmarks.peers.dbos", self.url, "work"])


def main(url: str, *words: str) -> None:
    """Measure, or be a worker."""
    url = url.replace("postgresql:", "postgresql+psycopg:", 1)
    if words[0] == "work":
        import os

        launch(url, f"worker-{os.getpid()}")
        threading.Event().wait()
    bench = Bench(url)
    settings = {
        "peer": "DBOS",
        "version": version("dbos"),
        "poll_s": POLL_SECONDS,
        "worker_concurrency": CONCURRENCY,
        "listen_notify": True,
    }
    rows = {"steps": bench.steps, "instances": bench.instances, "start": bench.start, "event": bench.event}
    common.report(settings, rows, words)


if __name__ == "__main__":
    main(*sys.argv[1:])
