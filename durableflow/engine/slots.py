"""Slots of limited workflows: taken at a claim, given back at each ending (design 4, "Lock order"; cases RET-12, CHD-06).

Every transaction here locks the row of the concurrency key first, then instances, and skips those that somebody holds,
so that it cannot deadlock with others. The plain path of a workflow without a limit has no part in it.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from django.db import OperationalError, connections

from durableflow.authoring.events import freeze
from durableflow.authoring.options import Options
from durableflow.core import clock, codec, notices, registry
from durableflow.core.outages import locked
from durableflow.core.transactions import write_transaction
from durableflow.engine.fence import timeout
from durableflow.engine.lease import Lease
from durableflow.engine.pulse import Pulse
from durableflow.engine.sql import INSTANCE, is_postgres, run
from durableflow.engine.taking import IS_HELD, Found, named, take
from durableflow.engine.verdicts import LIMIT, known_code
from durableflow.models import ConcurrencyLimit, limits

logger = logging.getLogger("durableflow.engine")
P = ParamSpec("P")
R = TypeVar("R")

PATIENCE: Final = "250ms"
"""How long a claim waits for the limit's row. Others hold it for milliseconds, unless it is a user's long transaction."""
AWAY: Final = 1.0
"""Seconds for which instances whose limit somebody holds are put aside."""
SWEEP_EVERY: Final = 2.0
KEYS_AT_ONCE: Final = 200
WOKEN_AT_ONCE: Final = 500
_LIMITS: Final = ConcurrencyLimit._meta.db_table

Limited = tuple[int, str, str]
"""Primary key, workflow and concurrency key ('' if it was created before there was a limit)."""


def admit(using: str, rows: Sequence[Limited], wanted: int) -> tuple[list[tuple[Any, ...]], bool]:
    """Claim up to ``wanted`` of these due instances with a slot each, and park those for which there is none.

    Returns the values of the claims, and whether others were put aside.
    """
    claims: list[tuple[Any, ...]] = []
    aside = False
    keyed = sorted(((_key(using, row), row[1], row[0]) for row in rows), key=operator.itemgetter(0, 1))
    for (key, workflow), group in groupby(keyed, key=operator.itemgetter(0, 1)):
        options, pks = _options(workflow), [pk for _, _, pk in group]
        if not key or options is None or options.max_concurrency is None:
            found = take(using, Found(pks=tuple(pks), unlimited=True), wanted - len(claims), len(pks))
            claims += [row.values for row in found if row.values]
            continue
        more, others = _admit(using, key, options, pks, wanted - len(claims))
        claims += more
        aside = aside or others
    return claims, aside


def _admit(using: str, key: str, options: Options, pks: list[int], wanted: int) -> tuple[list[tuple[Any, ...]], bool]:
    try:
        with write_transaction(using):
            if is_postgres(using):
                run(using, f"SELECT set_config('lock_timeout', '{PATIENCE}', true)")
            open_slots = max(0, _free(using, key, options))
            claims: list[tuple[Any, ...]] = []
            if count := min(open_slots, wanted):
                found = take(using, Found(pks=tuple(pks), slot=key), count, len(pks))
                claims = [row.values for row in found if row.values]
                limits.take(using, key, len(claims))
            if len(claims) < open_slots:
                return claims, False  # nobody wanted the rest of them now
            taken = {values[0] for values in claims}
            parked = _put_aside(using, key, [pk for pk in pks if pk not in taken], None)
            return claims, parked > 0
    except OperationalError as error:
        if not locked(error) or connections[using].in_atomic_block:
            raise
    # Somebody's transaction holds the limit. These instances must not hide what is due behind them.
    with write_transaction(using):
        return [], _put_aside(using, key, pks, AWAY) > 0


def _put_aside(using: str, key: str, pks: list[int], seconds: float | None) -> int:
    """Park instances (None), or make them due later; those that somebody holds stay due."""
    if not pks:
        return 0
    condition = named(Found(pks=tuple(pks), slot=key), clock.postgres("statement") if is_postgres(using) else "%s")
    # What was held has waited for nothing but a look by code that knows it, which this is.
    counts = f"give_backs = CASE WHEN {IS_HELD} THEN 0 ELSE give_backs END"
    if is_postgres(using):
        change = f"wake_at = NULL, hold = %s, concurrency_key = %s, {counts}"
        params: list[Any] = [LIMIT, key]
        if seconds is not None:
            change, params = f"wake_at = {clock.postgres('clock')} + make_interval(secs => %s)", [seconds]
        sql = f"""UPDATE {INSTANCE} AS i SET {change} FROM (
            SELECT id FROM {INSTANCE} WHERE id = ANY(%s::bigint[]) AND {condition} FOR NO KEY UPDATE SKIP LOCKED
            ) AS x WHERE i.id = x.id RETURNING i.id, {notices.marked_sql("CURRENT_TIMESTAMP", "i.")}"""
        rows = run(using, sql, [*params, pks])
        for pk, marked in rows:
            if marked:
                notices.give(using, pk)  # after the commit
        return len(rows)
    marks, now = ", ".join(["%s"] * len(pks)), clock.sqlite_text(clock.host_now())
    sql = f"""UPDATE {INSTANCE} SET wake_at = NULL, hold = %s, concurrency_key = %s, {counts}
        WHERE id IN ({marks}) AND {condition} RETURNING id"""
    return len(run(using, sql, [LIMIT, key, *pks, now]))


def _free(using: str, key: str, options: Options) -> int:
    """Slots of the limit that nobody has, with its row locked until the end of the transaction.

    What is still counted under a previous name of the workflow is read without a lock: no code that knows the new name adds
    to it, so that it only becomes less, and the sweep finds that.
    """
    maximum = options.max_concurrency or 0
    before = options.previous_keys(key)
    return maximum - limits.lock(using, key, maximum) - (limits.running(using, before) if before else 0)


def _options(workflow: str) -> Options | None:
    cls = registry.find(workflow)
    return None if cls is None else cls.options


def _key(using: str, row: Limited) -> str:
    """The instance's key, under the present name of its workflow; one that was created before there was a limit gets it
    now."""
    pk, workflow, key = row
    options = _options(workflow)
    if key or options is None:
        return key if options is None else options.present_key(key)
    ((text,),) = run(using, f"SELECT params FROM {INSTANCE} WHERE id = %s", [pk]) or ((None,),)
    try:
        return options.limit_key(freeze(None if text is None else codec.loads(text)))
    except Exception as error:
        # It was accepted without a key, so it must run, but never without a limit.
        logger.warning("Instance %d of %s shares the slots of its workflow: %s", pk, workflow, error)
        return options.name


# Endings -----------------------------------------------------------------------------------------------------------------


def frees_slot(ending: Callable[Concatenate[Lease, P], R]) -> Callable[Concatenate[Lease, P], R]:
    """An ending that also gives back the instance's slot, in one transaction: limit, then instance, then the parked one
    that follows."""

    @functools.wraps(ending)
    def freeing(lease: Lease, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not lease.slot:
            return ending(lease, *args, **kwargs)
        using = lease.using
        with write_transaction(using):
            if is_postgres(using):
                run(using, f"WITH {timeout()} SELECT v FROM t")
                limits.lock_known(using, [lease.slot])
                # Whoever holds the instance may want the limit: do not wait for the one while holding the other.
                sql = f"SELECT 1 FROM {INSTANCE} WHERE id = %s AND lease_token = %s FOR NO KEY UPDATE NOWAIT"
                run(using, sql, [lease.pk, lease.token])
            result = ending(lease, *args, **kwargs)
            limits.free(using, INSTANCE, lease.slot)
        return result

    return freeing


# Sweep -------------------------------------------------------------------------------------------------------------------

_pulse = Pulse(SWEEP_EVERY)
_after: dict[str, str] = {}


def sweep(using: str) -> None:
    """Each few seconds: make parked instances due for which there is a free slot, since a deploy has raised the limit or
    taken it away, or since the one that was to follow is gone. Reads first."""
    if not _pulse.due(using, known_code()):
        return
    after = _after.get(using, "")
    rows = run(using, _parked_keys(), [after])
    _after[using] = rows[-1][0] if len(rows) == KEYS_AT_ONCE else ""
    for key, running in rows:
        options = _options(key.partition(":")[0])
        if options is None:
            continue
        maximum, present = options.max_concurrency, options.present_key(key)
        if present != key:
            _rename(using, key, present)
        elif maximum is not None and running is not None and running >= maximum:
            continue
        with write_transaction(using):
            if maximum is None:
                limits.wake(using, INSTANCE, present, WOKEN_AT_ONCE)
            elif (free := _free(using, present, options)) > 0:
                limits.wake(using, INSTANCE, present, min(free, WOKEN_AT_ONCE))


def _rename(using: str, key: str, present: str) -> None:
    """Let those that are parked under a key of a previous name stand in one line with the others."""
    lock = "FOR NO KEY UPDATE SKIP LOCKED" if is_postgres(using) else ""
    sql = f"""UPDATE {INSTANCE} SET concurrency_key = %s WHERE id IN (
        SELECT id FROM {INSTANCE} WHERE hold = '{LIMIT}' AND wake_at IS NULL AND concurrency_key = %s
        ORDER BY id LIMIT {WOKEN_AT_ONCE} {lock}) RETURNING id"""
    with write_transaction(using):
        run(using, sql, [present, key])


def _parked_keys() -> str:
    """A loose scan: one probe per key, however many instances are parked."""
    probe = (
        f"SELECT min(concurrency_key) FROM {INSTANCE} WHERE hold = '{LIMIT}' AND wake_at IS NULL AND concurrency_key >"
    )
    return f"""
        WITH RECURSIVE parked(key) AS (
            SELECT ({probe} %s) UNION ALL SELECT ({probe} parked.key) FROM parked WHERE parked.key IS NOT NULL
        )
        SELECT parked.key, l.running FROM parked LEFT JOIN {_LIMITS} AS l ON l.key = parked.key
        WHERE parked.key IS NOT NULL LIMIT {KEYS_AT_ONCE}"""
