"""A real cluster beside the measurement."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from durableflow.models import WorkflowInstance
from tests.benchmarks.processes import end
from tests.benchmarks.workflows import Once

ROOT = Path(__file__).resolve().parent.parent.parent
WARM = 6
WAIT_SECONDS = 120


@contextmanager
def cluster(*, warm: int = WARM, threads: int = 1) -> Iterator[int]:
    """``manage.py durableflow_cluster`` with the two workers of the settings; its process id.

    ready when the block begins, unless ``warm`` is 0. None of its processes outlives the block.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "durableflow_cluster"],
            cwd=ROOT,
            env={**os.environ, "BENCH_THREADS": str(threads)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            for _warm in range(warm):
                Once.create().result(timeout=60)
            yield process.pid
        except TimeoutError:
            log.seek(0)
            sys.stderr.write(log.read()[-4000:])
            raise
        finally:
            end(process)


def wait_for(condition: Callable[[], bool], seconds: float = WAIT_SECONDS, *, every: float = 0.02) -> None:
    """Look until the condition holds."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"The measurement did not end in {seconds:.0f} s: is a cluster running?")
        time.sleep(every)


def ended(first: int, last: int) -> None:
    """Wait until all instances from key ``first`` to key ``last`` have ended."""
    rows = WorkflowInstance.objects.filter(pk__gte=first, pk__lte=last)
    wait_for(lambda: not rows.active().exists(), every=0.05)
    if wrong := rows.exclude(status="complete").count():
        raise RuntimeError(f"{wrong} instances did not complete.")
