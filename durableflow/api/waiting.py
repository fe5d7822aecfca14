"""``?wait=``: hold a request until an instance has come to rest, or its history has grown."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from functools import partial
from typing import Any

from django.db.models import Exists, OuterRef

from durableflow.core import clock
from durableflow.core.statuses import FINISHED, Status
from durableflow.core.transactions import alias_of
from durableflow.models import SentEvent, WorkflowInstance
from durableflow.models.following import Follower
from durableflow.models.watching import wait_until


def until_at_rest(instance: WorkflowInstance, seconds: float) -> None:
    """Return when the instance is at rest, is gone, or ``seconds`` are over.

    At rest: it has ended, is paused, or waits, and nothing is on its way to it: no due time has come and no event or
    decision is undelivered. Does not poll on PostgreSQL (``models.watching``). Must not run in a transaction, in which nothing
    new would show.
    """
    wait_until(instance, partial(_at_rest, instance), seconds)


def until_told(instance: WorkflowInstance, after: int, types: Collection[str] | None, seconds: float) -> None:
    """Return when the history has an entry after ``after``, of ``types``, when the instance has ended or is gone, or when
    ``seconds`` are over. Does not poll on PostgreSQL (``models.watching``). Must not run in a transaction."""
    with closing(Follower(instance, after, types).batches(every=seconds)) as batches:
        next(batches, None)


def _at_rest(instance: WorkflowInstance) -> bool:
    using = alias_of(instance)
    on_the_way = SentEvent.objects.using(using).filter(instance=OuterRef("pk"), delivered=False)
    rows: Any = WorkflowInstance.objects.using(using).filter(pk=instance.pk)
    # One statement: a delivery between two would show neither the event on its way nor the instance that it has made due.
    row = rows.values("status", "wake_at", sent=Exists(on_the_way)).first()
    if row is None or row["status"] in FINISHED or row["status"] == Status.PAUSED:
        return True
    if row["status"] != Status.WAITING or (row["wake_at"] is not None and row["wake_at"] <= clock.host_now()):
        return False
    return not row["sent"]
