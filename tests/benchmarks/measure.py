"""The measurements of one database: ``python -m tests.benchmarks.measure ROW...`` prints one JSON object.

A row that fails tells why in the place of its figures; the others are measured all the same.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402

from tests.benchmarks import bulk, latency, recovery, scale, speed  # noqa: E402

# In this order; admin_list_million looks at the rows that claim_million made.
MEASURED: dict[str, Callable[[], dict[str, Any]]] = {
    "checkpoint": speed.checkpoint,
    "instances": speed.instances,
    "start": latency.start,
    "event": latency.event,
    "timer": latency.timer,
    "kill": recovery.killed,
    "lost_host": recovery.lost_host,
    "io_pool": speed.io_pool,
    "replay": speed.replay,
    "idle": latency.idle,
    "claim_million": scale.claim_million,
    "admin_list_million": scale.admin_list_million,
}
KEEPS = ("admin_list_million",)


def main(names: list[str]) -> None:
    """Measure ``names`` on the database in use."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    call_command("migrate", verbosity=0)
    result: dict[str, Any] = {}
    for name, measure in MEASURED.items():
        if name not in names:
            continue
        began = time.monotonic()
        try:
            if name not in KEEPS:
                bulk.fresh()
            result[name] = measure()
        except Exception as error:
            traceback.print_exc()
            result[name] = {"failed": f"{type(error).__name__}: {error}"}
        print(
            f"{connection.vendor} {name}: {time.monotonic() - began:.1f} s {result[name]}", file=sys.stderr, flush=True
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
