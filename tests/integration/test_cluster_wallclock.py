"""What is mended when the host's clock was set back (SQLite, design 4, "Time")."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone
from django_q.conf import Conf
from django_q.models import OrmQ
from django_q.signing import SignedPackage

from durableflow.cluster import Broker, broker
from durableflow.cluster.drains import Drains
from durableflow.cluster.wallclock import WallClock
from durableflow.core import clock
from durableflow.engine.claims import claim
from durableflow.models import WorkflowInstance
from tests.support.logs import logged
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
    watch, edges = WallClock(), list[datetime]()
    watch.look("default", edges.append)
    new, timed, delivered, asleep, resumed, undoing = (
        ClusterSteps.create({"log": "/dev/null", "name": "w"}, start_at=timedelta(minutes=n))
        for n in (0, 30, 0, 0, 0, 0)
    )
    rows = WorkflowInstance.objects
    rows.filter(pk=timed.pk).update(wake_at=clock.host_now() - timedelta(seconds=5), created=clock.host_now() - HOUR)
    rows.filter(pk=delivered.pk).update(status=S.WAITING, claim_class=2)
    rows.filter(pk=asleep.pk).update(status=S.WAITING, claim_class=2, wake_at=clock.host_now() + HOUR)
    rows.filter(pk=undoing.pk).update(status=S.ROLLING_BACK, claim_class=2)
    rows.filter(pk=resumed.pk).update(claim_class=2, created=clock.host_now() - HOUR)
    ahead(timedelta(0))
    assert min(wakes_in(row) for row in (new, delivered, asleep, resumed, undoing)) > 3500
    watch.look("default", edges.append)
    (edge,) = edges
    assert abs((edge - clock.host_now() - HOUR).total_seconds()) < 60
    assert max(wakes_in(row) for row in (new, delivered, resumed, undoing)) <= 0
    assert wakes_in(timed) > 3500, "a start_at is a moment"
    assert wakes_in(asleep) > 7000, "and so is the end of a sleep"
    late = ClusterSteps.create({"log": "/dev/null", "name": "late"})
    rows.filter(pk=late.pk).update(wake_at=clock.host_now() + HOUR / 2, created=clock.host_now() + HOUR / 2)
    watch.look("default", edges.append)
    assert wakes_in(late) <= 0, "created before, committed after"
    assert edges == [edge], "the rest is done once"


def test_no_lease_ends_later_than_it_could_have_been_claimed_for(ahead: Callable[[timedelta], None]) -> None:
    ahead(2 * HOUR)
    row = ClusterSteps.create({"log": "/dev/null", "name": "w"})
    assert claim("default")
    ahead(timedelta(0))
    assert wakes_in(row) > 7000
    edges: list[datetime] = []
    WallClock().look("default", edges.append)
    assert not edges, "nobody has seen the clock being set"
    assert 0 < wakes_in(row) <= 15, "but no lease is that long"


def test_a_lease_that_may_be_another_clusters_is_left_alone(ahead: Callable[[timedelta], None]) -> None:
    """Where nobody has seen the clock being set, only a lease that no setting allows tells of it."""
    row = ClusterSteps.create({"log": "/dev/null", "name": "w"})
    assert claim("default")
    WorkflowInstance.objects.filter(pk=row.pk).update(wake_at=clock.host_now() + HOUR / 2)
    WallClock().look("default", lambda edge: pytest.fail("nothing was seen"))
    assert wakes_in(row) > 1700


def test_set_back_twice_the_first_moment_counts(ahead: Callable[[timedelta], None]) -> None:
    """What was created before the first time may be committed after the second."""
    ahead(2 * HOUR)
    watch, edges = WallClock(), list[datetime]()
    for by in (2 * HOUR, HOUR, timedelta(0)):
        ahead(by)
        watch.look("default", edges.append)
    late = ClusterSteps.create({"log": "/dev/null", "name": "late"})
    made = clock.host_now() + HOUR * 1.5
    WorkflowInstance.objects.filter(pk=late.pk).update(wake_at=made, created=made)
    watch.look("default", edges.append)
    assert wakes_in(late) <= 0


def test_what_fails_is_done_again(ahead: Callable[[timedelta], None]) -> None:
    """The database is busy between two of the statements: the next look does not take it for done."""
    ahead(HOUR)
    watch, edges = WallClock(), list[datetime]()

    def busy(edge: datetime) -> None:
        edges.append(edge)
        raise OperationalError("database is locked")

    watch.look("default", edges.append)
    ahead(timedelta(0))
    with pytest.raises(OperationalError):
        watch.look("default", busy)
    watch.look("default", edges.append)
    watch.look("default", edges.append)
    assert len(edges) == 2 and edges[0] == edges[1]


def test_small_corrections_change_nothing(ahead: Callable[[timedelta], None], caplog: pytest.LogCaptureFixture) -> None:
    ahead(timedelta(seconds=1))
    watch, edges = WallClock(), list[datetime]()
    watch.look("default", edges.append)
    row = ClusterSteps.create({"log": "/dev/null", "name": "w"})
    ahead(timedelta(0))
    watch.look("default", edges.append)
    assert not edges
    row.refresh_from_db()
    assert row.wake_at == row.created and not logged(caplog)


def test_ordinary_tasks_that_were_due_are_due(
    ahead: Callable[[timedelta], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a worker has in hand is locked beyond the hour, and is not given to a second."""
    monkeypatch.setattr(broker, "DRAINS", Drains())
    monkeypatch.setattr(broker, "LONGEST_WAIT", 0.0)
    monkeypatch.setattr(Conf, "POLL", Conf.POLL)
    tick = Broker("durableflow")
    ahead(HOUR)
    tick.dequeue()
    begun, queued = (OrmQ.objects.get(pk=tick.enqueue(SignedPackage.dumps({"id": name}))) for name in ("a", "b"))
    OrmQ.objects.filter(pk=begun.pk).update(lock=timezone.now() + HOUR + timedelta(seconds=60))
    OrmQ.objects.filter(pk=queued.pk).update(lock=timezone.now() + HOUR / 2)
    ahead(timedelta(0))
    tasks = tick.dequeue() or []
    tick._listener.close()
    assert [pk for pk, _package in tasks] == [queued.pk]
