"""Workflows that tell in a file what their bodies did, in whatever process they ran."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from pathlib import Path
from typing import TypedDict

from durableflow import Retries, Step, Workflow, WorkflowEvent


class Log(TypedDict):
    """``log``: the file that bodies write to; ``name``: what tells this instance's lines from others'."""

    log: str
    name: str


class Nap(Log):
    """``seconds``: how long to sleep."""

    seconds: float


class Gate(Log):
    """``gate``: the file that lets the body end once it exists."""

    gate: str


def write(log: str, line: str) -> str:
    """Append one line; short appends of several processes do not mix."""
    with Path(log).open("a") as file:
        file.write(line + "\n")
    return line


def hold(log: str, name: str, gate: str) -> int:
    """Tell that the body runs, and in which process, until the gate opens."""
    write(log, f"{name} began {os.getpid()}")
    while not Path(gate).exists():
        time.sleep(0.01)
    write(log, f"{name} ended {os.getpid()}")
    return os.getpid()


def fail_first(log: str, name: str) -> str:
    """Fail at the first attempt in the life of the log."""
    seen = Path(log).read_text().splitlines() if Path(log).exists() else []
    write(log, f"{name} tried")
    if f"{name} tried" not in seen:
        raise ConnectionError("not yet")
    return name


def seize(log: str, name: str) -> int:
    """At the first attempt in the life of the log, keep the interpreter's lock: no other thread of the process runs any
    more, and no signal is heeded."""
    first = f"{name} seized" not in Path(log).read_text()
    write(log, f"{name} seized")
    if first:
        ctypes.PyDLL(None).sleep(3600)
    return os.getpid()


def resist(log: str, name: str, how: str, count: int) -> str:
    """In helper threads, never end, until ``count`` bodies of this log do so; the main thread waits for them."""
    while (stuck := Path(log).read_text().count(" resists ")) < count:
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.01)
            continue
        write(log, f"{name} resists {os.getpid()} {stuck}")
        while True:
            with contextlib.suppress(BaseException):
                if how == "C code":
                    ctypes.CDLL(None).sleep(3600)
                else:
                    time.sleep(0.05)
    return write(log, f"{name} done {os.getpid()}")


class ClusterSteps(Workflow[Log, list[str]]):
    """Two steps."""

    def run(self, event: WorkflowEvent[Log], step: Step) -> list[str]:
        log, name = event.params["log"], event.params["name"]
        first = step.do("first", write, log, f"{name} first")
        return [first, step.do("second", write, log, f"{name} second")]


class ClusterNap(Workflow[Nap, str]):
    """A step on either side of a sleep."""

    def run(self, event: WorkflowEvent[Nap], step: Step) -> str:
        log, name = event.params["log"], event.params["name"]
        step.do("before", write, log, f"{name} before")
        step.sleep("nap", event.params["seconds"])
        return step.do("after", write, log, f"{name} after")


class ClusterRetry(Workflow[Log, str]):
    """A step that fails once, then waits for its retry."""

    class Meta:
        step_retries = Retries(limit=2, delay=1, backoff="constant")

    def run(self, event: WorkflowEvent[Log], step: Step) -> str:
        return step.do("fail first", fail_first, event.params["log"], event.params["name"])


class ClusterHold(Workflow[Gate, int]):
    """A body that runs until the gate opens; a worker that dies in it costs one of its attempts."""

    def run(self, event: WorkflowEvent[Gate], step: Step) -> int:
        log, name, gate = event.params["log"], event.params["name"], event.params["gate"]
        step.do("before", write, log, f"{name} before")
        return step.do("hold", hold, log, name, gate)


class ClusterHoldOnce(Workflow[Gate, int]):
    """The same, with a body that starts at most once."""

    def run(self, event: WorkflowEvent[Gate], step: Step) -> int:
        log, name, gate = event.params["log"], event.params["name"], event.params["gate"]
        return step.do("hold", hold, log, name, gate, retries=0)


class ClusterSeize(Workflow[Log, int]):
    """A body in C that does not let go."""

    def run(self, event: WorkflowEvent[Log], step: Step) -> int:
        return step.do("seize", seize, event.params["log"], event.params["name"])


class Resistance(Log):
    """``how``: ``C code`` or ``swallows``; ``count``: how many bodies never end."""

    how: str
    count: int


class ClusterResist(Workflow[Resistance, str]):
    """A step whose body may never end; another attempt does."""

    class Meta:
        step_retries = Retries(limit=1000, delay=0)

    def run(self, event: WorkflowEvent[Resistance], step: Step) -> str:
        params = event.params
        args = params["log"], params["name"], params["how"], params["count"]
        step.do("before", write, params["log"], f"{params['name']} before")
        return step.do("resist", resist, *args, timeout=1)


class ClusterWait(Workflow[Log, str]):
    """A step after an event."""

    def run(self, event: WorkflowEvent[Log], step: Step) -> str:
        got = step.wait_for_event("go", type="go", timeout="1 hour")
        return step.do("after", write, event.params["log"], f"{event.params['name']} got {got.payload}")
