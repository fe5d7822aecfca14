"""``make bench``: measure on SQLite and on PostgreSQL, print a table and, as the last line, JSON (keys: design 12)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.postgres import postgres

ROWS = (
    ("checkpoint / floor", "checkpoint", "ratio", "x"),
    ("checkpoint, 1,000 steps", "checkpoint", "ms", "ms each"),
    ("instances of 3 steps", "instances", "per_s", "/s"),
    ("idle start, p50", "start", "p50_ms", "ms"),
    ("idle start, p95", "start", "p95_ms", "ms"),
    ("event to body, p50", "event", "p50_ms", "ms"),
    ("event to body, p95", "event", "p95_ms", "ms"),
    ("timer late, p50", "timer", "p50_ms", "ms"),
    ("timer late, p95", "timer", "p95_ms", "ms"),
)


def measure(url: str) -> dict[str, Any]:
    """Run the measurements in a process of their own, on the database of ``url``."""
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.measure"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@contextmanager
def server() -> Iterator[str]:
    """The PostgreSQL of DATABASE_URL, or a throwaway one."""
    given = os.environ.get("DATABASE_URL", "")
    if given.startswith("postgres"):
        yield given
        return
    with postgres() as url:
        yield url


def main() -> None:
    """Print the table and the JSON."""
    with tempfile.TemporaryDirectory() as directory:
        found = {"sqlite": measure(f"sqlite:///{Path(directory) / 'bench.sqlite3'}")}
    with server() as url:
        found["postgresql"] = measure(url)
    print(f"{'':26}{'PostgreSQL':>14}{'SQLite':>14}")
    for label, group, key, unit in ROWS:
        print(f"{label:26}{found['postgresql'][group][key]:>14}{found['sqlite'][group][key]:>14} {unit}")
    print(json.dumps(shaped(found)))


def shaped(found: dict[str, Any]) -> dict[str, Any]:
    """The figures under the agreed keys."""
    result: dict[str, Any] = {
        "checkpoint": {
            "postgresql": {"ratio": found["postgresql"]["checkpoint"]["ratio"]},
            "sqlite": {"ms": found["sqlite"]["checkpoint"]["ms"]},
        }
    }
    for group in ("instances", "start", "event", "timer"):
        result[group] = {database: found[database][group] for database in ("postgresql", "sqlite")}
    return result


if __name__ == "__main__":
    main()
