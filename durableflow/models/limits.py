"""How many instances of one key may run at once (design 4, "Lock order").

An instance of a limited workflow holds a slot exactly as long as somebody holds its lease. Whoever takes or frees a slot
locks the row of its key first, then instances, so that ``running`` is always the number of rows that hold one. One that
finds no free slot is parked: ``hold = limit``, no ``wake_at``; whoever frees a slot makes the next parked one due.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, models
from django.utils.translation import gettext_lazy as _

from durableflow.core import clock, dispatch
from durableflow.core.statuses import Hold
from durableflow.models.instance_fields import CLAIM_CLASSES, Priority

if TYPE_CHECKING:
    from durableflow.models.instance_fields import InstanceFields

OTHERS_EVERY: Final = 4
"""So often a freed slot goes to another priority than the highest: nothing starves."""
_turn = itertools.count(1)


class ConcurrencyLimit(models.Model):
    """The slots of one concurrency key: ``running`` of ``maximum`` are taken."""

    key = models.CharField(_("key"), max_length=320, unique=True)
    maximum = models.PositiveIntegerField(_("maximum"))
    running = models.PositiveIntegerField(_("running"), default=0)

    class Meta:
        verbose_name = _("concurrency limit")
        verbose_name_plural = _("concurrency limits")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.key}: {self.running}/{self.maximum}"


def lock(using: str, key: str, maximum: int) -> int:
    """Lock the row of ``key`` until the end of the transaction, make ``maximum`` its limit, and return how many slots are
    taken. The row is made where there is none."""
    table = ConcurrencyLimit._meta.db_table
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (key, maximum, running) VALUES (%s, %s, 0) "  # noqa: S608
            f"ON CONFLICT (key) DO UPDATE SET maximum = excluded.maximum RETURNING running",
            [key, maximum],
        )
        return int(cursor.fetchone()[0])


def running(using: str, keys: Iterable[str]) -> int:
    """How many slots of these keys are taken together, read without a lock."""
    rows = ConcurrencyLimit.objects.using(using).filter(key__in=list(keys))
    return int(rows.aggregate(taken=models.Sum("running"))["taken"] or 0)


def lock_known(using: str, keys: Iterable[str]) -> None:
    """Lock the rows of these keys until the end of the transaction, in the order of the keys."""
    wanted = sorted({key for key in keys if key})
    if wanted:
        rows = ConcurrencyLimit.objects.using(using).filter(key__in=wanted).order_by("key")
        list(rows.select_for_update(no_key=True).values_list("pk"))


def lock_slots_of(rows: models.QuerySet[Any]) -> None:
    """Lock the limits of these instances, before the instances themselves are locked: they may hold slots."""
    lock_known(
        rows.db, rows.order_by().exclude(concurrency_key="").values_list("concurrency_key", flat=True).distinct()
    )


def take(using: str, key: str, count: int) -> None:
    """Count ``count`` slots as taken. The caller holds the key's lock and has marked as many instances."""
    ConcurrencyLimit.objects.using(using).filter(key=key).update(running=models.F("running") + count)


def free(using: str, table: str, key: str, count: int = 1) -> None:
    """Count ``count`` slots as free and make as many parked instances due. The caller holds the key's lock and has
    unmarked as many instances."""
    ConcurrencyLimit.objects.using(using).filter(key=key).update(running=models.F("running") - count)
    wake(using, table, key, count)


def release(row: InstanceFields) -> None:
    """Give back the slot of a locked instance that has held one and is saved without it."""
    if row.concurrency_key:
        free(str(row._state.db), row._meta.db_table, row.concurrency_key)


def wake(using: str, table: str, key: str, count: int) -> int:
    """Make the next ``count`` parked instances of ``key`` due (``table``: that of the instances), and say how many there
    were.

    Those that were executed before go first, then the urgent ones, then the oldest.
    """
    connection = connections[using]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(_wake_postgres(table, count), [key])
        else:
            now = clock.sqlite_text(clock.host_now())
            cursor.execute(_wake_sqlite(table, count), [now, *[key] * len(CLAIM_CLASSES)])
        woken = len(cursor.fetchall())
    if woken:
        dispatch.wake(using)
    return woken


_PARKED: Final = f"hold = '{Hold.LIMIT.value}' AND wake_at IS NULL AND concurrency_key = %s"


def _wake_postgres(table: str, count: int) -> str:
    # Found once: a plan that looked anew for each row of the table would wake another one each time.
    return f"""
        WITH next AS MATERIALIZED (
            SELECT x.id FROM unnest(ARRAY{_order()}) AS k, (SELECT %s::text AS key) AS p, LATERAL (
                SELECT id FROM {table} WHERE {_PARKED.replace("%s", "p.key")} AND claim_class = k
                ORDER BY id LIMIT {int(count)} FOR NO KEY UPDATE SKIP LOCKED
            ) AS x LIMIT {int(count)}
        )
        UPDATE {table} AS i SET wake_at = {clock.postgres("clock")}, hold = ''
        FROM next WHERE i.id = next.id RETURNING i.id"""  # noqa: S608


def _wake_sqlite(table: str, count: int) -> str:
    probes = " UNION ALL ".join(
        f"SELECT * FROM (SELECT id, {place} AS place FROM {table} WHERE {_PARKED} AND claim_class = {k} "  # noqa: S608
        f"ORDER BY id LIMIT {int(count)})"
        for place, k in enumerate(_order())
    )
    return (
        f"UPDATE {table} SET wake_at = %s, hold = '' WHERE id IN "  # noqa: S608
        f"(SELECT id FROM ({probes}) ORDER BY place, id LIMIT {int(count)}) RETURNING id"
    )


def _order() -> list[int]:
    """Classes in the order in which their parked instances get a free slot: executed before, then by priority. At times
    another priority goes first."""
    priorities = [int(priority) for priority in Priority]
    turn = next(_turn)
    if turn % OTHERS_EVERY == 0:
        first = 1 + (turn // OTHERS_EVERY) % (len(priorities) - 1)
        priorities = [*priorities[first:], *priorities[:first]]
    return [2 * priority + is_new for is_new in (0, 1) for priority in priorities]
