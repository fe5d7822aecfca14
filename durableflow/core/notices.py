"""The notice to those who follow an instance: its history has grown (reference 12; design 9).

PostgreSQL only: on SQLite a commit is seen by itself (``PRAGMA data_version``). Who follows marks the instance's row with
``followed_until``; who writes history of a marked row gives a notice after the commit. One that is lost, because the process
ended between the two, costs at most ``core.hearing.MARK_EVERY`` seconds.
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
    """The same for rows that the caller has locked: those of them that somebody follows."""
    for row in rows:
        if followed(row.followed_until):
            give(using, row.pk)


def followed(until: Any) -> bool:
    """Whether somebody may still follow an instance whose mark is ``until``."""
    return until is not None and bool(until > clock.host_now() - _SLACK)


def _give(using: str, pk: int) -> None:
    connection = connections[using]
    if connection.in_atomic_block or not connection.get_autocommit():
        return  # a later callback of the same commit has opened a transaction
    try:
        with connection.cursor() as cursor:
            cursor.execute(_NOTIFY, [CHANNEL, str(pk)])
    except Exception:
        logger.warning("A notice was not given: whoever follows the instance looks a little later.", exc_info=True)
