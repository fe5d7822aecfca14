"""Deleting instances: Django's own collector, after the rows are locked (design 9)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import models, transaction

from durableflow.core import notices
from durableflow.core.names import check_text
from durableflow.core.statuses import FINISHED, Via
from durableflow.core.transactions import alias_of, write_transaction
from durableflow.models import family, limits
from durableflow.models.instance_fields import HEAVY, Who
from durableflow.models.permissions import DELETE, name_of, require

audit = logging.getLogger("durableflow.audit")


def delete_instance(instance: Any, *, by: Who = None, reason: str = "", via: str = Via.CODE) -> None:
    """Delete an instance with all that belongs to it, whatever its status (design 9, case LIF-13): ``delete()`` as a verb, with
    a right and an audit.

    One transaction: lock (the limit first), check the right ``delete_workflowinstance``, delete. What a worker still does for it
    finds no row and is dropped; its parent and its children are told. Its id is free at once. Its history goes with it, so that
    the logger ``durableflow.audit`` says after the commit who has deleted it. Raises DoesNotExist, PermissionDenied, ValueError
    for a reason that cannot be stored.
    """
    check_text("reason", reason)
    using = alias_of(instance)
    rows = type(instance)._base_manager.using(using).filter(pk=instance.pk)
    with write_transaction(using):
        limits.lock_slots_of(rows)
        row = rows.select_for_update().defer(*HEAVY).get()
        require(by, DELETE, row, f"delete {row.label}")
        log_deletion(row, by=by, reason=reason, via=via)
        row.delete()


def log_deletion(row: Any, *, by: Who, reason: str, via: str) -> None:
    """Say who deletes an instance, once that is committed: its own history goes with it."""
    extra = {"instance": row.pk, "workflow": row.workflow, "instance_id": row.instance_id}
    extra |= {"actor": name_of(by), "reason": reason, "via": str(via)}
    told = (row.label, name_of(by) or "code", str(via), reason or "none given")
    transaction.on_commit(
        lambda: audit.info("%s was deleted by %s via %s. Reason: %s", *told, extra=extra),
        using=row._state.db,
        robust=True,
    )


@contextmanager
def removing(rows: models.QuerySet[Any]) -> Iterator[list[Any]]:
    """A transaction that has locked these instances (their limits first, then ascending keys) and gives back the slots that
    they held; their parents and children are told (case CHD-04). Yields their primary keys; the body deletes them."""
    using = rows.db
    with write_transaction(using):
        limits.lock_slots_of(rows)
        columns = ("pk", "concurrency_key", "holds_slot", "workflow", "instance_id", "parent_step_id", "status")
        locked = list(
            rows.order_by("pk")
            .select_for_update()
            .values_list(*columns, "followed_until", "awaited_until")  # FOR UPDATE
        )
        pks = [row[0] for row in locked]
        for pk, _, _, workflow, instance_id, parent_step, status, *marks in locked:
            if parent_step is not None and status not in FINISHED:  # one that has ended has told it then
                family.tell_parent(using, pk, f"{workflow}/{instance_id}", family.DELETED, parent_step)
            if notices.marked(*marks):
                notices.give(using, pk)  # after the commit
        family.end_children(using, pks, "was deleted")
        yield pks
        for key, count in sorted(Counter(row[1] for row in locked if row[2]).items()):
            limits.free(using, rows.model._meta.db_table, key, count)
