"""Start each peer's program in the peers' environment, on a database of its own on the same server."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.databases import made
from tests.benchmarks.processes import output

PYTHON = Path(__file__).resolve().parents[3] / ".venv-peers" / "bin" / "python"
SECONDS = 180
PEERS = {
    "absurd": ("tests.benchmarks.peers.absurd", ()),
    "dbos": ("tests.benchmarks.peers.dbos", ()),
    "djangoq_orm": ("tests.benchmarks.peers.djangoq", ("orm",)),
    "djangoq_redis": ("tests.benchmarks.peers.djangoq", ("redis",)),
}
# Our rows that a peer has too, and what it calls them.
ROWS = {"checkpoint": "steps", "instances": "instances", "start": "start", "event": "event"}


def available() -> bool:
    """Whether the environment was made."""
    return PYTHON.exists()


def measure(name: str, server: str, rows: Sequence[str]) -> dict[str, Any]:
    """The figures of one peer; ``failed`` in their place if its program does not end well."""
    module, words = PEERS[name]
    wanted = [ROWS[row] for row in rows if row in ROWS]
    environment = {
        key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")
    }
    try:
        with made(server, f"bench_{name}") as url:
            found: dict[str, Any] = output([str(PYTHON), "-m", module, url, *words, *wanted], environment, SECONDS)
    except RuntimeError as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return {"failed": str(error)}
    return found
