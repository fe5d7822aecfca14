"""The inbox in SQL: delivering a batch of events in a few statements, whatever its size (design 4, "Senders never lock
the instance")."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from django.contrib.auth import get_user_model
from django.db import connections

from durableflow.core import clock
from durableflow.core.notices import marked_sql
from durableflow.core.statuses import SentKind
from durableflow.engine import outcomes
from durableflow.engine.sql import (
    ASYNC_COMMIT,
    HISTORY,
    INSTANCE,
    PENDING,
    SENT,
    STEP,
    Rows,
    any_of,
    is_postgres,
    now_of,
    run,
    together,
)
from durableflow.engine.verdicts import HELD

# For this transaction: to plan the delivering statement anew for each list of keys takes longer than to execute it.
_GENERIC: Final = "set_config('plan_cache_mode', 'force_generic_plan', true)"
TYPES: Final = {SentKind.EVENT: "event_received", SentKind.DECISION: "decided"}
# What people and programs send. Messages within a family do more than to wake somebody (``outcomes``, ``orphans``).
_PLAIN: Final = f"kind IN ({', '.join(repr(kind.value) for kind in TYPES)})"


def undelivered(using: str, row: str = "") -> str:
    """The condition of the partial index, in its own words: SQLite takes them literally. Django writes it as
    ``NOT delivered`` before 6.1 and as ``delivered = 0`` from then on. ``row``: the table's alias with a point."""
    return f"NOT {row}delivered" if is_postgres(using) else f"(NOT {row}delivered AND {row}delivered = 0)"


def waiting_instances(using: str, after: int, most: int) -> list[int]:
    """Keys above ``after`` of instances with undelivered events, ascending.

    A loose index scan: one probe per instance, however many events each of them has.
    """
    sql = f"WITH RECURSIVE {_found(undelivered(using), '%s')} SELECT pk FROM found WHERE pk IS NOT NULL LIMIT {most}"
    return [pk for (pk,) in run(using, sql, [after])]


def _found(condition: str, after: str) -> str:
    return f"""found (pk) AS (
        SELECT min(instance_id) FROM {SENT} WHERE {condition} AND instance_id > {after}
        UNION ALL
        SELECT (SELECT min(instance_id) FROM {SENT} WHERE {condition} AND instance_id > found.pk) FROM found WHERE found.pk IS NOT NULL
    )"""


class AtOnce(NamedTuple):
    """What a delivery in one statement came to: the instances with undelivered events, those of them that it could lock,
    whether some of their events are left, one instance that it has made due, if it has, and those that somebody follows."""

    found: list[int]
    locked: list[int]
    left: bool
    due: int | None
    followed: list[int]


def deliver_at_once(using: str, most: int) -> AtOnce:
    """Lock and deliver in one statement of its own transaction (PostgreSQL): one way to the server in place of six.

    All of it reads the tables as they were when it began, and a row may have changed by the time it is locked. So the
    history is written from what the UPDATE gives back: it looks again at a row that somebody has changed, and what
    another look has delivered is not delivered twice. Whoever changes an instance's events holds its row, so that nobody
    is waited for.
    """
    user = get_user_model()._meta
    table, key = (connections[using].ops.quote_name(name) for name in (user.db_table, str(user.pk.column)))
    (row,) = run(using, _at_once(clock.postgres("clock"), table, key, undelivered(using, "s."), most))
    return AtOnce(*row)


@lru_cache(maxsize=8)
def _at_once(now: str, users: str, key: str, condition: str, most: int) -> str:
    # Without parameters its plan serves always: to plan it anew takes longer than to execute it.
    free = f"(e.{_PLAIN} AND (e.sent_by_id IS NULL OR e.sent_by_id IN (SELECT pk FROM u)))"  # see _free_senders
    return f"""
        WITH RECURSIVE {_found(condition.replace("s.", ""), "0")},
        w AS MATERIALIZED (SELECT pk FROM found WHERE pk IS NOT NULL LIMIT {most}),
        own AS MATERIALIZED (
            SELECT i.id, i.run_number, i.followed_until, i.awaited_until FROM {INSTANCE} AS i
            WHERE i.id IN (SELECT pk FROM w) ORDER BY i.id FOR NO KEY UPDATE SKIP LOCKED),
        e AS MATERIALIZED (
            SELECT s.id, s.sent_by_id, s.kind FROM {SENT} AS s WHERE s.instance_id IN (SELECT id FROM own) AND {condition}
            ORDER BY s.id LIMIT {most}),
        u AS MATERIALIZED (
            SELECT {key} AS pk FROM {users} WHERE {key} IN (SELECT sent_by_id FROM e) FOR KEY SHARE SKIP LOCKED),
        q AS ({_sent("own", f"{condition} AND s.id IN (SELECT e.id FROM e WHERE {free})", condition)} RETURNING s.*),
        h AS ({_history(now, "q", "own", "true", True)}),
        x AS (UPDATE {INSTANCE} AS i {_WAKE.format(now=now)} FROM (SELECT DISTINCT instance_id AS pk FROM q) AS d
            WHERE i.id = d.pk AND {_ASLEEP} RETURNING i.id, i.status = 'waiting' AND i.wake_at <= {now} AS due)
        SELECT ARRAY(SELECT pk FROM w), ARRAY(SELECT id FROM own),
            (SELECT count(*) FROM e) = {most} OR EXISTS (SELECT 1 FROM e WHERE NOT {free}), (SELECT min(id) FROM x WHERE due),
            ARRAY(SELECT id FROM own WHERE {marked_sql(now)})
        FROM (SELECT {ASYNC_COMMIT}) AS c"""


def lock(using: str, wanted: Collection[int]) -> list[int]:
    """Lock these instances in ascending order, leaving out those that somebody holds; what the transaction writes need
    not reach the disk at its commit."""
    among, params = any_of(using, "id", sorted(wanted))
    if not is_postgres(using):
        return [pk for (pk,) in run(using, f"SELECT id FROM {INSTANCE} WHERE {among} ORDER BY id", params)]
    rows = run(
        using,
        f"""WITH own AS MATERIALIZED (
                SELECT id FROM {INSTANCE} WHERE {among} ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
            ) SELECT id, {ASYNC_COMMIT}, {_GENERIC} FROM own""",
        params,
    )
    return [row[0] for row in rows]


def hand_over(using: str, locked: Sequence[int], most: int, *, wake: bool) -> tuple[int, bool]:
    """Deliver the oldest ``most`` events of instances that the caller has locked, each with its history row.

    ``wake``: also make the waiting instances due, and tell those that hold them. Returns how many were delivered, and
    whether some were left because somebody holds their sender's row (see ``_free_senders``), or a child that is to follow.
    """
    chosen, held_up = _choose(using, locked, most)
    events = [row[0] for row in chosen if row[3] != SentKind.CHILD]
    instances = {row[1] for row in chosen if row[3] != SentKind.CHILD}
    told = events
    if len(events) < len(chosen):
        ends = outcomes.take_in(using, [row[0] for row in chosen if row[3] == SentKind.CHILD])
        told, instances, held_up = events + ends.delivered, instances | ends.wake, held_up or ends.kept
    if told:
        _deliver(using, events, told, sorted(instances), wake)
    return len(told), held_up


def _choose(using: str, locked: Sequence[int], most: int) -> tuple[Rows, bool]:
    """The events to deliver (key, instance, sender, kind), and whether there are others whose sender's row is held."""
    among, params = any_of(using, "instance_id", locked)
    held: set[Any] = set()
    while True:
        others = f"AND (sent_by_id IS NULL OR sent_by_id NOT IN ({', '.join(['%s'] * len(held))}))" if held else ""
        sql = f"""SELECT id, instance_id, sent_by_id, kind FROM {SENT}
            WHERE {among} AND {undelivered(using)} AND kind <> '{SentKind.PARENT.value}' {others} ORDER BY id LIMIT {most}"""
        rows = run(using, sql, [*params, *held])
        senders = {row[2] for row in rows} - {None}
        held |= senders - _free_senders(using, senders)
        chosen = [row for row in rows if row[2] not in held]
        if chosen or len(rows) < most:  # else a full batch of a held sender's hides the others
            return chosen, bool(held)


def _free_senders(using: str, senders: set[Any]) -> set[Any]:
    """The senders whose row can be referred to now.

    The history refers to the sender. A transaction that holds that user FOR UPDATE (an account's balance, say) would
    make the reference wait, and with it every look of every process.
    """
    if not senders or not is_postgres(using):
        return senders
    user = get_user_model()._meta
    table, key = (connections[using].ops.quote_name(name) for name in (user.db_table, str(user.pk.column)))
    marks = ", ".join(["%s"] * len(senders))
    sql = f"SELECT {key} FROM {table} WHERE {key} IN ({marks}) FOR KEY SHARE SKIP LOCKED"
    return {pk for (pk,) in run(using, sql, list(senders))}


def _deliver(using: str, events: list[int], told: list[int], instances: list[int], wake: bool) -> None:
    """``events``: those with a history entry of their own, of all that were ``told``."""
    now, at = now_of(using)
    statements: list[tuple[str, list[Any]]] = []
    if events:
        those, event_params = any_of(using, "s.id", events)
        statements.append((_history(now, SENT, INSTANCE, those, is_postgres(using)), [*at, *event_params]))
    those, event_params = any_of(using, "s.id", told)
    statements.append((_sent(INSTANCE, those, undelivered(using, "s.")), event_params))
    if wake and instances:
        owners, owner_params = any_of(using, "i.id", instances)
        sql = f"UPDATE {INSTANCE} AS i {_WAKE.format(now=now)} WHERE {owners} AND {_ASLEEP}"
        statements.append((sql, [*at, *owner_params]))
    together(using, statements)


# A waiting instance is due; whoever holds a leased one is told. One that is held for other code is found by that code all the
# same: each look of the wrong one counts, and ten events would have it blocked.
_HELD: Final = f"i.hold IN ({', '.join(repr(reason) for reason in HELD)})"
_WAKE: Final = f"""SET wake_at = CASE WHEN i.status = 'waiting' AND NOT {_HELD} THEN {{now}} ELSE i.wake_at END,
    woken = (i.woken OR i.lease_token IS NOT NULL)"""
_ASLEEP: Final = "(i.status = 'waiting' OR i.lease_token IS NOT NULL)"


@lru_cache(maxsize=64)
def _history(now: str, sent: str, instances: str, those: str, postgres: bool) -> str:
    quoted = "to_json(s.type::text)::text" if postgres else "json_quote(s.type)"
    names = " ".join(f"WHEN '{kind.value}' THEN '{name}'" for kind, name in TYPES.items())
    return f"""
        INSERT INTO {HISTORY} (instance_id, run_number, type, kind, step, data, actor_id, actor_name, via, reason, at)
        SELECT s.instance_id, CASE WHEN s.consumed_by <> '' THEN s.run_number ELSE i.run_number END, CASE s.kind {names} END,
            COALESCE(p.kind, ''),
            COALESCE(CASE WHEN t.scope <> '' THEN t.scope || '/' ELSE '' END || p.name || '-' || p.count, ''),
            CASE WHEN s.kind = 'event' THEN '{{"event":' || s.id || ',"type":' || {quoted} || '}}'
                 ELSE '{{"pending_event":' || COALESCE(CAST(s.pending_event_id AS text), 'null') || '}}' END,
            s.sent_by_id, s.sent_by_name, CASE WHEN s.via = '' THEN 'code' ELSE s.via END, s.reason, {now}
        FROM {sent} AS s JOIN {instances} AS i ON i.id = s.instance_id LEFT JOIN {PENDING} AS p ON p.id = s.pending_event_id
            LEFT JOIN {STEP} AS t ON t.id = p.step_id
        WHERE {those} ORDER BY s.id"""


@lru_cache(maxsize=64)
def _sent(instances: str, those: str, condition: str) -> str:
    """Mark them delivered. What was sent to a run that has been restarted since, and that nobody has seen, moves to the
    current one, where its dedupe key is still free there: of several with one key the first."""
    return f"""
        UPDATE {SENT} AS s SET delivered = true, run_number = CASE
            WHEN s.consumed_by <> '' OR s.run_number = i.run_number THEN s.run_number
            WHEN s.dedupe_key = '' THEN i.run_number
            WHEN EXISTS (SELECT 1 FROM {SENT} AS x WHERE x.instance_id = s.instance_id AND x.dedupe_key = s.dedupe_key
                AND (x.run_number = i.run_number OR (x.id < s.id AND x.consumed_by = '' AND {condition.replace("s.", "x.")})))
            THEN s.run_number ELSE i.run_number END
        FROM {instances} AS i WHERE i.id = s.instance_id AND {those}"""
