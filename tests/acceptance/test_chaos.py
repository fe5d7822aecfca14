"""A short form of ``make chaos``: real clusters, killed processes, a database that is restarted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from django.db import connection

from project.settings import BASE_DIR

SECONDS = {"sqlite": ["--clusters", "2", "--instances", "15"], "postgresql": ["--clusters", "3", "--instances", "30"]}


def test_nothing_is_lost_whatever_is_killed(tmp_path: Path) -> None:
    """CON-01, CON-04, CON-05, CON-06, CON-10, OPS-07: every instance completes, no finished body is repeated, no event
    is applied twice, no process and no row is left, and every cluster stops as it should.

    A run of its own, on a database of its own: it is stopped at once and started again in the middle.
    """
    command = [sys.executable, "-m", "tests.chaos", "--database", connection.vendor, *SECONDS[connection.vendor]]
    command += ["--seconds", "10", "--restarts", "1", "--lease", "3", "--logs", str(tmp_path)]
    done = subprocess.run(command, cwd=BASE_DIR, capture_output=True, text=True, check=False)
    said = f"{done.stdout}\n{done.stderr}"
    numbers = json.loads(done.stdout.splitlines()[-1])
    assert (numbers["lost"], numbers["repeated"], numbers["twice"], numbers["stuck"]) == (0, 0, 0, 0), said
    assert numbers["complete"] == numbers["instances"], said
    assert numbers["kills"], said
    assert done.returncode == 0, said
