"""Deleting instances: Django's own collector, after the rows are locked (design 9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import models

from durableflow.core.statuses import FINISHED
from durableflow.core.transactions import write_transaction
from durableflow.models import family, limits


@contextmanager
def removing(rows: models.QuerySet[Any]) -> Iterator[list[Any]]:
    """A transaction that has locked these instances (their limits first, then ascending keys) and gives back the slots that
    they held; their parents and children are told (case CHD-04). Yields their primary keys; the body deletes them."""
    using = rows.db
    with write_transaction(using):
        limits.lock_slots_of(rows)
        locked = list(
            rows.order_by("pk")
            .select_for_update()  # FOR UPDATE
            .values_list("pk", "concurrency_key", "holds_slot", "workflow", "instance_id", "parent_step_id", "status")
        )
        pks = [row[0] for row in locked]
        for pk, _, _, workflow, instance_id, parent_step, status in locked:
            if parent_step is not None and status not in FINISHED:  # one that has ended has told it then
                family.tell_parent(using, pk, f"{workflow}/{instance_id}", family.DELETED, parent_step)
        family.end_children(using, pks, "was deleted")
        yield pks
        for key, count in sorted(Counter(row[1] for row in locked if row[2]).items()):
            limits.free(using, rows.model._meta.db_table, key, count)
