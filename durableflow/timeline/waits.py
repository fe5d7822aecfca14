"""What an instance waits for: one view for REST, admin and command line (design 8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Value
from django.db.models.functions import Coalesce

from durableflow.core import clock
from durableflow.core.statuses import PendingStatus
from durableflow.models import PendingEvent, WorkflowInstance


@dataclass(frozen=True, kw_only=True)
class WaitView:
    """One wait: what answers it, who may decide it, until when, and the decision.

    ``status``: as everybody must read it, so ``timed_out`` from the deadline on, even if no worker was up. ``deadline``: of a
    paused instance, as it would be if that was resumed now. ``users``,
    ``groups``: names. ``types``: event types that answer it, empty for an approval.
    """

    pending_event: int
    step: int | None
    kind: str
    name: str
    count: int
    status: str
    types: tuple[str, ...]
    title: str
    deadline: datetime | None
    users: tuple[str, ...]
    groups: tuple[str, ...]
    permission: str
    allow_requester: bool
    approved: bool | None
    comment: str
    decided_by: str
    decided_at: datetime | None
    opened: datetime
    closed: datetime | None

    @property
    def is_open(self) -> bool:
        """Whether it can still be answered."""
        return self.status == PendingStatus.OPEN


def views_of(instance: WorkflowInstance, steps: Iterable[int] | None = None) -> list[WaitView]:
    """The waits of the instance's present run in the order in which they opened; those of some steps only.

    Three queries.
    """
    rows = instance.pending_events.filter(run_number=instance.run_number)
    if steps is not None:
        rows = rows.filter(step__in=list(steps))
    return [view_of(row) for row in rows.defer("context", "data").prefetch_related("users", "groups").order_by("id")]


def view_of(row: PendingEvent) -> WaitView:
    """The view of one pending event; its users and groups should be prefetched."""
    return WaitView(
        pending_event=row.pk,
        step=row.step_id,
        kind=row.kind,
        name=row.name,
        count=row.count,
        status=str(row.current_status),
        types=tuple(row.types),
        title=row.title,
        deadline=row.current_deadline,
        users=tuple(sorted(user.get_username() for user in row.users.all())),
        groups=tuple(sorted(group.name for group in row.groups.all())),
        permission=row.permission,
        allow_requester=row.allow_requester,
        approved=row.approved,
        comment=row.comment,
        decided_by=row.decided_by_name,
        decided_at=row.decided_at,
        opened=row.opened,
        closed=row.closed,
    )


def open_waits(instance: WorkflowInstance) -> list[dict[str, Any]]:
    """The waits that can be answered now, as plain rows in the order in which they opened: one query."""
    rows: Any = PendingEvent.objects.using(instance._state.db).open().filter(instance=instance.pk)
    rows = rows.filter(run_number=instance.run_number).annotate(scope=Coalesce("step__scope", Value("")))
    return list(rows.order_by("id").values("id", "name", "count", "kind", "types", "title", "deadline", "scope"))


def waiting_for(instance: WorkflowInstance, waits: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """What the instance waits for: ``{"pending_event", "name", "count", "kind", "types", "title", "deadline"}`` per
    open wait. While it is paused the deadline is what it would be if it was resumed now.

    ``waits``: what ``open_waits`` gave already.
    """
    found = open_waits(instance) if waits is None else waits
    return [
        {
            "pending_event": row["id"],
            **{key: row[key] for key in row if key not in ("id", "scope")},
            "deadline": clock.running_on(row["deadline"], instance.paused_at),
        }
        for row in found
    ]


def waited_types(instance: WorkflowInstance) -> list[str]:
    """The event types that an open wait of the instance takes now, sorted (case EVT-08)."""
    return sorted({type for row in open_waits(instance) for type in row["types"]})
