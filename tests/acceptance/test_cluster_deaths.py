"""Every process of a cluster is killed: nothing is lost, no finished body runs again, nobody is left behind, and the exit
status tells (issue; design 1, 4, 11)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from durableflow.cluster.children import gone
from durableflow.models import WorkflowInstance
from tests.support.cluster import ClusterProcess, cluster, until
from tests.workflows.cluster_samples import ClusterHold, ClusterSteps

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
LONG_LEASE = {"LEASE": 120}
"""With it, whatever goes on within a minute does so because the death was noticed."""


def complete(row: WorkflowInstance) -> bool:
    row.refresh_from_db()
    assert row.status not in (S.ERRORED, S.PAUSED, S.TERMINATED), row.status
    return row.status == S.COMPLETE


class Held:
    """An instance whose body runs until its gate opens."""

    def __init__(self, directory: Path, name: str = "held") -> None:
        self.log, self.gate, self.name = directory / f"{name}.bodies", directory / f"{name}.gate", name
        self.log.touch()
        self.row = ClusterHold.create({"log": str(self.log), "name": name, "gate": str(self.gate)})

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    @property
    def pids(self) -> list[int]:
        """The processes in which the body has begun."""
        return [int(line.split()[-1]) for line in self.lines if " began " in line]

    def begun(self, times: int = 1) -> int:
        until(lambda: len(self.pids) >= times, f"the body has begun {times} times")
        return self.pids[times - 1]

    def finish(self) -> None:
        """The body ends, and nothing that was finished has run twice."""
        self.gate.touch()
        until(lambda: complete(self.row), "the held instance completes")
        assert self.lines.count(f"{self.name} before") == 1, "a finished step never runs again"


def serves(directory: Path, name: str) -> None:
    """The cluster executes something new."""
    row = ClusterSteps.create({"log": str(directory / "new"), "name": name})
    until(lambda: complete(row), "the cluster goes on")


def test_a_killed_busy_worker_hands_over_at_once(tmp_path: Path) -> None:
    """Design 11: not when the lease ends; the sentinel knows the name under which the dead child claimed."""
    held = Held(tmp_path)
    with cluster(tmp_path / "log", durableflow=LONG_LEASE) as running:
        os.kill(held.begun(), signal.SIGKILL)
        killed = time.monotonic()
        held.begun(2)
        assert time.monotonic() - killed < 30, "far below the lease"
        held.finish()
        assert running.said("died of SIGKILL; what it executed goes on elsewhere")
        assert running.stop() == 0
        assert not running.alive()
    assert held.row.history.filter(type="attempt_lost").count() == 1


@pytest.mark.parametrize("role", ["pusher", "monitor"])
def test_a_killed_helper_is_replaced(tmp_path: Path, role: str) -> None:
    with cluster(tmp_path / "log", q_cluster={"workers": 1}) as running:
        for again in range(2):
            until(lambda: running.role(role), f"a {role}")
            before = running.role(role)
            assert before > 1
            os.kill(before, signal.SIGKILL)
            until(lambda before=before: running.role(role) not in (0, before), f"a new {role}")  # type: ignore[misc]
            serves(tmp_path, f"{role}{again}")
        assert running.stop() == 0
        assert not running.alive()


@pytest.mark.parametrize("role", ["sentinel", "main"])
def test_nobody_outlives_the_main_process_or_the_sentinel(tmp_path: Path, role: str) -> None:
    """The bodies of the dead cluster go on in the next one; the survivor of the two ends with an error."""
    held = Held(tmp_path)
    with cluster(tmp_path / "log", durableflow={"LEASE": 120 if role == "sentinel" else 2}) as running:
        worker = held.begun()
        os.kill(running.process.pid if role == "main" else running.sentinel(), signal.SIGKILL)
        status = running.process.wait(30)
        until(lambda: not running.alive(), "no orphan is left", 10)
        assert gone(worker)
        assert status == (-signal.SIGKILL if role == "main" else 1)
        assert running.said("The cluster has died: its sentinel") == (role == "sentinel")
    with cluster(tmp_path / "log2"):
        held.begun(2)
        held.finish()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_group_ends_it_in_good_order(tmp_path: Path, number: int) -> None:
    """The body that runs is finished, though the signal reached its process too; nothing new is begun."""
    held = Held(tmp_path)
    with cluster(tmp_path / "log") as running:
        held.begun()
        os.killpg(running.process.pid, number)
        until(lambda: running.said("stopped pushing tasks"), "it stops")
        held.gate.touch()
        assert running.process.wait(30) == 0
        assert not running.alive()
    assert complete(held.row)
    assert len(held.pids) == 1


def test_a_body_that_outlasts_the_grace_is_cut_off_and_goes_on_elsewhere(tmp_path: Path) -> None:
    """CON-12: a deploy in the middle of a long body; the lease is long, the hand-over is not."""
    held = Held(tmp_path)
    with cluster(tmp_path / "log", durableflow={"LEASE": 120, "SHUTDOWN_GRACE": 1}) as running:
        held.begun()
        assert running.stop() == 0
        assert not running.alive()
        assert running.said("outlasted the grace period")
    with cluster(tmp_path / "log2", durableflow=LONG_LEASE):
        held.begun(2)
        held.finish()
    assert held.row.history.filter(type="attempt_lost").count() == 1


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    held = Held(tmp_path)
    with cluster(tmp_path / "log", durableflow={"LEASE": 120, "SHUTDOWN_GRACE": 3600}) as running:
        held.begun()
        began = time.monotonic()
        running.process.send_signal(signal.SIGINT)
        until(lambda: running.said("stopped pushing tasks"), "it stops")
        running.process.send_signal(signal.SIGINT)
        echoed = not running.said("Ended at once")
        assert echoed or time.monotonic() - began > 1, "within a second it is the first one's echo"

        def ended() -> bool:
            if not running.said("Ended at once"):
                running.process.send_signal(signal.SIGTERM)
            return running.said("Ended at once")

        until(ended, "a later one ends it")
        assert running.process.wait(10) == 128 + signal.SIGTERM
        until(lambda: not running.alive(), "no orphan is left", 10)
    with cluster(tmp_path / "log2", durableflow=LONG_LEASE):
        held.begun(2)
        held.row.refresh_from_db()
        assert (held.row.interruptions, held.row.give_backs) == (0, 1), "cut off by a stop: no suspect"
        held.finish()


def test_everything_is_killed_at_once(tmp_path: Path) -> None:
    held = Held(tmp_path)
    with cluster(tmp_path / "log", durableflow={"LEASE": 2}) as running:
        held.begun()
        running.kill()
    with cluster(tmp_path / "log2", durableflow={"LEASE": 2}):
        held.begun(2)
        held.finish()


def test_a_worker_that_stood_still_for_longer_than_its_lease_writes_nothing(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT: another worker has gone on; what the first one brings is dropped."""
    held = Held(tmp_path)
    with cluster(tmp_path / "log", durableflow={"LEASE": 2}) as running:
        first = held.begun()
        running.freeze(first)
        held.begun(2)
        held.finish()
        running.thaw(first)
        until(lambda: f"held ended {first}" in held.lines, "the first body ends too")
        serves(tmp_path, "later")
        assert complete(held.row)
        assert held.row.steps.get(name="hold").output == held.pids[1] != first
        assert running.stop() == 0


def test_a_cluster_that_stood_still_goes_on(tmp_path: Path) -> None:
    """SIGSTOP of all its processes for longer than the lease."""
    held = Held(tmp_path)
    with cluster(tmp_path / "log", durableflow={"LEASE": 1}) as running:
        held.begun()
        running.freeze()
        late = ClusterSteps.create({"log": str(tmp_path / "late"), "name": "late"})
        row = WorkflowInstance.objects.filter(pk=held.row.pk)
        until(lambda: row.due().exists(), "the lease is over")
        running.thaw()
        until(lambda: complete(late), "what came meanwhile is executed")
        held.finish()
        assert running.stop() == 0
        assert not running.alive()


@pytest.fixture
def children_of() -> Callable[[ClusterProcess], set[int]]:
    """All processes below the main one."""
    return lambda running: {running.sentinel(), *running.members()}


def test_workers_are_recycled_with_threads_in_them(
    tmp_path: Path, children_of: Callable[[ClusterProcess], set[int]]
) -> None:
    """``recycle``: the worker ends when its threads have finished; OPS-06: django-q2's tables stay empty."""
    from django_q.models import OrmQ, Task

    with cluster(tmp_path / "log", durableflow={"THREADS": 4}, q_cluster={"workers": 1, "recycle": 1}) as running:
        before = children_of(running)
        for n in range(3):
            serves(tmp_path, f"w{n}")
        until(lambda: running.said("recycled worker"), "a worker was recycled")
        assert children_of(running) != before
        assert running.stop() == 0
        assert not running.alive()
    assert (OrmQ.objects.count(), Task.objects.count()) == (0, 0)
