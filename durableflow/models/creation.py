"""Creating instances: one statement that leaves the caller's transaction usable (design 9)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from django.db import connections, models, router

from durableflow.core import clock, codec, dispatch
from durableflow.core.conf import get_settings
from durableflow.core.exceptions import CodecError, LimitExceeded
from durableflow.core.names import check_instance_id
from durableflow.core.retries import Retention
from durableflow.core.statuses import Status, Trigger, Via
from durableflow.core.transactions import write_transaction
from durableflow.models.history import HistoryEntry
from durableflow.models.instance import WorkflowInstance
from durableflow.models.instance_fields import Priority, Who
from durableflow.models.permissions import name_of, row_of

ROWS_AT_ONCE: Final = 500
PARAMETERS: Final = 32_000
"""Of one statement: SQLite takes 32,766."""


@dataclass(frozen=True, kw_only=True)
class NewInstance:
    """What a new instance shall be. ``start_at``: None (now), a duration from now, or an aware moment. ``previous_names``:
    of its workflow; an id that is taken under one of them is taken. ``schedule``: the row that starts it, with its ``cron`` line;
    ``scheduled_for``: for this slot, which starts one instance at most."""

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
    schedule: Any = None
    scheduled_for: datetime | None = None
    cron: str = ""
    reason: str = ""

    @property
    def origin(self) -> dict[str, Any]:
        """What the first entry of its history says."""
        data: dict[str, Any] = {"trigger": str(self.trigger)}
        if self.schedule is not None:
            data |= {"schedule": self.schedule.name, "cron": self.cron}
        if self.scheduled_for is not None:
            data["slot"] = self.scheduled_for.isoformat()
        return data


def database() -> str:
    """The alias of the database in which the tables live (design 2, last line)."""
    return router.db_for_write(WorkflowInstance)


def insert(new: NewInstance) -> WorkflowInstance | None:
    """Insert an instance with its first history entry; None if its id (or its request key, or its slot) is taken.

    Part of the caller's transaction: it starts after the commit, or never. Raises ValueError for a bad id, CodecError
    and LimitExceeded for params that cannot be stored; then nothing is stored.
    """
    using = database()
    row = check(new)
    with write_transaction(using):
        _set_times(row, new, clock.read(using))
        pk = insert_rows([row], using, new.previous_names).get(row.instance_id)
        if pk is None:
            return None
        entry = HistoryEntry(
            instance_id=pk,
            run_number=1,
            type="workflow_queued",
            data=new.origin,
            actor=row_of(new.created_by),
            actor_name=row.created_by_name,
            via=new.via,
            reason=new.reason,
            at=row.created,
        )
        entry.save(using=using, force_insert=True)
    _stored(row, pk, using)
    dispatch.wake(using)
    return row


class Taken(StrEnum):
    """Why an entry of many has not been inserted."""

    EXISTS = "exists"
    """Its id (or its request key) was taken before."""
    REPEATED = "repeated"
    """An earlier entry of the same call has its id."""


def insert_many(new: Sequence[NewInstance], *, batch_size: int = ROWS_AT_ONCE) -> list[WorkflowInstance | Taken]:
    """Insert instances of one workflow in few statements: for each entry, in the order given, its row, or why there is none.

    All entries are checked first: ValueError, TypeError, CodecError and LimitExceeded name the entry (from 0), and nothing is
    stored. Then one transaction (a savepoint of the caller's, which stays usable) writes all that is free; it may be rolled back
    by whoever wants all or nothing. ``batch_size``: rows of one statement, at most. The rows are written in the order of their
    ids, so that batches that overlap wait for each other and cannot deadlock (case BAT-01).
    """
    if not new:
        return []
    if len({(entry.workflow, str(entry.trigger), str(entry.via)) for entry in new}) > 1:
        raise ValueError("insert_many() takes instances of one workflow, one trigger and one door at a time.")
    using = database()
    rows = [_check_at(position, entry) for position, entry in enumerate(new)]
    first: dict[str, int] = {}
    for position, row in enumerate(rows):
        first.setdefault(row.instance_id, position)
    with write_transaction(using):
        now = clock.read(using)
        for row, entry in zip(rows, new, strict=True):
            _set_times(row, entry, now)
        ordered = [rows[position] for _id, position in sorted(first.items())]
        found = insert_rows(ordered, using, new[0].previous_names, at_once=batch_size)
        written = [row for row in ordered if row.instance_id in found]
        for some in _portions(written, min(batch_size, ROWS_AT_ONCE)):
            _first_entries(using, [found[row.instance_id] for row in some], new[0])
    for row in written:
        _stored(row, found[row.instance_id], using)
    if written:
        dispatch.wake(using)
    return [
        Taken.REPEATED if first[row.instance_id] != position else row if row.instance_id in found else Taken.EXISTS
        for position, row in enumerate(rows)
    ]


def check(new: NewInstance) -> WorkflowInstance:
    """The row of a new instance, without its times, all of it checked; nothing is stored. Raises ValueError, TypeError,
    CodecError, LimitExceeded."""
    row = row_for(new)
    codec.dumps(new.params, what=f"params of {row.label}", max_bytes=get_settings().LIMITS.params)
    return row


@contextmanager
def at_entry(position: int) -> Iterator[None]:
    """Whatever is wrong with one entry of many says which one it is, from 0."""
    try:
        yield
    except (ValueError, TypeError, CodecError, LimitExceeded) as error:
        error.args = (f"Entry {position}: {error}",)
        raise


def _check_at(position: int, new: NewInstance) -> WorkflowInstance:
    with at_entry(position):
        return check(new)


def _stored(row: WorkflowInstance, pk: int, using: str) -> None:
    row.pk = pk
    row._state.adding = False
    row._state.db = using


def _first_entries(using: str, pks: Sequence[int], new: NewInstance) -> None:
    """The first history entry of instances that have just been written, by one statement."""
    history, instances = HistoryEntry._meta.db_table, WorkflowInstance._meta.db_table
    sql = f"""
        INSERT INTO {history} (instance_id, run_number, type, kind, step, data, actor_id, actor_name, via, reason, at)
        SELECT id, 1, 'workflow_queued', '', '', %s, created_by_id, created_by_name, %s, '', created
        FROM {instances} WHERE id IN ({", ".join(["%s"] * len(pks))}) ORDER BY id"""  # noqa: S608
    with connections[using].cursor() as cursor:
        cursor.execute(sql, [codec.dumps({"trigger": str(new.trigger)}), str(new.via), *pks])


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
        schedule=new.schedule,
        scheduled_for=new.scheduled_for,
        cron=new.cron,
    )


def _set_times(row: WorkflowInstance, new: NewInstance, now: datetime) -> None:
    """Derive all moments from one, which was read from the database's clock (on SQLite under the write lock)."""
    row.created = now
    start = new.start_at
    asked = now if start is None else start if isinstance(start, datetime) else now + start
    # A moment in the past means now: it neither goes ahead of those who wait longer, nor takes of max_duration.
    row.wake_at = max(now, asked)
    row.starts_at = None if start is None else row.wake_at
    row.deadline_at = None if new.max_duration is None else row.wake_at + new.max_duration


def insert_rows(
    rows: Sequence[WorkflowInstance], using: str, previous_names: tuple[str, ...], *, at_once: int = ROWS_AT_ONCE
) -> dict[str, int]:
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
    found: dict[str, int] = {}
    for some in _portions(rows, min(at_once, PARAMETERS // len(fields))):
        some = _free(some, using, previous_names)
        if not some:
            continue
        values = [field.get_db_prep_save(getattr(row, field.attname), connection) for row in some for field in fields]
        marks = ", ".join([f"({', '.join(['%s'] * len(fields))})"] * len(some))
        sql = f"INSERT INTO {table} ({names}) VALUES {marks} ON CONFLICT DO NOTHING RETURNING instance_id, id"  # noqa: S608
        with connection.cursor() as cursor:
            cursor.execute(sql, values)
            found |= dict(cursor.fetchall())
    return found


def _free(rows: Sequence[WorkflowInstance], using: str, previous_names: tuple[str, ...]) -> Sequence[WorkflowInstance]:
    """Those whose ids are not taken under a previous name."""
    if not previous_names:
        return rows
    stored: models.QuerySet[Any] = WorkflowInstance._base_manager.using(using)
    taken = stored.filter(workflow__in=previous_names, instance_id__in=[row.instance_id for row in rows])
    known = set(taken.values_list("instance_id", flat=True))
    return [row for row in rows if row.instance_id not in known]


def _portions(rows: Sequence[WorkflowInstance], size: int) -> Iterator[Sequence[WorkflowInstance]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


__all__ = ["NewInstance", "Taken", "at_entry", "check", "database", "insert", "insert_many", "insert_rows", "row_for"]
