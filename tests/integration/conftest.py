"""Fixtures of tests that run the engine on a real database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from durableflow.core import clock, registry
from durableflow.core.durations import Duration, parse_duration


@pytest.fixture(autouse=True)
def isolated_registry() -> Iterator[None]:
    """Workflows that a test defines are forgotten at its end (case TST-04)."""
    with registry.isolated():
        yield


class StoppedClock:
    """The database's clock stands still, and jumps."""

    def advance(self, duration: Duration) -> datetime:
        """Let ``duration`` pass."""
        clock.move(self.now + parse_duration(duration))
        return self.now

    @property
    def now(self) -> datetime:
        """The moment at which it stands."""
        return clock.host_now()


@pytest.fixture
def stopped_clock() -> Iterator[StoppedClock]:
    """Time passes by ``stopped_clock.advance("1 hour")`` alone: for tests that commit and call ``drain()``."""
    with clock.stop(datetime(2026, 10, 1, 12, 0, 0, 123456, UTC)):
        yield StoppedClock()
