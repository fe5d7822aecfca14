"""Fixtures of tests that run the engine on a real database."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from durableflow.core import clock, registry
from durableflow.core.conf import get_settings
from durableflow.core.durations import Duration, parse_duration
from durableflow.engine.branches import branches
from durableflow.models import WorkflowInstance

WATCHERS = ("durableflow-renewal", "durableflow-errands")


@pytest.fixture(autouse=True)
def isolated_registry() -> Iterator[None]:
    """Workflows that a test defines are forgotten at its end (case TST-04)."""
    with registry.isolated():
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_connections_at_the_end(django_db_setup: None) -> Iterator[None]:
    """A database to which threads are connected cannot be deleted. Those of the watcher let go when nothing is executed."""
    yield
    branches().end(10)
    end = time.monotonic() + 10
    while time.monotonic() < end and any(thread.name in WATCHERS for thread in threading.enumerate()):
        time.sleep(0.02)


class StoppedClock:
    """The database's clock stands still, and jumps."""

    def advance(self, duration: Duration) -> datetime:
        """Let ``duration`` pass."""
        clock.move(self.now + parse_duration(duration))
        return self.now

    def go_back(self, duration: Duration) -> datetime:
        """The clock is set back by ``duration``."""
        clock.move(self.now - parse_duration(duration))
        return self.now

    def outlast_leases(self) -> datetime:
        """Let so much time pass, with looks at it, that every lease may be taken over (design 4, "Takeover")."""
        WorkflowInstance.objects.filter(lease_token__isnull=False).update(suspect=True)
        return self.advance(get_settings().LEASE * 4 / 3)

    @property
    def now(self) -> datetime:
        """The moment at which it stands."""
        return clock.host_now()


@pytest.fixture
def stopped_clock() -> Iterator[StoppedClock]:
    """Time passes by ``stopped_clock.advance("1 hour")`` alone: for tests that commit and call ``drain()``."""
    with clock.stop(datetime(2026, 10, 1, 12, 0, 0, 123456, UTC)):
        yield StoppedClock()
