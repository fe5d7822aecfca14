"""The records of children in the parent's journal, in SQL (design 2, 7). Each function is a part of a fenced transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from durableflow.core import codec
from durableflow.core.statuses import Hold, Status, StepKind
from durableflow.engine.journal import Identity, Record
from durableflow.engine.lease import Claim, Lease
from durableflow.engine.sql import HISTORY, INSTANCE, STEP, any_of, is_postgres, moment, now_of, run, stored
from durableflow.engine.steps import COLUMNS

_STORED: Final = "id, status, output, error, wake_at, finished, attempts, attempts_before_retry, remaining"
_INSERT: Final = f"INSERT INTO {STEP} ({COLUMNS}, remaining)"
_ITEMS: Final = f"instance_id = %s AND run_number = %s AND scope = %s AND kind = '{StepKind.CHILD.value}' AND name = %s"
_IDENTITY: Final = "instance_id = %s AND run_number = %s AND scope = %s AND kind = %s AND name = %s AND count = %s"


@dataclass(frozen=True, slots=True)
class Stored:
    """A child's record, or a join's, as it is stored. ``output`` and ``error`` are texts; ``finished``: of a child, when it had
    ended."""

    pk: int
    status: str
    output: str | None
    error: str | None
    wake_at: datetime | None
    finished: datetime | None
    attempts: int
    attempts_before_retry: int
    remaining: int | None

    @property
    def reset(self) -> bool:
        """Whether an operator's ``retry()`` wants the child anew, and nobody has seen to it yet."""
        return self.status == "pending" and self.attempts == self.attempts_before_retry


def read(lease: Lease, claim: Claim, identity: Identity) -> Stored | None:
    """The record as it is stored now, None before it was written."""
    rows = run(lease.using, f"SELECT {_STORED} FROM {STEP} WHERE {_IDENTITY}", [lease.pk, claim.run_number, *identity])
    return _stored(rows[0]) if rows else None


def read_all(lease: Lease, claim: Claim, scope: str, name: str) -> dict[int, Stored]:
    """The records of a join's children, by their position."""
    rows = run(
        lease.using,
        f"""SELECT count, {_STORED} FROM {STEP}
            WHERE {_ITEMS}""",
        [lease.pk, claim.run_number, scope, name],
    )
    return {row[0]: _stored(row[1:]) for row in rows}


def _stored(row: Sequence[Any]) -> Stored:
    pk, status, output, error, wake_at, finished, *numbers = row
    return Stored(pk, status, output, error, moment(wake_at), moment(finished), *numbers)


def insert(
    lease: Lease,
    claim: Claim,
    record: Record,
    now: datetime,
    *,
    status: str = "pending",
    output: str | None = None,
    attempts: int = 1,
    remaining: int | None = None,
) -> int:
    """Write a record, of a child or of a join; its key. One that ``retry()`` has reset is written over.

    ``attempts``: of a child, how often it was started; of a join, up to which position its children are not parked.
    """
    at = stored(lease.using, now)
    finished = at if status != "pending" else None
    values = [
        lease.pk, claim.run_number, *record.identity, record.seq, record.execution, record.key_run, status, False, record.config,
        output, None, attempts, 0, False, stored(lease.using, record.wake_at), lease.token, at, finished, "", 0, remaining,
    ]  # fmt: skip
    sql = f"""{_INSERT} VALUES ({", ".join(["%s"] * len(values))})
        ON CONFLICT (instance_id, run_number, scope, kind, name, count) DO UPDATE SET
            status = excluded.status, config = excluded.config, output = excluded.output, error = NULL, wake_at = excluded.wake_at,
            attempts = {STEP}.attempts + 1, token = excluded.token, finished = excluded.finished, remaining = excluded.remaining
        RETURNING id"""
    ((pk,),) = run(lease.using, sql, values)
    return int(pk)


def insert_all(lease: Lease, claim: Claim, records: Sequence[Record], now: datetime) -> list[int]:
    """Write the records of a join's children, which differ in position and order alone; their keys, in that order."""
    first = records[0]
    at = stored(lease.using, now)
    values = [
        lease.pk, claim.run_number, first.identity.scope, first.identity.kind, first.identity.name, first.execution, first.key_run,
        first.config, lease.token, at, json.dumps([[record.identity.count, record.seq] for record in records]),
    ]  # fmt: skip
    if is_postgres(lease.using):
        count, seq, those = "(x->>0)::int", "(x->>1)::int", "json_array_elements(%s::json) AS x"
        casts = ["bigint", "int", "text", "text", "text", "int", "int", "text", "bigint", "timestamptz"]
    else:
        count, seq, those = "json_extract(x.value, '$[0]')", "json_extract(x.value, '$[1]')", "json_each(%s) AS x"
        casts = []
    marks = [f"%s::{cast}" for cast in casts] or ["%s"] * 10
    instance, run_number, scope, kind, name, execution, key_run, config, token, started = marks
    # The marks stand in the order of ``values``.
    sql = f"""
        WITH v (instance_id, run_number, scope, kind, name, execution, key_run, config, token, started) AS (
            SELECT {instance}, {run_number}, {scope}, {kind}, {name}, {execution}, {key_run}, {config}, {token}, {started}
        )
        {_INSERT}
        SELECT v.instance_id, v.run_number, v.scope, v.kind, v.name, {count}, {seq}, v.execution, v.key_run, 'pending', false,
            v.config, NULL, NULL, 1, 0, false, NULL, v.token, v.started, NULL, '', 0, NULL
        FROM v, {those} RETURNING count, id"""
    found: dict[int, int] = dict(run(lease.using, sql, values))
    return [found[record.identity.count] for record in records]


def tell(lease: Lease, claim: Claim, identity: Identity, type: str, data: dict[str, Any]) -> None:
    """Write a history entry of the parent."""
    now, at = now_of(lease.using)
    sql = f"""INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, data, actor_name, via, reason, at)
              VALUES (%s, %s, %s, %s, %s, %s, '', 'engine', '', {now})"""
    text = codec.dumps(data, what="data")
    run(lease.using, sql, [lease.pk, claim.run_number, type, identity.kind, identity.label, text, *at])


@dataclass(frozen=True, slots=True)
class Latest:
    """The child that was started last for a record."""

    pk: int
    step: int
    workflow: str
    instance_id: str
    status: str
    undone: bool

    @property
    def over(self) -> bool:
        """Whether nothing is left of it to go on from: it was terminated, or what it had done was undone."""
        return self.status == Status.TERMINATED or (self.status == Status.ERRORED and self.undone)


def latest(using: str, steps: Sequence[int]) -> dict[int, Latest]:
    """The latest child of each of these records, where there is one."""
    among, params = any_of(using, "parent_step_id", steps)
    sql = f"""SELECT id, parent_step_id, workflow, instance_id, status, rollback IS NOT NULL FROM {INSTANCE}
        WHERE {among} ORDER BY id"""
    return {row[1]: Latest(*row) for row in run(using, sql, params)}


def reset_of(lease: Lease, claim: Claim, scope: str, name: str) -> dict[int, int]:
    """The keys of those children's records of a join that ``retry()`` has reset, by their position."""
    sql = f"SELECT count, id FROM {STEP} WHERE {_ITEMS} AND status = 'pending' AND attempts = attempts_before_retry"
    return dict(run(lease.using, sql, [lease.pk, claim.run_number, scope, name]))


def recount(lease: Lease, claim: Claim, join: int, scope: str, name: str) -> None:
    """Write anew how many children a join waits for, and up to which position none of them is parked."""
    sql = f"""SELECT count(*), min(CASE WHEN c.hold = '{Hold.WINDOW.value}' THEN s.count END), max(s.count)
        FROM (SELECT id, count FROM {STEP} WHERE {_ITEMS} AND status = 'pending') AS s
        LEFT JOIN {INSTANCE} AS c ON c.parent_step_id = s.id AND c.finished IS NULL"""
    ((remaining, parked, last),) = run(lease.using, sql, [lease.pk, claim.run_number, scope, name])
    reached = last if parked is None else parked - 1
    run(lease.using, f"UPDATE {STEP} SET remaining = %s, attempts = %s WHERE id = %s", [remaining, reached or 0, join])


def calm(lease: Lease, claim: Claim) -> None:
    """Progress was made: workers that were lost before do not count any more."""
    if claim.interruptions or claim.give_backs:
        run(lease.using, f"UPDATE {INSTANCE} SET interruptions = 0, give_backs = 0 WHERE id = %s", [lease.pk])
