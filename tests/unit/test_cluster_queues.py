"""What a killed process leaves behind in the cluster's queues."""

from __future__ import annotations

import multiprocessing
import os
import signal
from queue import Empty
from typing import Any

import pytest

from durableflow.cluster.queues import HolderQueue

FORK = multiprocessing.get_context("fork")


def die_with(lock: Any) -> None:
    lock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("name", ["_rlock", "_wlock"])
def test_a_queue_goes_on_when_a_process_died_with_its_lock(name: str) -> None:
    """Whether it was waiting for something or putting something in."""
    queue = HolderQueue()
    process: Any = FORK.Process(target=die_with, args=(getattr(queue, name),))
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    assert not queue.free(os.getpid()), "the living keep theirs"
    assert queue.free(process.pid)
    assert not queue.free(process.pid)
    queue.put("something")
    assert queue.get() == "something"
    with pytest.raises(Empty):
        queue.get(timeout=0.01)
    queue.close()
    queue.join_thread()
