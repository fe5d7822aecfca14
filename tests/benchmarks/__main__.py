"""``make bench``: measure on PostgreSQL, beside the peers, and on SQLite; print a table and, as the last line, JSON
(keys: design 12). ``python -m tests.benchmarks [ROW...]`` measures some rows; ``PEERS=0`` leaves the peers out."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import report
from tests.benchmarks.databases import made, server
from tests.benchmarks.figures import median
from tests.benchmarks.peers import run as peers
from tests.benchmarks.processes import output

SECONDS = 600
NOT_ON_SQLITE = ("lost_host",)  # nothing in it depends on the database, and it takes a whole lease


def measure(url: str, rows: Sequence[str]) -> dict[str, Any]:
    """Run the measurements in a process of their own, on the database of ``url``."""
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings"}
    try:
        found: dict[str, Any] = output([sys.executable, "-m", "tests.benchmarks.measure", *rows], environment, SECONDS)
    except RuntimeError as error:
        return {row: {"failed": str(error)} for row in rows}
    return found


def on_postgresql(rows: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our figures and the peers'. Instances are measured before and after Absurd, so that both meet the same machine."""
    with server() as url, made(url, "bench_durableflow") as ours:
        found = measure(ours, rows)
        others = {}
        if os.environ.get("PEERS") != "0" and set(rows) & set(peers.ROWS):
            if not peers.available():
                print("The peers are left out: their environment is not there (make peers).", file=sys.stderr)
            for name in peers.PEERS if peers.available() else ():
                others[name] = peers.measure(name, url, rows)
                if name == "absurd" and "instances" in rows:
                    found["instances"] = joined(found["instances"], measure(ours, ["instances"])["instances"])
    return found, others


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The median of the rounds of both; the first if the second failed."""
    rounds = [*first.get("rounds", ()), *second.get("rounds", ())]
    return {"per_s": round(median(rounds)), "rounds": rounds} if rounds else first


def chosen(words: Sequence[str]) -> list[str]:
    """The rows that are asked for, all without a word; SystemExit for a name that is none."""
    if unknown := sorted(set(words) - set(report.ROWS)):
        sys.exit(f"There are no rows {', '.join(unknown)}. There are: {', '.join(report.ROWS)}.")
    rows = list(words or report.ROWS)
    return [*rows, "lost_host"] if "kill" in rows else rows


def main(words: Sequence[str]) -> int:
    """Print the tables and the JSON; 1 if a row of ours could not be measured."""
    rows = chosen(words)
    # Unwind: the programs that measure have sessions of their own and must not outlive this one.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    found: dict[str, Any] = {}
    found["postgresql"], others = on_postgresql(rows)
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'bench.sqlite3'}"
        found["sqlite"] = measure(url, [row for row in rows if row not in NOT_ON_SQLITE])
    found = report.with_ratio(found, others)
    print(report.table(found))
    if others:
        print(report.peers_table(others))
    print(json.dumps(report.shaped(found, others)))
    return int(any("failed" in data for data in [*found["postgresql"].values(), *found["sqlite"].values()]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
