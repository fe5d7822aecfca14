"""A workflow that waits for an approval, and looks at what becomes of it."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from durableflow import (
    Step,
    Workflow,
    WorkflowEvent,
    drain,
)
from durableflow.models import PendingEvent, SentEvent, WorkflowInstance

Status = WorkflowInstance.Status


DECIDE = "durableflow.decide_pendingevent"


def flow(**options: Any) -> type[Workflow[Any, Any]]:
    """One approval with these options; gives back what was decided."""

    class ApprovalFlow(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            made = step.wait_for_approval("ok", **{"title": "Ok?", **options})
            return [made.approved, made.data, made.comment, made.by, made.by_id, made.via]

    return ApprovalFlow


def opened(created_by: User | None = None, **options: Any) -> PendingEvent:
    row = flow(**options).create(created_by=created_by)
    drain()
    row.refresh_from_db()
    assert row.status == Status.WAITING, row.error
    pending: PendingEvent = row.pending_events.get()
    return pending


def finished(pending: PendingEvent) -> Any:
    drain()
    pending.instance.refresh_from_db()
    assert pending.instance.status == Status.COMPLETE, pending.instance.error
    return pending.instance.output


def nothing_stored(pending: PendingEvent) -> bool:
    pending.refresh_from_db()
    return pending.status == "open" and pending.decided_at is None and not SentEvent.objects.exists()
