"""The workflows that are measured. A body's result is the moment at which it ran."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from durableflow import Step, Workflow, WorkflowEvent


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
