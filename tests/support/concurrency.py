"""Real threads and processes for tests of races: barriers and bounded polling, no sleeping on a guess."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection, connections, transaction
from django.db.models import Model

from tests.support.database import child_environment

PATIENCE = 60.0
"""Seconds after which a test gives up: far above what anything takes, also on a busy machine."""


class Task:
    """A function that runs in a thread of its own, with connections of its own."""

    def __init__(self, function: Callable[[], Any], start: threading.Barrier | None = None) -> None:
        self._function = function
        self._start = start
        self._value: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            if self._start is not None:
                self._start.wait(PATIENCE)
            self._value = self._function()
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    def join(self) -> Task:
        """Wait for its end, whatever it is."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the thread does not end"
        return self

    def result(self) -> Any:
        """What the function returned; raises what it raised."""
        self.join()
        if self.error is not None:
            raise self.error
        return self._value

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return not self.thread.is_alive()


def together(*functions: Callable[[], Any]) -> list[Task]:
    """Start all functions at the same moment, each in a thread, and wait for all of them."""
    barrier = threading.Barrier(len(functions))
    tasks = [Task(function, barrier) for function in functions]
    return [task.join() for task in tasks]


def eventually(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Look until ``condition()`` is true and return what it gave."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} never came true"
        time.sleep(0.005)
    return value


class Gate:
    """A place in the code where a thread stops until the test lets it go on."""

    def __init__(self) -> None:
        self._reached, self._open = threading.Event(), threading.Event()

    def stop_here(self) -> None:
        """In the thread: tell that it is here, and wait."""
        self._reached.set()
        assert self._open.wait(PATIENCE), "nobody opened the gate"

    def wait_until_reached(self) -> None:
        """In the test: wait until the thread stands here."""
        assert self._reached.wait(PATIENCE), "nobody came to the gate"

    def open(self) -> None:
        """In the test: let it go on."""
        self._open.set()


@contextmanager
def held(*rows: Model, lock: str = "FOR UPDATE") -> Iterator[None]:
    """Somebody's transaction, on a connection of its own, has locked these rows while the block runs (PostgreSQL)."""
    gate = Gate()

    def hold() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            for row in rows:
                meta = row._meta
                cursor.execute(f"SELECT 1 FROM {meta.db_table} WHERE {meta.pk.column} = %s {lock}", [row.pk])
            gate.stop_here()

    holder = Task(hold)
    gate.wait_until_reached()
    try:
        yield
    finally:
        gate.open()
        holder.join()
    holder.result()


@contextmanager
def child(function: str, *args: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that calls ``module:function`` with text arguments on this test's database; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.child", function, *args],
        env=child_environment(**environment),
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a child that shall succeed; what it printed."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, f"the child ended with {process.returncode}:\n{out}\n{err}"
    return out
