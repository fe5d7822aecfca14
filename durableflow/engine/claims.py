"""Claiming due instances by class (design 4, "Claim")."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from durableflow.core import clock
from durableflow.core.conf import get_settings
from durableflow.core.transactions import write_transaction
from durableflow.engine.lease import Claim, Lease, new_token, owner
from durableflow.engine.sql import ASYNC_COMMIT, HISTORY, INSTANCE, Rows, is_postgres, moment, run
from durableflow.models.instance_fields import CLAIM_CLASSES

OLDEST_EVERY: Final = 4
_turn = itertools.count(1)

_COLUMNS: Final = (
    "id, workflow, instance_id, run_number, execution, seed, params, created, scheduled_for, deadline_at, created_by_id, "
    "code_version, interruptions, give_backs"
)
_SET: Final = (
    "status = 'running', claim_class = 2 * priority, woken = {false}, suspect = {false}, hold = '', execution = execution + 1, "
    "interruptions = interruptions + CASE WHEN {row}lease_token IS NULL THEN 0 ELSE 1 END"
)


def claim(using: str, limit: int = 1, *, pk: int | None = None) -> list[Claim]:
    """Take up to ``limit`` due instances, best class first; each fourth time the oldest of all, so that nothing
    starves.

    A statement of its own: what it took is committed before anything runs. An expired lease counts as due and is taken
    over. ``pk``: this instance alone (the testing kit runs due work in an order of its own).
    """
    before = time.monotonic()
    oldest = pk is None and next(_turn) % OLDEST_EVERY == 0
    claim_rows = _claim_postgres if is_postgres(using) else _claim_sqlite
    rows = claim_rows(using, limit, oldest, "" if pk is None else f"AND id = {int(pk)}")
    return [_made(using, row, before) for row in rows]


def _made(using: str, row: tuple[Any, ...], before: float) -> Claim:
    (pk, workflow, instance_id, run_number, execution, seed, params, created, scheduled_for, deadline_at) = row[:10]
    (created_by_id, code_version, interruptions, give_backs, token, lost_token, now) = row[10:]
    created_at, now_at = moment(created), moment(now)
    if created_at is None or now_at is None:
        raise RuntimeError(f"{workflow}/{instance_id} has no creation time.")
    return Claim(
        lease=Lease(using, pk, token, f"{workflow}/{instance_id}", renewed=before),
        workflow=workflow,
        instance_id=instance_id,
        run_number=run_number,
        execution=execution,
        seed=UUID(str(seed)),
        params=params,
        created=created_at,
        scheduled_for=moment(scheduled_for),
        deadline_at=moment(deadline_at),
        created_by_id=created_by_id,
        code_version=code_version,
        interruptions=interruptions,
        give_backs=give_backs,
        now=now_at,
        lost_token=lost_token,
    )


def _claim_postgres(using: str, limit: int, oldest: bool, only: str) -> Rows:
    # NO KEY UPDATE: a business transaction that has checked a foreign key to the row must not hide it. The probe compares with
    # statement_timestamp(), because a volatile function cannot use the index.
    order = "ORDER BY x.wake_at LIMIT 1" if oldest else "LIMIT %s"
    probe = "1" if oldest else "%s"
    now = clock.postgres("clock")
    sql = f"""
        WITH due AS MATERIALIZED (
            SELECT x.id, x.lease_token FROM generate_series(0, {CLAIM_CLASSES[-1]}) AS k, LATERAL (
                SELECT id, lease_token, wake_at FROM {INSTANCE}
                WHERE claim_class = k AND wake_at <= {clock.postgres("statement")} {only}
                ORDER BY wake_at LIMIT {probe} FOR NO KEY UPDATE SKIP LOCKED
            ) AS x {order}
        ), taken AS (
            UPDATE {INSTANCE} AS i SET {_SET.format(false="false", row="i.")}, lease_token = %s + i.id, owner = %s,
                wake_at = {now} + make_interval(secs => %s), started = COALESCE(i.started, {now})
            FROM due WHERE i.id = due.id
            RETURNING {", ".join(f"i.{name}" for name in _COLUMNS.split(", "))}, i.lease_token, due.lease_token, {now}
        ), told AS (
            INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, actor_name, via, reason, at)
            SELECT id, run_number, 'workflow_started', '', '', '', 'engine', '', {now} FROM taken WHERE execution = 1
        )
        SELECT taken.*, {ASYNC_COMMIT} FROM taken"""
    limits = [] if oldest else [limit, limit]
    # One random number plus the key gives each row a token of its own.
    rows = run(using, sql, [*limits, new_token() // 2, owner(), float(get_settings().LEASE)])
    return [row[:-1] for row in rows]


def _claim_sqlite(using: str, limit: int, oldest: bool, only: str) -> Rows:
    now = clock.host_now()
    if not _due_sqlite(using, limit, oldest, only, clock.sqlite_text(now)):
        return []  # nothing is due: no write lock was taken
    rows: Rows = []
    with write_transaction(using):
        now = clock.host_now()
        text, end = clock.sqlite_text(now), clock.sqlite_text(now + timedelta(seconds=get_settings().LEASE))
        for pk, lost_token in _due_sqlite(using, limit, oldest, only, text):
            token = new_token()
            sql = f"""
                UPDATE {INSTANCE} SET {_SET.format(false="0", row="")}, lease_token = %s, owner = %s, wake_at = %s,
                    started = COALESCE(started, %s)
                WHERE id = %s RETURNING {_COLUMNS}"""
            (row,) = run(using, sql, [token, owner(), end, text, pk])
            if row[4] == 1:
                run(
                    using,
                    f"""INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, actor_name, via, reason, at)
                        VALUES (%s, %s, 'workflow_started', '', '', '', 'engine', '', %s)""",
                    [pk, row[3], text],
                )
            rows.append((*row, token, lost_token, text))
    return rows


def _due_sqlite(using: str, limit: int, oldest: bool, only: str, now: str) -> Rows:
    count = 1 if oldest else limit
    probes = " UNION ALL ".join(
        f"SELECT * FROM (SELECT id, lease_token, wake_at, claim_class FROM {INSTANCE} WHERE claim_class = {k} AND wake_at <= %s "
        f"{only} ORDER BY wake_at LIMIT {count})"
        for k in CLAIM_CLASSES
    )
    order = "wake_at" if oldest else "claim_class, wake_at"
    sql = f"SELECT id, lease_token FROM ({probes}) ORDER BY {order} LIMIT {count}"
    return run(using, sql, [now] * len(CLAIM_CLASSES))
