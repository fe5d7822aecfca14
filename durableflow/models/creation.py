"""Creating instances: one statement that leaves the caller's transaction usable (design 9)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections, models, router

from durableflow.core import clock, codec, dispatch
from durableflow.core.conf import get_settings
from durableflow.core.names import check_instance_id
from durableflow.core.retries import Retention
from durableflow.core.statuses import Status, Trigger, Via
from durableflow.core.transactions import write_transaction
from durableflow.models.history import HistoryEntry
from durableflow.models.instance import WorkflowInstance
from durableflow.models.instance_fields import Priority, Who
from durableflow.models.permissions import name_of, row_of

ROWS_AT_ONCE: Final = 300
"""Rows of one INSERT: SQLite takes 32,766 parameters."""


@dataclass(frozen=True, kw_only=True)
class NewInstance:
    """What a new instance shall be. ``start_at``: None (now), a duration from now, or an aware moment. ``previous_names``:
    of its workflow; an id that is taken under one of them is taken."""

    workflow: str
    previous_names: tuple[str, ...] = ()
    params: Any = None
    instance_id: str | None = None
    start_at: datetime | timedelta | None = None
    priority: int = Priority.NORMAL
    retention: Retention | None = None
    max_duration: timedelta | None = None
    code_version: int = 0
    concurrency_key: str = ""
    created_by: Who = None
    trigger: str = Trigger.CODE
    via: str = Via.CODE
    request_key: str = ""
    request_digest: str = ""


def database() -> str:
    """The alias of the database in which the tables live (design 2, last line)."""
    return router.db_for_write(WorkflowInstance)


def insert(new: NewInstance) -> WorkflowInstance | None:
    """Insert an instance with its first history entry; None if its id (or its request key) is taken.

    Part of the caller's transaction: it starts after the commit, or never. Raises ValueError for a bad id, CodecError
    and LimitExceeded for params that cannot be stored; then nothing is stored.
    """
    using = database()
    row = row_for(new)
    codec.dumps(new.params, what=f"params of {row.label}", max_bytes=get_settings().LIMITS.params)
    with write_transaction(using):
        _set_times(row, new, using)
        pk = insert_rows([row], using, new.previous_names).get(row.instance_id)
        if pk is None:
            return None
        entry = HistoryEntry(
            instance_id=pk,
            run_number=1,
            type="workflow_queued",
            data={"trigger": str(new.trigger)},
            actor=row_of(new.created_by),
            actor_name=row.created_by_name,
            via=new.via,
            at=row.created,
        )
        entry.save(using=using, force_insert=True)
    row.pk = pk
    row._state.adding = False
    row._state.db = using
    dispatch.wake(using)
    return row


def row_for(new: NewInstance) -> WorkflowInstance:
    """The row of a new instance, without its times; nothing is stored. Raises ValueError, TypeError."""
    instance_id = check_instance_id(new.instance_id) if new.instance_id is not None else str(uuid.uuid4())
    priority = Priority(new.priority)
    if new.created_by is not None and not hasattr(new.created_by, "is_authenticated"):
        raise TypeError(f"created_by must be a user (or None), not {new.created_by!r}.")
    return WorkflowInstance(
        workflow=new.workflow,
        instance_id=instance_id,
        seed=uuid.uuid4(),
        status=Status.QUEUED,
        params=new.params,
        priority=priority,
        claim_class=2 * priority + 1,
        created_by=row_of(new.created_by),
        created_by_name=name_of(new.created_by),
        trigger=new.trigger,
        code_version=new.code_version,
        concurrency_key=new.concurrency_key,
        retention_success=None if new.retention is None else new.retention.success,
        retention_error=None if new.retention is None else new.retention.error,
        request_key=new.request_key,
        request_digest=new.request_digest,
    )


def _set_times(row: WorkflowInstance, new: NewInstance, using: str) -> None:
    """Read the database's clock once, under the write lock on SQLite, and derive all moments from it."""
    now = clock.read(using)
    row.created = now
    start = new.start_at
    asked = now if start is None else start if isinstance(start, datetime) else now + start
    # A moment in the past means now: it neither goes ahead of those who wait longer, nor takes of max_duration.
    row.wake_at = max(now, asked)
    row.starts_at = None if start is None else row.wake_at
    row.deadline_at = None if new.max_duration is None else row.wake_at + new.max_duration


def insert_rows(rows: Sequence[WorkflowInstance], using: str, previous_names: tuple[str, ...]) -> dict[str, int]:
    """Insert instances of one workflow whose ids are free, in their order: the primary keys by instance_id of those that were.

    ``INSERT .. ON CONFLICT DO NOTHING RETURNING id``, which the ORM cannot say.

    Two creators that know the present name meet at the unique constraint. A row under a previous name was committed by a
    creator that knew no other, so that it is enough to look for it.
    """
    connection = connections[using]
    meta = WorkflowInstance._meta
    fields: list[models.Field[Any, Any]] = [field for field in meta.concrete_fields if not field.primary_key]
    names = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    table = connection.ops.quote_name(meta.db_table)
    if previous_names:
        stored: models.QuerySet[Any] = WorkflowInstance._base_manager.using(using)
        ids = [row.instance_id for row in rows]
        taken = stored.filter(workflow__in=previous_names, instance_id__in=ids).values_list("instance_id", flat=True)
        known = set(taken)
        rows = [row for row in rows if row.instance_id not in known]
    found: dict[str, int] = {}
    for start in range(0, len(rows), ROWS_AT_ONCE):
        some = rows[start : start + ROWS_AT_ONCE]
        values = [field.get_db_prep_save(getattr(row, field.attname), connection) for row in some for field in fields]
        marks = ", ".join([f"({', '.join(['%s'] * len(fields))})"] * len(some))
        sql = f"INSERT INTO {table} ({names}) VALUES {marks} ON CONFLICT DO NOTHING RETURNING instance_id, id"  # noqa: S608
        with connection.cursor() as cursor:
            cursor.execute(sql, values)
            found |= dict(cursor.fetchall())
    return found


__all__ = ["NewInstance", "database", "insert", "insert_rows", "row_for"]
