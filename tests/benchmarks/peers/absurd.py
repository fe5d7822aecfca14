"""Absurd: ``python -m tests.benchmarks.peers.absurd URL ROW...`` (``URL work``: a worker).

Set: one task at a time in each worker, as ours; and for the idle start and the event a poll of 10 ms in place of the
default 250 ms.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from absurd_sdk import Absurd

from tests.benchmarks.figures import median
from tests.benchmarks.peers import common

QUEUE = "bench"
INSTANCES = 1000
POLL_SECONDS = 0.01
DEFAULTS = {name: item.default for name, item in inspect.signature(Absurd.start_worker).parameters.items()}


def app(url: str) -> Any:
    """The tasks, with a connection of their own."""
    made: Any = Absurd(url, queue_name=QUEUE)

    @made.register_task(name="sequential")
    def sequential(params: Any, context: Any) -> list[float]:
        began = time.time()
        for number in range(params["steps"]):
            context.step("step", lambda number=number: number)
        return [began, time.time()]

    @made.register_task(name="short")
    def short(params: Any, context: Any) -> list[float]:
        first = context.step("first", time.time)
        context.step("second", time.time)
        context.step("third", time.time)
        return [first, time.time()]

    @made.register_task(name="answered")
    def answered(params: Any, context: Any) -> float:
        context.await_event(params["event"])
        moment: float = context.step("body", time.time)
        return moment

    return made


class Bench:
    """The measurements."""

    def __init__(self, url: str) -> None:
        self.url = url
        tool = str(Path(sys.executable).with_name("absurdctl"))
        subprocess.run([tool, "init", "-d", url], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([tool, "create-queue", "-d", url, QUEUE], check=True, stdout=subprocess.DEVNULL)
        self.app = app(url)

    def steps(self) -> dict[str, Any]:
        """A thousand steps in a row, executed in this process."""

        def work() -> float:
            began = time.perf_counter()
            task = self.app.spawn("sequential", {"steps": common.STEPS})
            self.app.work_batch()
            took = time.perf_counter() - began
            self.result(task)
            return took

        return common.ratio(self.url, work)

    def instances(self) -> dict[str, Any]:
        """Tasks of three steps, queued before two workers start: first body to last end."""
        rates = []
        for _round in range(common.ROUNDS):
            tasks = [self.app.spawn("short", None) for _number in range(INSTANCES)]
            with self.workers(DEFAULTS["poll_interval"]):
                moments = [self.result(task) for task in tasks]
            rates.append(INSTANCES / (max(end for _first, end in moments) - min(first for first, _end in moments)))
        return {"per_s": round(median(rates)), "rounds": [round(rate) for rate in rates]}

    def start(self) -> dict[str, Any]:
        """Commit of the spawn to the first body, workers idle."""

        def sample() -> float:
            task = self.app.spawn("short", None)
            committed = time.time()
            return float(self.result(task)[0]) - committed

        with self.workers(POLL_SECONDS):
            self.result(self.app.spawn("short", None))
            return common.latency(sample)

    def event(self) -> dict[str, Any]:
        """Commit of the event to the next body."""
        numbers = iter(range(1_000_000))

        def sample() -> float:
            name = f"go-{next(numbers)}"
            task = self.app.spawn("answered", {"event": name})
            common.until(lambda: self.app.fetch_task_result(task["task_id"]).state == "sleeping")
            time.sleep(0.05)
            self.app.emit_event(name, {})
            sent = time.time()
            return float(self.result(task)) - sent

        with self.workers(POLL_SECONDS):
            return common.latency(sample)

    def workers(self, poll: float) -> Any:
        """Two worker processes."""
        return common.workers([sys.executable, "-m", "tests.benchmarks.peers.absurd", self.url, "work", str(poll)])

    def result(self, task: Any) -> Any:
        """What the task returned."""
        found = self.app.await_task_result(task["task_id"], timeout=common.WAIT_SECONDS)
        if found.state != "completed":
            raise RuntimeError(f"The task is {found.state}.")
        return found.result


def main(url: str, *words: str) -> None:
    """Measure, or be a worker."""
    if words[0] == "work":
        app(url).start_worker(poll_interval=float(words[1]))
        return
    bench = Bench(url)
    settings = {
        "peer": "Absurd",
        "version": version("absurd-sdk"),
        "poll_s": f"{DEFAULTS['poll_interval']}; start and event {POLL_SECONDS}",
        "concurrency": DEFAULTS["concurrency"],
        "claim_timeout_s": DEFAULTS["claim_timeout"],
    }
    rows = {"steps": bench.steps, "instances": bench.instances, "start": bench.start, "event": bench.event}
    common.report(settings, rows, words)


if __name__ == "__main__":
    main(*sys.argv[1:])
