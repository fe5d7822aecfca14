"""Telling those who follow instances, or wait for them, of what is written without the holder of a lease (``core.notices``)."""

from __future__ import annotations

from collections.abc import Collection

from durableflow.core import notices
from durableflow.engine.sql import INSTANCE, any_of, is_postgres, run


def tell(using: str, pks: Collection[int]) -> None:
    """Give a notice of each of these instances that somebody follows or waits for, after the commit (on SQLite it is seen by itself)."""
    if pks and is_postgres(using):
        among, params = any_of(using, "id", pks)
        sql = f"SELECT id FROM {INSTANCE} WHERE {among} AND {notices.marked_sql('CURRENT_TIMESTAMP')}"
        for (pk,) in run(using, sql, params):
            notices.give(using, pk)
