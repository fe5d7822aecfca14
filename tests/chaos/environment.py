"""The environment of the clusters."""

from __future__ import annotations

import argparse
import json
import os
from typing import Final

INSTANCES_OF_A_SLOT: Final = 150


def environment(options: argparse.Namespace, url: str, number: int = 0) -> dict[str, str]:
    """The environment of a cluster; every second one has threads."""
    durableflow = {"LEASE": options.lease, "THREADS": 1 + 3 * (number % 2)}
    return {
        **os.environ,
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
        "TEST_DURABLEFLOW": json.dumps(durableflow),
        "PYTHONUNBUFFERED": "1",
        # So few that there is a queue, so many that it does not decide how long the run takes.
        "CHAOS_SLOTS": str(max(2, options.instances // INSTANCES_OF_A_SLOT)),
    }
