"""The statement that finds due rows and does with each what its verdict says (design 4 "Claim", "Takeover"; 6).

On PostgreSQL one statement: it locks what it finds, then disjoint parts of it take, suspect and hold. On SQLite it reads
first, so that no write lock is taken while nothing is due, and reads again under the write lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from durableflow.core import clock
from durableflow.core.conf import get_settings
from durableflow.core.transactions import write_transaction
from durableflow.engine.lease import new_token, owner
from durableflow.engine.sql import ASYNC_COMMIT, HISTORY, INSTANCE, Rows, is_postgres, run
from durableflow.engine.verdicts import (
    FIRST_HOLD,
    HELD,
    HOLD_DOUBLINGS,
    LIMIT,
    LONGEST_HOLD,
    SUSPECT,
    TAKE,
    hold_seconds,
    known,
    verdict,
)
from durableflow.models.instance_fields import CLAIM_CLASSES

_COLUMNS: Final = (
    "id, workflow, instance_id, run_number, execution, seed, params, created, scheduled_for, deadline_at, created_by_id, "
    "code_version, interruptions, give_backs, holds_slot, concurrency_key"
)
IS_HELD: Final = f"hold IN ({', '.join(repr(reason) for reason in sorted(HELD))})"
# What was held has waited for nothing but this claim: its give-backs are over.
_SET: Final = (
    "status = 'running', claim_class = 2 * priority, woken = {false}, suspect = {false}, hold = '', execution = execution + 1, "
    f"give_backs = CASE WHEN {IS_HELD} THEN 0 ELSE give_backs END, "
    "interruptions = interruptions + CASE WHEN {row}lease_token IS NULL THEN 0 ELSE 1 END"
)
SUSPECT_SHARE: Final = 3
_FREE_OR_SUSPECT: Final = "(lease_token IS NULL OR suspect)"


@dataclass(frozen=True)
class Found:
    """Which rows a look means. ``classes``: the due ones, by class or (``oldest``) by age alone. Else those of ``pks``, in
    that order, which are due (``HELD``: also those that are held by other code). ``slot``: they take a slot of this
    concurrency key, whatever the verdict; ``unlimited``: they are taken without one."""

    classes: bool = False
    oldest: bool = False
    pks: tuple[int, ...] = ()
    held: bool = False
    slot: str = ""
    unlimited: bool = False


class Row(NamedTuple):
    """What was found: ``values`` are those of a claim, () where the row was not taken."""

    pk: int
    verdict: str
    workflow: str
    key: str
    values: tuple[Any, ...]


def by_class() -> Found:
    """What is due, best class first."""
    return Found(classes=True)


def oldest() -> Found:
    """What is due, the longest due first, whatever its class."""
    return Found(classes=True, oldest=True)


def by_pk(pk: int) -> Found:
    """This row, if it is due."""
    return Found(pks=(pk,))


def take_postgres(using: str, found: Found, wanted: int, window: int) -> list[Row]:
    """Look at up to ``window`` rows and take up to ``wanted`` of them."""
    now = clock.postgres("clock")
    near, params = _near_postgres(found, window)
    columns = ", ".join(f"i.{name}" for name in _COLUMNS.split(", "))
    slot = "holds_slot = true, concurrency_key = %s, " if found.slot else ""
    lease = float(get_settings().LEASE)
    sql = f"""
        WITH near AS MATERIALIZED ({near}),
        due AS (SELECT id, lease_token, row_number() OVER () AS place FROM near WHERE verdict = '{TAKE}' LIMIT %s),
        taken AS (
            UPDATE {INSTANCE} AS i SET {slot}{_SET.format(false="false", row="i.")}, lease_token = %s + i.id, owner = %s,
                wake_at = {now} + make_interval(secs => %s), started = COALESCE(i.started, {now})
            FROM due WHERE i.id = due.id
            RETURNING due.place, {columns}, i.lease_token AS token, due.lease_token AS lost_token, {now} AS taken_at
        ), told AS (
            INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, actor_name, via, reason, at)
            SELECT id, run_number, 'workflow_started', '', '', '', 'engine', '', {now} FROM taken WHERE execution = 1
        ), aside AS (
            UPDATE {INSTANCE} AS i SET suspect = i.suspect OR NOT near.held,
                hold = CASE WHEN near.held THEN near.verdict ELSE i.hold END,
                give_backs = i.give_backs + CASE WHEN near.held THEN 1 ELSE 0 END,
                wake_at = {now} + make_interval(secs => CASE WHEN near.held
                    THEN LEAST({LONGEST_HOLD}, {FIRST_HOLD} * power(2, LEAST(i.give_backs, {HOLD_DOUBLINGS}))) ELSE %s::float8 END)
            FROM (SELECT id, verdict, verdict <> '{SUSPECT}' AS held FROM near WHERE verdict NOT IN ('{TAKE}', '{LIMIT}')) AS near
            WHERE i.id = near.id
        )
        SELECT near.id, near.verdict, near.workflow, near.concurrency_key, taken.*, {ASYNC_COMMIT}
        FROM near LEFT JOIN taken ON taken.id = near.id ORDER BY taken.place"""
    # One random number plus the key gives each row a token of its own.
    slot_key = [found.slot] if found.slot else []
    params = [*params, wanted, *slot_key, new_token() // 2, owner(), lease, lease / SUSPECT_SHARE]
    rows = run(using, sql, params)
    return [Row(row[0], row[1], row[2], row[3], () if row[4] is None else row[5:-1]) for row in rows]


def _near_postgres(found: Found, window: int) -> tuple[str, list[Any]]:
    # NO KEY UPDATE: a business transaction that has checked a foreign key to the row must not hide it. The probe compares with
    # statement_timestamp(), because a volatile function cannot use the index.
    columns = f"id, lease_token, workflow, concurrency_key, {_verdict(found)} AS verdict"
    if found.classes:
        order = "ORDER BY x.wake_at " if found.oldest else ""
        return (
            f"""SELECT x.* FROM generate_series(0, {CLAIM_CLASSES[-1]}) AS k, LATERAL (
                SELECT {columns}, wake_at FROM {INSTANCE}
                WHERE claim_class = k AND wake_at <= {clock.postgres("statement")}
                ORDER BY wake_at LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
            ) AS x {order}LIMIT %s""",
            [window, window],
        )
    return (
        f"""SELECT {columns} FROM {INSTANCE}
            WHERE id = ANY(%s::bigint[]) AND {named(found, clock.postgres("statement"))}
            ORDER BY array_position(%s::bigint[], id) LIMIT %s FOR NO KEY UPDATE SKIP LOCKED""",
        [list(found.pks), list(found.pks), window],
    )


def _verdict(found: Found) -> str:
    return f"'{TAKE}'" if found.slot or found.unlimited else verdict()


def named(found: Found, now: str) -> str:
    """The condition on rows that are named: somebody else may have had them since they were."""
    if found.held:
        return held_here()
    if found.slot or found.unlimited:
        return f"(wake_at <= {now} OR {IS_HELD}) AND NOT holds_slot AND {_FREE_OR_SUSPECT}"
    return f"wake_at <= {now}"


def held_here() -> str:
    """SQL: the row is held, but this process's code may run it."""
    rules = known()
    return f"{IS_HELD} AND {rules.named} AND NOT ({rules.newer}) AND {_FREE_OR_SUSPECT}"


def take_sqlite(using: str, found: Found, wanted: int, window: int) -> list[Row]:
    """Look at up to ``window`` rows and take up to ``wanted`` of them."""
    if not due_sqlite(using, found, window, clock.sqlite_text(clock.host_now())):
        return []  # nothing is due: no write lock was taken
    result: list[Row] = []
    with write_transaction(using):
        now = clock.host_now()
        for pk, lost_token, workflow, key, what, give_backs in due_sqlite(using, found, window, clock.sqlite_text(now)):
            values: tuple[Any, ...] = ()
            if what == TAKE:
                if wanted:
                    wanted -= 1
                    values = _take_one_sqlite(using, pk, lost_token, found.slot, now)
            elif what == SUSPECT:
                text = clock.sqlite_text(now + timedelta(seconds=get_settings().LEASE / SUSPECT_SHARE))
                run(using, f"UPDATE {INSTANCE} SET suspect = 1, wake_at = %s WHERE id = %s", [text, pk])
            elif what != LIMIT:
                text = clock.sqlite_text(now + timedelta(seconds=hold_seconds(give_backs)))
                sql = f"UPDATE {INSTANCE} SET hold = %s, give_backs = give_backs + 1, wake_at = %s WHERE id = %s"
                run(using, sql, [what, text, pk])
            result.append(Row(pk, what, workflow, key, values))
    return result


def _take_one_sqlite(using: str, pk: int, lost_token: int | None, slot: str, now: Any) -> tuple[Any, ...]:
    text, end = clock.sqlite_text(now), clock.sqlite_text(now + timedelta(seconds=get_settings().LEASE))
    token = new_token()
    extra = "holds_slot = 1, concurrency_key = %s, " if slot else ""
    sql = f"""
        UPDATE {INSTANCE} SET {extra}{_SET.format(false="0", row="")}, lease_token = %s, owner = %s, wake_at = %s,
            started = COALESCE(started, %s)
        WHERE id = %s RETURNING {_COLUMNS}"""
    (row,) = run(using, sql, [*([slot] if slot else []), token, owner(), end, text, pk])
    if row[4] == 1:
        run(
            using,
            f"""INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, actor_name, via, reason, at)
                VALUES (%s, %s, 'workflow_started', '', '', '', 'engine', '', %s)""",
            [pk, row[3], text],
        )
    return (*row, token, lost_token, text)


def due_sqlite(using: str, found: Found, window: int, now: str) -> Rows:
    """The rows that are meant, with their verdicts. Takes no lock by itself."""
    columns = f"id, lease_token, workflow, concurrency_key, {_verdict(found)} AS verdict, give_backs"
    if not found.classes:
        marks = ", ".join(["%s"] * len(found.pks))
        condition = named(found, "%s")
        sql = f"SELECT {columns} FROM {INSTANCE} WHERE id IN ({marks}) AND {condition}"
        rows = {row[0]: row for row in run(using, sql, [*found.pks, *[now] * condition.count("%s")])}
        return [rows[pk] for pk in found.pks if pk in rows][:window]
    sql = _due_by_class_sqlite(columns, found.oldest, window)
    return run(using, sql, [now] * len(CLAIM_CLASSES))


@lru_cache(maxsize=64)
def _due_by_class_sqlite(columns: str, oldest: bool, window: int) -> str:
    probes = " UNION ALL ".join(
        f"SELECT * FROM (SELECT {columns}, wake_at, claim_class FROM {INSTANCE} WHERE claim_class = {k} AND wake_at <= %s "
        f"ORDER BY wake_at LIMIT {window})"
        for k in CLAIM_CLASSES
    )
    order = "wake_at" if oldest else "claim_class, wake_at"
    names = "id, lease_token, workflow, concurrency_key, verdict, give_backs"
    return f"SELECT {names} FROM ({probes}) ORDER BY {order} LIMIT {window}"


def take(using: str, found: Found, wanted: int, window: int) -> list[Row]:
    """Look at up to ``window`` rows and take up to ``wanted`` of them."""
    statement = take_postgres if is_postgres(using) else take_sqlite
    return statement(using, found, wanted, window)
