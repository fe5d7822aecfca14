"""How soon work goes on that a dead process held."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from durableflow.core.conf import get_settings
from tests.benchmarks.cluster import cluster, wait_for
from tests.benchmarks.figures import median
from tests.benchmarks.processes import family, kill, session
from tests.benchmarks.workflows import Held

ROUNDS = 5
ENOUGH_SECONDS = 20


def killed() -> dict[str, Any]:
    """kill -9 of a worker in a body, under a living cluster: until the body runs again. The slowest round counts."""
    with tempfile.TemporaryDirectory() as directory, cluster():
        seconds: list[float] = []
        while len(seconds) < ROUNDS and sum(seconds) < ENOUGH_SECONDS:
            seconds.append(_kill_worker(Path(directory) / str(len(seconds))))
    return {"seconds": round(max(seconds), 3), "median": median(seconds)}


def lost_host() -> dict[str, float]:
    """kill -9 of a whole cluster, as if its host were gone, while another one lives: until the body runs again there."""
    with tempfile.TemporaryDirectory() as directory, cluster() as first:
        path = Path(directory) / "pid"
        row = Held.create({"path": str(path)})
        _holder(path)
        with cluster():
            moment = time.time()
            kill([*family(first), *session(first)])
            again = row.result(timeout=120)
    return {"seconds": round(again - moment, 1), "bound": round(get_settings().LEASE * 4 / 3, 1)}


def _kill_worker(path: Path) -> float:
    row = Held.create({"path": str(path)})
    pid = _holder(path)
    moment = time.time()
    os.kill(pid, signal.SIGKILL)
    return float(row.result(timeout=120)) - moment


def _holder(path: Path) -> int:
    """The process that is in the body."""
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())
