"""``python -m tests.chaos``: the clusters, the killing, the judgement. The last line is JSON; exit status 0: all is well."""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import django

from tests.chaos.database import database
from tests.chaos.environment import environment

SQLITE_CLUSTERS = 2
SQLITE_INSTANCES = 5  # a fifth
SQLITE_SECONDS = 2  # half


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--database",
        choices=["postgresql", "sqlite", "both"],
        default="postgresql",
        help="both: PostgreSQL as told, then SQLite with two clusters, a fifth of the instances and half the time",
    )
    parser.add_argument("--clusters", type=int, default=3)
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=180, help="how long processes are killed")
    parser.add_argument("--calm", type=float, default=60, help="how long then none may end before it is given up")
    parser.add_argument("--restarts", type=int, default=3, help="how often the database is restarted")
    parser.add_argument("--lease", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0, help="who is killed when, in one order; 0: a random one")
    parser.add_argument("--logs", type=Path, help="a directory for ledger and logs, kept")
    return parser.parse_args()


def main() -> int:
    """Run as the command line says; the exit status."""
    options = parse()
    options.seed = options.seed or random.randrange(1, 1_000_000)
    if options.database == "both":
        return both(options)
    options.logs = options.logs or Path("var") / "chaos" / f"{options.database}-{options.seed}-{os.getpid()}"
    options.logs.mkdir(parents=True, exist_ok=True)
    # What the driver's own calls meet while the database is away is told in a file, as the clusters' logs are.
    logging.basicConfig(filename=options.logs / "driver.log")
    dice = random.Random(options.seed)
    with database(options.database, dice) as place:
        os.environ |= environment(options, place.url)
        django.setup()
        from tests.chaos.run import run  # models need the settings

        return run(options, place, dice)


def both(options: argparse.Namespace) -> int:
    """One database after the other, in processes of their own; the counts of both on the last line."""
    sqlite = {"clusters": SQLITE_CLUSTERS, "instances": options.instances // SQLITE_INSTANCES}
    sqlite["seconds"] = options.seconds / SQLITE_SECONDS
    results = {
        "postgresql": one(options, database="postgresql"),
        "sqlite": one(options, database="sqlite", **sqlite),
    }
    total = {
        key: sum(said.get(key, 0) for _, said in results.values()) for key in ("complete", "lost", "repeated", "twice")
    }
    sys.stdout.write(json.dumps(total | {name: said for name, (_, said) in results.items()}) + "\n")
    return max(status for status, _ in results.values())


def one(options: argparse.Namespace, **changed: Any) -> tuple[int, dict[str, Any]]:
    """The exit status and the JSON of a run; its lines are shown as they come."""
    given = {**vars(options), **changed, "logs": None}
    words = [word for key, value in given.items() if value is not None for word in (f"--{key}", str(value))]
    process = subprocess.Popen([sys.executable, "-m", "tests.chaos", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        last = line
        sys.stdout.write(line)
        sys.stdout.flush()
    status = process.wait()
    try:
        return status, json.loads(last)
    except ValueError:
        return status or 1, {"lost": given["instances"]}  # it broke off


if __name__ == "__main__":
    sys.exit(main())
