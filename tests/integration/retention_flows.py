"""Finished instances of a given age, for the tests of retention and purge."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from durableflow import Retention, Step, Workflow, WorkflowEvent
from durableflow.core import clock
from durableflow.models import WorkflowInstance
from durableflow.operations.purge import Purge

Status = WorkflowInstance.Status


class Kept(Workflow[Any, Any]):
    """With a Meta of its own: ten days, errored ones twenty."""

    class Meta:
        name = "ret-kept"
        previous_names = ("ret-kept-before",)
        retention = Retention(success="10 days", error="20 days")

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.do("work", lambda: event.params)


class Half(Workflow[Any, Any]):
    """Says only how long failed ones stay."""

    class Meta:
        name = "ret-half"
        retention = Retention(error="5 days")

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return event.params


class Plain(Workflow[Any, Any]):
    """As the settings say: 30 days, errored ones 90."""

    class Meta:
        name = "ret-plain"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return event.params


def ended(row: WorkflowInstance, status: str, days: float) -> WorkflowInstance:
    """Let it have ended so long ago."""
    WorkflowInstance.objects.filter(pk=row.pk).update(
        status=status, wake_at=None, finished=clock.read("default") - timedelta(days=days)
    )
    return row


def old(number: int, workflow: Any = Plain, status: str = Status.COMPLETE, days: float = 400) -> list[WorkflowInstance]:
    """So many that have ended long ago, the first one first."""
    rows = workflow.bulk_create(range(number), instance_id=lambda n: f"o-{n:05}")
    now = clock.read("default")
    for position, row in enumerate(rows):
        row.status, row.wake_at = status, None
        row.finished = now - timedelta(days=days, seconds=-position)
    WorkflowInstance.objects.bulk_update(rows, ["status", "wake_at", "finished"], batch_size=50)
    return list(rows)


def left() -> list[str]:
    """Ids of those that are still there."""
    return sorted(WorkflowInstance.objects.values_list("instance_id", flat=True))


def purge_and_hang(where: str) -> None:
    """A purge that stops in its second transaction, before or after what it deletes there, until somebody kills it."""
    collect, calls = Purge._collect, 0

    def hanging(self: Purge, pks: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2 and where == "before":
            _hang()
        collect(self, pks)
        if calls == 2:
            _hang()

    Purge._collect = hanging  # type: ignore[method-assign]
    work = Purge("default", size=20)
    while work.batch():
        pass


def _hang() -> None:
    print("there", flush=True)  # noqa: T201
    time.sleep(600)
