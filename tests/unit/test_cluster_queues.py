"""What a killed process leaves behind in the cluster's queues."""

from __future__ import annotations

import multiprocessing
import os
import signal
from queue import Empty
from typing import Any

import pytest

from durableflow.cluster.queues import STOP, HolderQueue, TaskQueue
from durableflow.cluster.table import TABLE

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


def test_a_small_message_goes_at_once() -> None:
    """Not by way of the queue's thread, which waits for the one that puts."""
    queue = HolderQueue()
    queue.put("something")
    assert queue._thread is None and queue.size.value == 1  # type: ignore[attr-defined]
    assert (queue.get(), queue.size.value) == ("something", 0)
    queue.close()


def test_putting_never_waits_and_loses_nothing() -> None:
    """The pipe takes some 20 of these; the others wait in the queue's thread, and one that is too long goes there too."""
    queue = HolderQueue()
    messages = [f"{number:<3000}" for number in range(200)] + ["x" * 100_000, "short"]
    for message in messages:
        queue.put(message)
    assert sorted(queue.get() for _ in messages) == sorted(messages)
    assert queue.size.value == 0 and queue._sem._semlock._is_zero() is False
    with pytest.raises(Empty):
        queue.get(timeout=0.01)
    queue.close()
    queue.join_thread()


def die_while(queue: HolderQueue, what: str) -> None:
    def die(*_args: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if what == "reading":
        queue._recv_bytes = die  # type: ignore[method-assign, assignment]
        queue.get()
    else:
        queue._writer.send_bytes = die
        queue._send(b"x" * 10_000)


@pytest.mark.parametrize("what", ["reading", "writing"])
def test_a_death_in_the_middle_of_a_message_shows(what: str) -> None:
    """It cannot be cured in place: half a message may be left behind."""
    queue = HolderQueue()
    if what == "reading":
        queue.put("something")
    process: Any = FORK.Process(target=die_while, args=(queue, what))
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    assert queue.torn(process.pid) and not queue.torn(os.getpid())
    queue.cancel_join_thread()
    queue.close()


def test_a_worker_that_shall_leave_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the queue is for others; and it does not count as idle."""
    monkeypatch.setattr(TABLE, "idle", lambda: pytest.fail("it waits for a task"))
    queue = TaskQueue()
    queue.put("something")
    queue.leave = lambda: True
    assert (queue.get(), queue.size.value) == (STOP, 1)
    monkeypatch.undo()
    queue.leave = lambda: False
    assert (queue.get(), queue.size.value) == ("something", 0)
    queue.close()
    queue.join_thread()


def test_a_lock_whose_holder_died_before_it_said_so_is_freed() -> None:
    queue = HolderQueue()
    queue._rlock._lock.acquire()
    assert queue.free(12345)
    assert not queue.free(12345)
