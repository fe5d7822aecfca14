"""The floor: a loop of one-row INSERT and COMMIT through the bare driver, on an indexed table of its own."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from django.db import connection

TABLE = "durableflow_floor"


def seconds(rows: int) -> float:
    """How long ``rows`` such inserts take on the database in use."""
    return _postgres(rows) if connection.vendor == "postgresql" else _sqlite(rows)


def _postgres(rows: int) -> float:
    import psycopg

    connection.ensure_connection()
    params: dict[str, Any] = connection.get_connection_params()
    keep = {key: params[key] for key in ("dbname", "user", "password", "host", "port") if params.get(key)}
    with psycopg.connect(**keep) as raw:
        raw.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (id bigserial PRIMARY KEY, k int, v text)")
        raw.execute(f"CREATE INDEX IF NOT EXISTS {TABLE}_k ON {TABLE} (k)")
        raw.commit()
        began = time.perf_counter()
        for number in range(rows):
            raw.execute(f"INSERT INTO {TABLE} (k, v) VALUES (%s, %s)", (number, "x" * 20))
            raw.commit()
        return time.perf_counter() - began


def _sqlite(rows: int) -> float:
    raw = sqlite3.connect(str(connection.settings_dict["NAME"]), timeout=20, isolation_level=None)
    try:
        raw.execute("PRAGMA synchronous=NORMAL")
        raw.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY, k int, v text)")
        raw.execute(f"CREATE INDEX IF NOT EXISTS {TABLE}_k ON {TABLE} (k)")
        began = time.perf_counter()
        for number in range(rows):
            raw.execute("BEGIN IMMEDIATE")
            raw.execute(f"INSERT INTO {TABLE} (k, v) VALUES (?, ?)", (number, "x" * 20))
            raw.execute("COMMIT")
        return time.perf_counter() - began
    finally:
        raw.close()
