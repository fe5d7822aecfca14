"""Deleting instances: Django's own collector, after the rows are locked (design 9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import models

from durableflow.core.transactions import write_transaction
from durableflow.models import limits


@contextmanager
def removing(rows: models.QuerySet[Any]) -> Iterator[list[Any]]:
    """A transaction that has locked these instances (their limits first, then ascending keys) and gives back the slots that
    they held. Yields their primary keys; the body deletes them."""
    using = rows.db
    with write_transaction(using):
        limits.lock_slots_of(rows)
        locked = list(
            rows.order_by("pk").select_for_update().values_list("pk", "concurrency_key", "holds_slot")  # FOR UPDATE
        )
        yield [pk for pk, _, _ in locked]
        for key, count in sorted(Counter(key for _, key, holds_slot in locked if holds_slot).items()):
            limits.free(using, rows.model._meta.db_table, key, count)
