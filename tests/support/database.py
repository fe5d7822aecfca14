"""The test database as a URL, for child processes."""

from __future__ import annotations

import os

from django.db import connection

from project.database import to_url


def child_environment(**extra: str) -> dict[str, str]:
    """Environment for a child process that shall work on this test's database with the test settings.

    The test must commit (``transaction=True``), and end the child before it ends itself.
    """
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": to_url(connection.settings_dict),
        **extra,
    }
