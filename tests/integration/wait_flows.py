"""Workflows that are waited for, and who waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django.db import connection

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.core import hearing
from durableflow.models import WorkflowInstance
from tests.support.concurrency import Task, eventually


class AwaitedOrder(Workflow):
    """A step that can be undone, a wait for an event, a step."""

    class Meta:
        name = "awaited-order"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        step.do("book", lambda: 1, rollback=lambda undo: None)
        got = step.wait_for_event("go", type="go")
        return step.do("last", lambda: got.payload)


class AwaitedSteps(Workflow):
    """Steps alone, as many as the params say."""

    class Meta:
        name = "awaited-steps"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        return [step.do("count", lambda number=number: number) for number in range(event.params or 1)]


class AwaitedFailure(Workflow):
    """Its second step fails, its first is undone."""

    class Meta:
        name = "awaited-failure"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        step.do("book", lambda: 1, rollback=lambda undo: None)
        step.do("pay", self.pay, retries=0)

    @staticmethod
    def pay() -> None:
        raise ValueError("no money")


class AwaitedParent(Workflow):
    """Waits for its child, which waits for ever."""

    class Meta:
        name = "awaited-parent"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        step.run_workflow("child", AwaitedOrder, None, instance_id=f"child-of-{step.instance_id}")


class AwaitedLate(Workflow):
    """Is over before its sleep."""

    class Meta:
        name = "awaited-late"
        max_duration = "0.2 seconds"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        step.sleep("long", "1 day")


def hears(row: WorkflowInstance) -> bool:
    """Whether somebody waits for notices of ``row``, and they arrive."""
    hub = hearing.hub_of("default")
    marks = WorkflowInstance.objects.filter(pk=row.pk).values_list("followed_until", "awaited_until").first()
    marked = connection.vendor == "sqlite" or any(marks or ())
    return hub is not None and row.pk in hub._members and not hub.deaf and not hub._marks and marked


class Waiter:
    """Somebody who waits for the end of ``row`` in a thread of their own, and by now for notices alone. ``statements``: what it
    has asked the database."""

    def __init__(self, row: WorkflowInstance, wait: Callable[[WorkflowInstance], Any] | None = None) -> None:
        self.statements: list[str] = []
        self._row = WorkflowInstance.objects.get(pk=row.pk)
        self._wait = wait or (lambda instance: instance.result(timeout=60))
        self.task = Task(self._run)
        eventually(lambda: hears(row) or self.task.error, "hearing")
        assert self.task.error is None, self.task.error

    def _run(self) -> Any:
        with connection.execute_wrapper(self._note):
            return self._wait(self._row)

    def _note(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        self.statements.append(sql)
        return execute(sql, params, many, context)


def threads_of_hearing() -> int:
    """How many threads hear for those who wait."""
    return sum(thread.name == hearing.THREAD for thread in threading.enumerate())
