"""What is mended when the host's clock was set back (SQLite, design 4, "Time")."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from durableflow.cluster.wallclock import WallClock
from durableflow.core import clock
from durableflow.engine.claims import claim
from durableflow.models import WorkflowInstance
from tests.workflows.cluster_samples import ClusterSteps

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite_only]
HOUR = timedelta(hours=1)
S = WorkflowInstance.Status


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Set the host's clock."""

    def to(by: timedelta) -> None:
        monkeypatch.setattr(clock, "host_now", lambda: datetime.now(UTC) + by)

    return to


def wakes_in(row: WorkflowInstance) -> float:
    row.refresh_from_db()
    assert row.wake_at is not None
    return (row.wake_at - clock.host_now()).total_seconds()


def test_only_what_was_due_becomes_due(ahead: Callable[[timedelta], None]) -> None:
    ahead(HOUR)
    watch = WallClock()
    watch.look("default")
    new, timed, delivered, asleep, resumed = (
        ClusterSteps.create({"log": "/dev/null", "name": "w"}, start_at=timedelta(minutes=n)) for n in (0, 30, 0, 0, 0)
    )
    rows = WorkflowInstance.objects
    rows.filter(pk=timed.pk).update(wake_at=clock.host_now() - timedelta(seconds=5), created=clock.host_now() - HOUR)
    rows.filter(pk=delivered.pk).update(status=S.WAITING, claim_class=2)
    rows.filter(pk=asleep.pk).update(status=S.WAITING, claim_class=2, wake_at=clock.host_now() + HOUR)
    rows.filter(pk=resumed.pk).update(claim_class=2, created=clock.host_now() - HOUR)
    ahead(timedelta(0))
    assert min(wakes_in(row) for row in (new, delivered, asleep, resumed)) > 3500
    edge = watch.look("default")
    assert edge is not None and abs((edge - clock.host_now() - HOUR).total_seconds()) < 60
    assert max(wakes_in(row) for row in (new, delivered, resumed)) <= 0
    assert wakes_in(timed) > 3500, "a start_at is a moment"
    assert wakes_in(asleep) > 7000, "and so is the end of a sleep"
    late = ClusterSteps.create({"log": "/dev/null", "name": "late"})
    rows.filter(pk=late.pk).update(wake_at=clock.host_now() + HOUR / 2, created=clock.host_now() + HOUR / 2)
    assert watch.look("default") is None
    assert wakes_in(late) <= 0, "created before, committed after"


def test_no_lease_ends_later_than_it_could_have_been_claimed_for(ahead: Callable[[timedelta], None]) -> None:
    ahead(2 * HOUR)
    row = ClusterSteps.create({"log": "/dev/null", "name": "w"})
    assert claim("default")
    ahead(timedelta(0))
    assert wakes_in(row) > 7000
    assert WallClock().look("default") is None, "nobody has seen the clock being set, but no lease is that long"
    assert 0 < wakes_in(row) <= 15


def test_small_corrections_change_nothing(ahead: Callable[[timedelta], None], caplog: pytest.LogCaptureFixture) -> None:
    ahead(timedelta(seconds=1))
    watch = WallClock()
    watch.look("default")
    row = ClusterSteps.create({"log": "/dev/null", "name": "w"})
    ahead(timedelta(0))
    assert watch.look("default") is None
    row.refresh_from_db()
    assert row.wake_at == row.created and not caplog.records
