"""An app that changes what a test must change in the processes of a real cluster, and what no setting changes.

``TEST_CONSTANTS``: a JSON object, dotted name of a module's constant to its value. ``TEST_CLOCK``: a file whose number of
seconds the host's clock is ahead by, read at each look at the clock. ``TEST_LOOKS``: the watchdog tells of each look.
``TEST_DEAF``: as long as this file exists, LISTEN is swallowed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path

from django.apps import AppConfig
from django.utils import timezone

from durableflow.cluster import postgresql
from durableflow.cluster.hint import CHANNEL
from durableflow.core import clock

_host_now, _time = clock.host_now, time.time


class HooksConfig(AppConfig):
    """Listed in INSTALLED_APPS by ``cluster_settings``."""

    name = "tests.support"
    label = "test_hooks"

    def ready(self) -> None:
        """Before the command runs, so before any fork."""
        for path, value in json.loads(os.environ.get("TEST_CONSTANTS") or "{}").items():
            module, _, name = path.rpartition(".")
            assert hasattr(import_module(module), name), path
            setattr(import_module(module), name, value)
        if file := os.environ.get("TEST_CLOCK"):
            set_clock(Path(file), setattr)
        if os.environ.get("TEST_LOOKS"):
            _tell_looks()
        if file := os.environ.get("TEST_DEAF"):
            postgresql.CHANNEL = _Swallowed(Path(file))  # type: ignore[attr-defined,assignment]


class _Swallowed:
    """The channel to listen to; another one while the file exists."""

    def __init__(self, file: Path) -> None:
        self._file, self._channel = file, CHANNEL

    def __str__(self) -> str:
        return "elsewhere" if self._file.exists() else self._channel


def _tell_looks() -> None:
    from durableflow.cluster import watchdog  # it needs the models

    observe = watchdog.observe

    def told(using: str) -> watchdog.Observed:
        seen = observe(using)
        sys.stderr.write(f"the watchdog looked: {seen}\n")
        return seen

    watchdog.observe = told


def set_clock(file: Path, patch: Callable[[object, str, object], object]) -> None:
    """Have this process believe that its host's clock is ahead by what ``file`` says."""

    def ahead() -> float:
        return float(file.read_text() or 0) if file.exists() else 0.0

    patch(clock, "host_now", lambda: _host_now() + timedelta(seconds=ahead()))
    patch(timezone, "now", lambda: datetime.now(UTC) + timedelta(seconds=ahead()))
    patch(time, "time", lambda: _time() + ahead())
