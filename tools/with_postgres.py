"""Run a command with ``DATABASE_URL`` set to a throwaway PostgreSQL: ``python -m tools.with_postgres COMMAND...``

A ``DATABASE_URL`` that is already set wins: then no server is started. Exits with the command's status; the server is
stopped and its directory removed however the command ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

from tests.support.postgres import postgres

GRACE_SECONDS = 20


def run(command: list[str]) -> int:
    """Run ``command`` to its end; whatever interrupts us, it does not outlive us."""
    child = subprocess.Popen(command)
    try:
        return child.wait()
    except KeyboardInterrupt:
        # Ctrl-C reached the command too: let it end in its own way.
        return child.wait(GRACE_SECONDS)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM and SIGHUP unwind, so that every ``finally`` runs; a second one does not interrupt that."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    command = sys.argv[1:]
    if not command:
        sys.exit("usage: python -m tools.with_postgres COMMAND...")
    if os.environ.get("DATABASE_URL"):
        return run(command)
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGHUP, terminate)
    with postgres() as url:
        os.environ["DATABASE_URL"] = url
        status = run(command)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
