"""The floor: a loop of one-row INSERT and COMMIT through the bare driver, on an indexed table of its own.

Plain Python without Django: the peers measure themselves against the same loop.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time

import psycopg

TABLE = "durableflow_floor"


def postgresql(conninfo: str, rows: int) -> float:
    """Seconds that ``rows`` such inserts take on PostgreSQL."""
    with psycopg.connect(conninfo) as raw:
        raw.execute("SET client_min_messages = error")
        raw.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (id bigserial PRIMARY KEY, k int, v text)")
        raw.execute(f"CREATE INDEX IF NOT EXISTS {TABLE}_k ON {TABLE} (k)")
        raw.commit()
        began = time.perf_counter()
        for number in range(rows):
            raw.execute(f"INSERT INTO {TABLE} (k, v) VALUES (%s, %s)", (number, "x" * 20))
            raw.commit()
        return time.perf_counter() - began


def alone(conninfo: str, rows: int) -> float:
    """The floor on PostgreSQL in a process of its own: the threads of an engine would slow the loop down."""
    command = [sys.executable, "-m", "tests.benchmarks.floor", conninfo, str(rows)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def sqlite(path: str, rows: int) -> float:
    """The same on the SQLite file ``path``, with the durability that the project's settings ask for."""
    raw = sqlite3.connect(path, timeout=20, isolation_level=None)
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


if __name__ == "__main__":
    print(postgresql(sys.argv[1], int(sys.argv[2])))
