"""The notice to those who follow an instance, or wait for its end: it has changed (reference 12; design 9).

PostgreSQL only: on SQLite a commit is seen by itself (``PRAGMA data_version``). Who follows marks the instance's row with
``followed_until``; who writes history of a marked row gives a notice after the commit. One that is lost, because the process
ended between the two, costs at most ``models.watching.MARK_EVERY`` seconds.

Who only waits for the end, or until the instance is at rest, must not cost a notice with each step. The mark for that says a
moment ``APART`` before the one until which it holds. So whoever writes a step takes it for one that is over, and only those who
end an instance, put it to rest, or change it from outside look for it too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db import connections, transaction

from durableflow.core import clock

logger = logging.getLogger("durableflow.notices")
CHANNEL: Final = "durableflow_history"
# In the writer's transaction the notification would make all commits wait for one another. Here it is a transaction of its own,
# after the commit, and need not reach the disk: nothing is lost with it.
_NOTIFY: Final = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"
APART: Final = timedelta(days=36_500)
_APART: Final = f"interval '{APART.days} days'"
# The mark is by the database's clock, and looked at by the host's: better a notice too many.
_SLACK: Final = timedelta(minutes=2)


def give(using: str, pk: int) -> None:
    """Tell whoever follows the instance ``pk`` to look: at once, or after the commit of an open ``atomic()`` block.

    Does nothing on another database than PostgreSQL. Never raises: what was written is written.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        return
    if connection.in_atomic_block:
        transaction.on_commit(partial(_give, using, pk), using=using, robust=True)
    else:
        _give(using, pk)


def give_all(using: str, rows: Iterable[Any]) -> None:
    """The same for rows that the caller has locked: those of them that somebody follows or waits for."""
    for row in rows:
        if marked(row.followed_until):
            give(using, row.pk)


def marked(until: Any) -> bool:
    """Whether somebody may still follow an instance whose mark is ``until``, or wait for it."""
    if until is None:
        return False
    now = clock.host_now() - _SLACK
    return bool(until > now or now - APART < until < now - APART / 2)


def marked_sql(column: str, now: str) -> str:
    """The same as a condition, for a mark in ``column`` and ``now``, both SQL; NULL where there is no mark."""
    return f"({column} > {now} OR ({column} > {now} - {_APART} AND {column} < {now} - {_APART} / 2))"


def mark_sql(column: str, seconds: str, *, ends: bool) -> str:
    """SQL for a mark that holds for ``seconds``; ``column``: the present one. ``ends``: for the end and for rest alone. Such a
    one leaves a mark of somebody who follows in place, which tells more, as long as that one is renewed."""
    now = "clock_timestamp()"
    until = f"{now} + make_interval(secs => {seconds})"
    if not ends:
        return until
    return (
        f"CASE WHEN {column} > {now} + make_interval(secs => {seconds}) / 2 THEN {column} ELSE {until} - {_APART} END"
    )


def _give(using: str, pk: int) -> None:
    connection = connections[using]
    if connection.in_atomic_block or not connection.get_autocommit():
        return  # a later callback of the same commit has opened a transaction
    try:
        with connection.cursor() as cursor:
            cursor.execute(_NOTIFY, [CHANNEL, str(pk)])
    except Exception:
        logger.warning("A notice was not given: whoever follows the instance looks a little later.", exc_info=True)
