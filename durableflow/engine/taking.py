"""The statement that finds due rows and does with each what its verdict says (design 4 "Claim", "Takeover"; 6).

On PostgreSQL one statement: it locks what it finds, then disjoint parts of it take, suspect and hold. On SQLite it reads
first, so that no write lock is taken while nothing is due, and reads again under the write lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from durableflow.core import clock
from durableflow.core.conf import get_settings
from durableflow.core.transactions import raw_transaction
from durableflow.engine.lease import new_token, owner
from durableflow.engine.sql import HISTORY, INSTANCE, Rows, is_postgres, run
from durableflow.engine.verdicts import (
    FIRST_HOLD,
    HELD,
    HOLD_DOUBLINGS,
    LIMIT,
    LONGEST_HOLD,
    SUSPECT,
    TAKE,
    Known,
    hold_seconds,
    known,
    verdict,
)
from durableflow.models.instance_fields import CLAIM_CLASSES

_NEAR_SQLITE: Final = "id, lease_token, owner, workflow, concurrency_key, started"
_COLUMNS: Final = (
    "id, workflow, instance_id, run_number, execution, seed, params, created, scheduled_for, deadline_at, created_by_id, "
    "code_version, interruptions, give_backs, holds_slot, concurrency_key, status, parent_step_id, followed_until, cron"
)
IS_HELD: Final = f"hold IN ({', '.join(repr(reason) for reason in sorted(HELD))})"
# What was held has waited for nothing but this claim: its give-backs are over. A lease of a process that was asked to stop
# (``lease.told_of_stop``) is no worker lost, but one more of those things that may not go on for ever.
_SET: Final = (
    "status = CASE WHEN {row}status IN ('rolling_back', 'waiting_for_pause') THEN {row}status ELSE 'running' END, "
    "claim_class = 2 * priority, woken = {false}, suspect = {false}, hold = '', execution = execution + 1, "
    f"give_backs = CASE WHEN {IS_HELD} THEN 0 ELSE give_backs END"
    " + CASE WHEN {row}lease_token IS NOT NULL AND {row}owner < 0 THEN 1 ELSE 0 END, "
    "interruptions = interruptions + CASE WHEN {row}lease_token IS NULL OR {row}owner < 0 THEN 0 ELSE 1 END"
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


def take_postgres(using: str, found: Found, wanted: int, window: int, *, plain: bool = False) -> list[Row]:
    """Look at up to ``window`` rows and take up to ``wanted`` of them."""
    one = wanted == window == 1
    shape = _Shape(
        found.classes, found.oldest, found.held, bool(found.slot), found.slot == "" and found.unlimited, one, plain
    )
    sql = _postgres_sql(shape, known(), clock.postgres("clock"), clock.postgres("statement"))
    lease = get_settings().LEASE
    # All as text, with casts in the statement: see engine/steps.py.
    params: list[Any] = [] if found.classes else [list(found.pks), list(found.pks)]
    if not one:
        params += [str(window)] * (2 if found.classes else 1) + [str(wanted)]
    if found.slot:
        params.append(found.slot)
    # One random number plus the key gives each row a token of its own.
    params += [str(new_token() // 2), str(owner()), repr(float(lease))]
    if not plain:
        params.append(repr(lease / SUSPECT_SHARE))
    return [Row(row[0], row[1], row[2], row[3], () if row[4] is None else row[4:-2]) for row in run(using, sql, params)]


class _Shape(NamedTuple):
    """What is part of the statement's text. ``one``: it looks at one row. ``plain``: it leaves rows alone that cannot be
    taken, and only tells of them."""

    classes: bool
    oldest: bool
    held: bool
    slot: bool
    unlimited: bool
    one: bool
    plain: bool


@lru_cache(maxsize=64)
def _postgres_sql(shape: _Shape, rules: Known, now: str, compared: str) -> str:
    found = Found(
        shape.classes, shape.oldest, held=shape.held, slot="x" if shape.slot else "", unlimited=shape.unlimited
    )
    columns = ", ".join(f"i.{name}" for name in _COLUMNS.split(", "))
    slot = "holds_slot = true, concurrency_key = %s, " if shape.slot else ""
    slot += rules.raised("i.", "GREATEST")
    if shape.one:  # the usual case of a thread that looks for itself
        due, place, order = f"near WHERE i.id = near.id AND near.verdict = '{TAKE}'", "1", ""
        first = "near"
    else:
        due, place, order = "due WHERE i.id = due.id", "due.place", "ORDER BY taken.place"
        first = "due"
    chosen = (
        ""
        if shape.one
        else f"""due AS (
            SELECT id, lease_token, owner, started, row_number() OVER () AS place FROM near WHERE verdict = '{TAKE}' LIMIT %s::bigint),"""
    )
    return f"""
        WITH near AS MATERIALIZED ({_near_postgres(found, rules, compared, None if shape.one else "%s::bigint")}),{chosen}
        taken AS (
            UPDATE {INSTANCE} AS i SET {slot}{_SET.format(false="false", row="i.")}, lease_token = %s::bigint + i.id,
                owner = %s::bigint, wake_at = {now} + make_interval(secs => %s::float8), started = COALESCE(i.started, {now})
            FROM {due}
            RETURNING {columns}, i.lease_token AS token, {first}.lease_token AS lost_token, {first}.owner AS lost_owner,
                {now} AS taken_at, {first}.started IS NULL AS begins, {place} AS place
        ), told AS (
            INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, actor_name, via, reason, at)
            SELECT id, run_number, 'workflow_started', '', '', '', 'engine', '', {now} FROM taken WHERE begins
        ){"" if shape.plain else _aside_postgres(now)}
        SELECT near.id, near.verdict, near.workflow, near.concurrency_key, taken.*
        FROM near LEFT JOIN taken ON taken.id = near.id {order}"""


def _aside_postgres(now: str) -> str:
    return f""", aside AS (
            UPDATE {INSTANCE} AS i SET suspect = i.suspect OR NOT near.held,
                hold = CASE WHEN near.held THEN near.verdict ELSE i.hold END,
                give_backs = i.give_backs + CASE WHEN near.held THEN 1 ELSE 0 END,
                wake_at = {now} + make_interval(secs => CASE WHEN near.held
                    THEN LEAST({LONGEST_HOLD}, {FIRST_HOLD} * power(2, LEAST(i.give_backs, {HOLD_DOUBLINGS}))) ELSE %s::float8 END)
            FROM (SELECT id, verdict, verdict <> '{SUSPECT}' AS held FROM near WHERE verdict NOT IN ('{TAKE}', '{LIMIT}')) AS near
            WHERE i.id = near.id
        )"""


def _near_postgres(found: Found, rules: Known, compared: str, window: str | None) -> str:
    # NO KEY UPDATE: a business transaction that has checked a foreign key to the row must not hide it. The probe compares with
    # statement_timestamp(), because a volatile function cannot use the index.
    columns = f"id, lease_token, owner, workflow, concurrency_key, started, {_verdict(found, rules)} AS verdict"
    limit = "1" if window is None else window
    if found.classes:
        order = "ORDER BY x.wake_at " if found.oldest else ""
        return f"""SELECT x.* FROM generate_series(0, {CLAIM_CLASSES[-1]}) AS k, LATERAL (
                SELECT {columns}, wake_at FROM {INSTANCE}
                WHERE claim_class = k AND wake_at <= {compared}
                ORDER BY wake_at LIMIT {limit} FOR NO KEY UPDATE SKIP LOCKED
            ) AS x {order}LIMIT {limit}"""
    return f"""SELECT {columns} FROM {INSTANCE}
            WHERE id = ANY(%s::bigint[]) AND {named(found, compared)}
            ORDER BY array_position(%s::bigint[], id) LIMIT {limit} FOR NO KEY UPDATE SKIP LOCKED"""


def _verdict(found: Found, rules: Known) -> str:
    return f"'{TAKE}'" if found.slot or found.unlimited else verdict(rules)


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
    now = clock.sqlite_text(clock.host_now())
    classes = _due_classes_sqlite(using, now) if found.classes else tuple(CLAIM_CLASSES)
    if not (classes if found.classes else due_sqlite(using, found, window, now)):
        return []  # nothing is due: no write lock was taken
    result: list[Row] = []
    with raw_transaction(using):
        moment = clock.host_now()
        for pk, lost_token, lost_owner, workflow, key, started, what, give_backs in due_sqlite(
            using, found, window, clock.sqlite_text(moment), classes
        ):
            values: tuple[Any, ...] = ()
            if what == TAKE:
                if wanted:
                    wanted -= 1
                    values = _take_one_sqlite(using, pk, (lost_token, lost_owner), found.slot, moment)
                    if started is None:
                        run(using, _TELL_SQLITE, [pk, values[3], clock.sqlite_text(moment)])
            elif what == SUSPECT:
                text = clock.sqlite_text(moment + timedelta(seconds=get_settings().LEASE / SUSPECT_SHARE))
                run(using, f"UPDATE {INSTANCE} SET suspect = 1, wake_at = %s WHERE id = %s", [text, pk])
            elif what != LIMIT:
                text = clock.sqlite_text(moment + timedelta(seconds=hold_seconds(give_backs)))
                sql = f"UPDATE {INSTANCE} SET hold = %s, give_backs = give_backs + 1, wake_at = %s WHERE id = %s"
                run(using, sql, [what, text, pk])
            result.append(Row(pk, what, workflow, key, values))
    return result


_TAKE_SQLITE: Final = f"""
    UPDATE {INSTANCE} SET %s{_SET.format(false="0", row="")}, lease_token = %%s, owner = %%s, wake_at = %%s,
        started = COALESCE(started, %%s)
    WHERE id = %%s RETURNING {_COLUMNS}"""
_TELL_SQLITE: Final = f"""
    INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, actor_name, via, reason, at)
    VALUES (%s, %s, 'workflow_started', '', '', '', 'engine', '', %s)"""


@lru_cache(maxsize=64)
def _take_sqlite(rules: Known, slot: bool) -> str:
    return _TAKE_SQLITE % (("holds_slot = 1, concurrency_key = %s, " if slot else "") + rules.raised("", "max"))


def _take_one_sqlite(
    using: str, pk: int, lost: tuple[int | None, int | None], slot: str, now: datetime
) -> tuple[Any, ...]:
    text, end = clock.sqlite_text(now), clock.sqlite_text(now + timedelta(seconds=get_settings().LEASE))
    token = new_token()
    params = [token, owner(), end, text, pk]
    (row,) = run(using, _take_sqlite(known(), bool(slot)), [slot, *params] if slot else params)
    return (*row, token, *lost, text)


_DUE_CLASSES_SQLITE: Final = "SELECT " + ", ".join(
    f"EXISTS (SELECT 1 FROM {INSTANCE} WHERE claim_class = {k} AND wake_at <= %s)" for k in CLAIM_CLASSES
)


def _due_classes_sqlite(using: str, now: str) -> tuple[int, ...]:
    """The classes in which something is due. Reads the index alone, and takes no lock."""
    ((*due,),) = run(using, _DUE_CLASSES_SQLITE, [now] * len(CLAIM_CLASSES))
    return tuple([k for k, there in zip(CLAIM_CLASSES, due, strict=True) if there])


def due_sqlite(
    using: str, found: Found, window: int, now: str, classes: tuple[int, ...] = tuple(CLAIM_CLASSES)
) -> Rows:
    """The rows that are meant, with their verdicts; those that are due in ``classes``. Takes no lock by itself."""
    if not found.classes:
        columns = f"{_NEAR_SQLITE}, {_verdict(found, known())} AS verdict, give_backs"
        marks = ", ".join(["%s"] * len(found.pks))
        condition = named(found, "%s")
        sql = f"SELECT {columns} FROM {INSTANCE} WHERE id IN ({marks}) AND {condition}"
        rows = {row[0]: row for row in run(using, sql, [*found.pks, *[now] * condition.count("%s")])}
        return [rows[pk] for pk in found.pks if pk in rows][:window]
    return run(using, _due_by_class_sqlite(known(), found.oldest, window, classes), [now] * len(classes))


@lru_cache(maxsize=256)
def _due_by_class_sqlite(rules: Known, oldest: bool, window: int, classes: tuple[int, ...]) -> str:
    columns = f"{_NEAR_SQLITE}, {verdict(rules)} AS verdict, give_backs"
    probes = [
        f"SELECT * FROM (SELECT {columns}, wake_at, claim_class FROM {INSTANCE} WHERE claim_class = {k} AND wake_at <= %s "
        f"ORDER BY wake_at LIMIT {window})"
        for k in classes
    ]
    order = "wake_at" if oldest else "claim_class, wake_at"
    return f"SELECT {_NEAR_SQLITE}, verdict, give_backs FROM ({' UNION ALL '.join(probes)}) ORDER BY {order} LIMIT {window}"


def take(using: str, found: Found, wanted: int, window: int, *, plain: bool = False) -> list[Row]:
    """Look at up to ``window`` rows and take up to ``wanted`` of them. ``plain``: the caller looks again with a wider window
    if one cannot be taken, so that this statement need not put it aside (PostgreSQL: the less in a statement, the quicker)."""
    if is_postgres(using):
        return take_postgres(using, found, wanted, window, plain=plain)
    return take_sqlite(using, found, wanted, window)
