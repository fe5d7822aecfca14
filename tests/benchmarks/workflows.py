"""The workflows that are measured. A body's result is the moment at which it ran."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from durableflow import Step, Workflow, WorkflowEvent

IO_SECONDS = 0.05
HELD_SECONDS = 120


class Sequential(Workflow[dict[str, int], int]):
    """A thousand steps in a row."""

    def run(self, event: WorkflowEvent[dict[str, int]], step: Step) -> int:
        return sum(step.do("step", int, number) for number in range(event.params["steps"]))


class Short(Workflow[None, float]):
    """Three steps: most of what a small workflow costs is its beginning and its end."""

    def run(self, event: WorkflowEvent[None], step: Step) -> float:
        first = step.do("first", time.time)
        step.do("second", time.time)
        step.do("third", time.time)
        return first


class Once(Workflow[None, float]):
    """How long from the commit of the start to the first body?"""

    def run(self, event: WorkflowEvent[None], step: Step) -> float:
        return step.do("body", time.time)


class Answered(Workflow[None, float]):
    """How long from the commit of an event to the next body?"""

    def run(self, event: WorkflowEvent[None], step: Step) -> float:
        step.wait_for_event("go", type="go")
        return step.do("body", time.time)


class Timed(Workflow[dict[str, Any], float]):
    """How late is a timer?"""

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> float:
        due = datetime.fromtimestamp(event.params["due"], UTC)
        step.sleep_until("due", due)
        return step.do("body", time.time)


class Waiting(Workflow[None, float]):
    """A step that waits for an answer from elsewhere, as a request over the network does."""

    def run(self, event: WorkflowEvent[None], step: Step) -> float:
        return step.do("request", request)


class Replayed(Workflow[dict[str, int], int]):
    """A long journal, then a wait: what it costs to come back."""

    def run(self, event: WorkflowEvent[dict[str, int]], step: Step) -> int:
        total = sum(step.do("step", int, number) for number in range(event.params["steps"]))
        step.wait_for_event("go", type="go")
        return total


class Held(Workflow[dict[str, str], float]):
    """A body during which its worker is killed; the second time it returns at once."""

    def run(self, event: WorkflowEvent[dict[str, str]], step: Step) -> float:
        return step.do("body", partial(hold, event.params["path"]))


def request() -> float:
    """Wait, and say when that began."""
    began = time.time()
    time.sleep(IO_SECONDS)
    return began


def hold(path: str) -> float:
    """The first time write the process's id into ``path`` and stay; later say when that was."""
    now = time.time()
    try:
        with Path(path).open("x") as file:
            file.write(f"{os.getpid()}\n")
    except FileExistsError:
        return now
    time.sleep(HELD_SECONDS)
    return now
