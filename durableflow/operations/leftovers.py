"""What no instance needs any more, beside the instances themselves (design 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.db.models import Exists, OuterRef, QuerySet

from durableflow.core import registry
from durableflow.core.statuses import Hold
from durableflow.core.transactions import write_transaction
from durableflow.models import ConcurrencyLimit, SentEvent, WorkflowInstance

ROWS_AT_ONCE: Final = 500


def leftovers(using: str, *, dry_run: bool = False) -> dict[str, int]:
    """Delete limits of which no slot is taken and for which nobody waits (the next claim makes the row anew), and what was sent
    to instances that are no more. How many rows of which model."""
    found = {}
    for rows_of in (_limits, _orphans):
        rows = rows_of(using)
        found[rows.model._meta.label] = rows.count() if dry_run else _delete(rows_of, using)
    return found


def _limits(using: str) -> QuerySet[Any]:
    """Limits of single keys; that of a whole workflow stays as long as the code knows it."""
    parked = WorkflowInstance.objects.using(using).filter(
        hold=Hold.LIMIT, wake_at__isnull=True, concurrency_key=OuterRef("key")
    )
    rows = ConcurrencyLimit.objects.using(using).filter(~Exists(parked), running=0)
    return rows.exclude(key__in=registry.names())


def _orphans(using: str) -> QuerySet[Any]:
    """Delivery drops them too; it looks only where somebody drains."""
    instance = WorkflowInstance.objects.using(using).filter(pk=OuterRef("instance_id"))
    return SentEvent.objects.using(using).filter(~Exists(instance), delivered=False)


def _delete(rows_of: Callable[[str], QuerySet[Any]], using: str) -> int:
    deleted = 0
    while True:
        with write_transaction(using):
            locked = rows_of(using).order_by("pk").select_for_update(skip_locked=True, of=("self",))
            pks = list(locked.values_list("pk", flat=True)[:ROWS_AT_ONCE])
            rows_of(using).filter(pk__in=pks).delete()
        deleted += len(pks)
        if len(pks) < ROWS_AT_ONCE:
            return deleted


__all__ = ["leftovers"]
