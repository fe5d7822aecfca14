"""The notice to those who follow an instance, or wait for its end: it has changed (reference 12; design 9).

PostgreSQL only: on SQLite a commit is seen by itself (``PRAGMA data_version``). Who follows marks the instance's row with
``followed_until``; who writes history of a marked row gives a notice after the commit. One that is lost, because the process
ended between the two, costs at most ``models.watching.MARK_EVERY`` seconds.

Who only waits for the end, or until the instance is at rest, must not cost a notice with each step. They mark it with
``awaited_until``, which only those look at who end an instance, put it to rest, or change it from outside.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.db import connections, transaction

from durableflow.core import clock

logger = logging.getLogger("durableflow.notices")
CHANNEL: Final = "durableflow_history"
# In the writer's transaction the notification would make all commits wait for one another. Here it is a transaction of its own,
# after the commit, and need not reach the disk: nothing is lost with it.
_NOTIFY: Final = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"
# The marks are by the database's clock, and looked at by the host's: better a notice too many.
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
        if marked(row.followed_until, row.awaited_until):
            give(using, row.pk)


def marked(*until: datetime | None) -> bool:
    """Whether one of the two marks of an instance still holds: somebody may follow it, or wait for it."""
    over = clock.host_now() - _SLACK
    return any(each is not None and each > over for each in until)


def marked_sql(now: str, row: str = "") -> str:
    """The same as a condition of PostgreSQL, by ``now``, SQL as well; NULL where there is no mark. ``row``: the instance's alias with
    a dot."""
    return f"GREATEST({row}followed_until, {row}awaited_until) > {now}"  # of those that are not NULL


def _give(using: str, pk: int) -> None:
    connection = connections[using]
    if connection.in_atomic_block or not connection.get_autocommit():
        return  # a later callback of the same commit has opened a transaction
    try:
        with connection.cursor() as cursor:
            cursor.execute(_NOTIFY, [CHANNEL, str(pk)])
    except Exception:
        logger.warning("A notice was not given: whoever follows the instance looks a little later.", exc_info=True)
