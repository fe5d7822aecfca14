"""A stop at bad moments: while ordinary tasks run, while helper threads are in bodies, while the cluster starts (issue,
"SIGTERM and SIGINT"; case CON-12)."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from django_q.models import OrmQ
from django_q.tasks import async_task

from tests.acceptance.test_cluster_deaths import Held
from tests.support.cluster import ClusterProcess, cluster, until
from tests.support.database import child_environment
from tests.support.engine import history_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_ordinary_task_is_finished(tmp_path: Path) -> None:
    """However long it takes: the grace is for workflows. What waits behind it stays in the queue."""
    log, gate = tmp_path / "task", tmp_path / "gate"
    log.touch()
    constants = {"durableflow.cluster.hung.PATIENCE": 1.0, "durableflow.cluster.hung.STOP_PATIENCE": 0.5}
    settings = {"LEASE": 1, "SHUTDOWN_GRACE": 0.5}
    with cluster(tmp_path / "log", durableflow=settings, q_cluster={"workers": 1}, constants=constants) as running:
        async_task("tests.workflows.cluster_samples.hold", str(log), "task", str(gate))
        until(lambda: "task began" in log.read_text(), "the task runs")
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.said("stopped pushing tasks"), "it stops")
        asked = time.monotonic()
        until(lambda: time.monotonic() - asked > 3, "every patience with workflows is over")
        assert running.process.poll() is None
        gate.touch()
        assert running.process.wait(30) == 0
        assert not running.alive()
    assert "task ended" in log.read_text()
    assert OrmQ.objects.count() == 0


@pytest.mark.parametrize("in_time", [True, False])
def test_bodies_in_helper_threads_have_the_same_grace(tmp_path: Path, in_time: bool) -> None:
    """What was cut off goes on with one lost attempt, and none has its process for itself: nobody suspects it (design 6)."""
    held = [Held(tmp_path, f"held{n}") for n in range(3)]
    settings = {"LEASE": 120, "THREADS": 4, "SHUTDOWN_GRACE": 60 if in_time else 1}
    with cluster(tmp_path / "log", durableflow=settings, q_cluster={"workers": 1}) as running:
        assert len({each.begun() for each in held}) == 1, "all in one process"
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.said("stopped pushing tasks"), "it stops")
        if in_time:
            for each in held:
                each.finish()
        assert running.process.wait(30) == 0
        assert not running.alive()
        assert running.said("outlasted the grace period.") != in_time, "it ended itself, as replacement.OUTLASTED"
    assert [len(each.pids) for each in held] == [1, 1, 1]
    if not in_time:
        with cluster(tmp_path / "log2", durableflow=settings, q_cluster={"workers": 1}):
            assert len({each.begun(2) for each in held}) == 1, "all in one process at the same time"
            for each in held:
                each.finish()
    for each in held:
        lost = [] if in_time else [{"attempt": 1}]
        assert (history_of(each.row, "attempt_lost"), len(each.pids)) == (lost, 1 + len(lost))
        assert each.row.steps.get(name="hold").attempts == 1 + len(lost)


@pytest.mark.parametrize("at", ["Executing workflows", "ready for work", "guarding cluster"])
def test_a_stop_while_it_starts(tmp_path: Path, at: str) -> None:
    environment = child_environment(DJANGO_SETTINGS_MODULE="tests.support.cluster_settings")
    running = ClusterProcess(tmp_path / "log", environment)
    try:
        until(lambda: running.said(at) or running.process.poll() is not None, f"it says {at!r}")
        # Before its first fork it has no handler of its own, and may as well die of the signal.
        assert running.stop(group=True) in ((0, -signal.SIGTERM) if at == "Executing workflows" else (0,))
        until(lambda: not running.alive(), "no process is left", 10)
    finally:
        running.kill()
