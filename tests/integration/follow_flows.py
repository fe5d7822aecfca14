"""Workflows that are followed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.models import HistoryEntry, WorkflowInstance
from tests.support.concurrency import Task, eventually


class FollowedOrder(Workflow):
    """A step, a wait for an event, a step."""

    class Meta:
        name = "followed-order"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        first = step.do("first", lambda: 1)
        got = step.wait_for_event("go", type="go")
        return [first, got.payload, step.do("last", lambda: 2)]


class FollowedSteps(Workflow):
    """Steps alone, as many as the params say."""

    class Meta:
        name = "followed-steps"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        return [step.do("count", lambda number=number: number) for number in range(event.params or 1)]


class FollowedFailure(Workflow):
    """Fails in its only step, unless it is told not to."""

    class Meta:
        name = "followed-failure"

    fails = True

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        return step.do("try", self.attempt, retries=0)

    @classmethod
    def attempt(cls) -> str:
        if cls.fails:
            raise ValueError("no")
        return "done"


class FollowedSecret(Workflow):
    """An error quotes what a sensitive step has returned."""

    class Meta:
        name = "followed-secret"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        token = step.do("token", lambda: "s3cr3t", sensitive=True)
        step.do("use", self.use, token, retries=0)

    @staticmethod
    def use(token: str) -> None:
        raise ValueError(f"refused: {token}")


class Following:
    """Somebody who follows in a thread of their own."""

    def __init__(self, instance: WorkflowInstance, **options: Any) -> None:
        self.seen: list[HistoryEntry] = []
        self._instance = WorkflowInstance.objects.get(pk=instance.pk)
        self._options = options
        self.task = Task(self._run)

    def _run(self) -> list[HistoryEntry]:
        for entry in self._instance.follow(**self._options):
            self.seen.append(entry)
        return self.seen

    @property
    def types(self) -> list[str]:
        return [entry.type for entry in self.seen]

    def sees(self, type: str, times: int = 1) -> None:
        """Wait until it has seen this."""
        eventually(lambda: self.task.error or self.types.count(type) >= times, f"{times} x {type}, only {self.types}")
        assert self.task.error is None, self.task.error


@contextmanager
def following(instance: WorkflowInstance, **options: Any) -> Iterator[Following]:
    """Follow ``instance`` while the block runs; it has to end by itself after it."""
    follower = Following(instance, **options)
    yield follower
    follower.task.result()
