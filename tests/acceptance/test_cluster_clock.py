"""The host's clock is set back or forward while a cluster works (issue; design 4, "Time"; docs/cluster.md, "The clock").

On SQLite the host's clock is the only one: every process of the host, this test among them, is patched to see it jump.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from durableflow.core import clock
from durableflow.models import WorkflowInstance
from tests.acceptance.test_cluster_deaths import Held, complete, serves
from tests.support.cluster import cluster, until
from tests.support.hooks import set_clock
from tests.workflows.cluster_samples import ClusterNap, ClusterSteps

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = 3600
LEASE = {"LEASE": 9}
Set = Callable[[float], None]


@pytest.fixture
def clock_file(tmp_path: Path) -> Path:
    """What the host's clock is ahead by, for the processes that are told of the file."""
    return tmp_path / "clock"


@pytest.fixture
def set_host_clock(clock_file: Path, monkeypatch: pytest.MonkeyPatch) -> Set:
    """Set the clock of the whole host, this test's too, so many seconds ahead of the true time."""
    set_clock(clock_file, monkeypatch.setattr)

    def to(seconds: float) -> None:
        new = clock_file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(clock_file)

    return to


def renewed(row: WorkflowInstance) -> bool:
    """Whether the lease ends within a few seconds by the clock as it is now, and nobody doubts it."""
    row.refresh_from_db()
    assert row.wake_at is not None
    left = (row.wake_at - clock.host_now()).total_seconds()
    return 0 < left <= LEASE["LEASE"] and not row.suspect


def asleep(directory: Path, name: str, seconds: float) -> WorkflowInstance:
    """An instance that has told that it begins, and sleeps."""
    nap = ClusterNap.create({"log": str(directory / "nap"), "name": name, "seconds": seconds})
    until(lambda: WorkflowInstance.objects.filter(pk=nap.pk, status="waiting").exists(), "it sleeps")
    return nap


@pytest.mark.sqlite_only
def test_set_forward_nothing_is_stolen_or_lost(tmp_path: Path, clock_file: Path, set_host_clock: Set) -> None:
    """Every lease is over at once; the live worker renews it before anybody may take it. A timer is a moment: it is due."""
    held = Held(tmp_path)
    with cluster(tmp_path / "log", durableflow=LEASE, TEST_CLOCK=str(clock_file)) as running:
        held.begun()
        nap = asleep(tmp_path, "nap", HOUR / 2)
        set_host_clock(HOUR)
        until(lambda: complete(nap), "a timer in that hour is due")
        until(lambda: renewed(held.row), "the lease is renewed")
        serves(tmp_path, "new")
        held.finish()
        assert running.said("set forward by 3600 s")
        assert running.stop() == 0
    assert len(held.pids) == 1, "nobody has taken it over"
    assert (tmp_path / "nap").read_text().split("\n")[:-1] == ["nap before", "nap after"]


@pytest.mark.sqlite_only
def test_set_back_what_was_due_goes_on(tmp_path: Path, clock_file: Path, set_host_clock: Set) -> None:
    """What was due, or leased, by the old clock does not wait for the hour to come again; a timer does."""
    held = [Held(tmp_path, f"held{n}") for n in range(2)]
    set_host_clock(HOUR)
    with cluster(tmp_path / "log", durableflow=LEASE, TEST_CLOCK=str(clock_file)) as running:
        for each in held:
            each.begun()
        behind = [ClusterSteps.create({"log": str(tmp_path / "new"), "name": f"w{n}"}) for n in range(3)]
        timed = ClusterSteps.create({"log": str(tmp_path / "new"), "name": "timed"}, start_at=timedelta(minutes=10))
        set_host_clock(0)
        until(lambda: all(renewed(each.row) for each in held), "the leases are renewed by the new clock")
        until(lambda: running.said("set back by 3600 s"), "it is noticed")
        held[0].finish()
        until(lambda: all(complete(row) for row in behind), "what was due goes on")
        serves(tmp_path, "later")
        held[1].finish()
        timed.refresh_from_db()
        assert timed.status == WorkflowInstance.Status.QUEUED, "a start_at is a moment"
        assert running.stop() == 0
    assert [len(each.pids) for each in held] == [1, 1]


@pytest.mark.sqlite_only
@pytest.mark.parametrize("seen", [True, False])
def test_set_back_a_dead_clusters_work_goes_on(
    tmp_path: Path, clock_file: Path, set_host_clock: Set, seen: bool
) -> None:
    """Its leases, and what it had not begun, whether another cluster was up when the clock was set or came later."""
    held = Held(tmp_path)
    set_host_clock(2 * HOUR)
    with cluster(tmp_path / "log", durableflow={"LEASE": 120}, TEST_CLOCK=str(clock_file)) as first:
        held.begun()
        first.kill()
    behind = ClusterSteps.create({"log": str(tmp_path / "new"), "name": "behind"})
    if not seen:
        set_host_clock(0)
    with cluster(tmp_path / "log2", durableflow=LEASE, TEST_CLOCK=str(clock_file)) as second:
        if seen:
            until(lambda: complete(behind), "the second cluster works")
            set_host_clock(0)
        held.begun(2)
        held.finish()
        until(lambda: complete(behind), "what had not begun goes on")
        assert second.stop() == 0


@pytest.mark.postgresql_only
def test_postgresql_has_a_clock_of_its_own(tmp_path: Path, clock_file: Path, set_host_clock: Set) -> None:
    """The host jumps an hour forward and two hours back: leases and timers know nothing of it."""
    held = Held(tmp_path)
    with cluster(tmp_path / "log", durableflow=LEASE, TEST_CLOCK=str(clock_file)) as running:
        held.begun()
        far = asleep(tmp_path, "far", HOUR / 2)
        for n, ahead in enumerate((HOUR, -HOUR)):
            set_host_clock(ahead)
            near = ClusterNap.create({"log": str(tmp_path / "nap"), "name": f"near{n}", "seconds": 1})
            until(lambda near=near: complete(near), "a short sleep ends in its time")  # type: ignore[misc]
            serves(tmp_path, f"w{n}")
        assert WorkflowInstance.objects.filter(pk=far.pk, status="waiting").exists()
        held.finish()
        assert running.stop() == 0
    assert len(held.pids) == 1
