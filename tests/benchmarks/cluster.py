"""A real cluster beside the measurement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.workflows import Once

ROOT = Path(__file__).resolve().parent.parent.parent
STOP_SECONDS = 20


@contextmanager
def cluster() -> Iterator[None]:
    """``manage.py durableflow_cluster`` with the two workers of the settings, ready when the block begins."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "durableflow_cluster"],
        cwd=ROOT,
        env=dict(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _warm in range(6):
            Once.create().result(timeout=60)
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        time.sleep(0.1)
