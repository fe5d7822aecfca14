"""The lock on a worker's timer."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import pytest

from durableflow.cluster.queues import Timer

FORK = multiprocessing.get_context("fork")


def hold(shared: Any, told: Any) -> None:
    shared.get_lock().acquire()
    told.set()
    signal.pause()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_lock_that_a_dead_worker_held_keeps_nobody_waiting() -> None:
    """Design 4: a worker that is killed while it ends a task takes the lock with it; the sentinel goes on."""
    shared, told = FORK.Value("f", 7), FORK.Event()
    process = FORK.Process(target=hold, args=(shared, told))
    process.start()
    told.wait()
    os.kill(process.pid or 0, signal.SIGKILL)
    for _ in range(2):
        with Timer(process, shared) as timer:
            assert timer.value == 7
    process.join()


def test_a_free_lock_is_taken_and_given_back() -> None:
    shared = FORK.Value("f", 2)
    timer = Timer(multiprocessing.current_process(), shared)
    with timer.get_lock():
        timer.value -= 0.5
    with timer.get_lock():
        assert timer.value == 1.5
    assert shared.value == 1.5
