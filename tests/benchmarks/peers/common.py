"""What the peers' programs share. Plain Python: it runs in the peers' environment."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.benchmarks import floor
from tests.benchmarks.figures import median, percentiles
from tests.benchmarks.processes import end

PROCESSES = 2
STEPS = 1000
SAMPLES = 20
ROUNDS = 3
WAIT_SECONDS = 120


@contextmanager
def workers(command: Sequence[str], count: int = PROCESSES) -> Iterator[None]:
    """``count`` processes of ``command``, ended with the block."""
    with_errors = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    started = [subprocess.Popen(command, **with_errors) for _number in range(count)]  # type: ignore[call-overload]
    try:
        yield
    finally:
        for process in started:
            end(process, 5)


def ratio(conninfo: str, work: Callable[[], float], steps: int = STEPS, rounds: int = ROUNDS) -> dict[str, float]:
    """``work`` gives the seconds that ``steps`` steps take; they stand against the floor just before and after."""
    ratios, each = [], []
    for _round in range(rounds):
        before = floor.alone(conninfo, steps)
        took = work()
        ratios.append(2 * took / (before + floor.alone(conninfo, steps)))
        each.append(1000 * took / steps)
    return {"ratio": median(ratios, 2), "ms": median(each), "steps": steps}


def latency(sample: Callable[[], float], samples: int = SAMPLES) -> dict[str, float]:
    """``sample`` gives seconds; taken at random distances, so that no poll falls into step with them."""
    found = []
    for _sample in range(samples):
        time.sleep(random.uniform(0.05, 0.25))
        found.append(1000 * sample())
    return percentiles(found)


def until(condition: Callable[[], bool], *, every: float = 0.02, seconds: float = WAIT_SECONDS) -> None:
    """Look until the condition holds."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"It did not happen in {seconds:.0f} s.")
        time.sleep(every)


def report(settings: dict[str, Any], measured: dict[str, Callable[[], dict[str, Any]]], wanted: Sequence[str]) -> None:
    """Measure what is wanted and print it with the settings; a row that fails says why."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    result: dict[str, Any] = {"settings": settings}
    for name, measure in measured.items():
        if name not in wanted:
            continue
        try:
            result[name] = measure()
        except Exception as error:
            traceback.print_exc()
            result[name] = {"failed": f"{type(error).__name__}: {error}"}
        print(f"{settings['peer']} {name}: {result[name]}", file=sys.stderr, flush=True)
    print(json.dumps(result), flush=True)
