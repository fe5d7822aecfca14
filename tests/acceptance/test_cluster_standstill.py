"""What the watchdog and the sentinel do about processes that live and do nothing, and what is no standstill (issue; design
4, "a watchdog exits non-zero")."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from django.db import transaction
from django.utils import timezone

from durableflow.models import WorkflowInstance
from tests.acceptance.test_cluster_deaths import Held, complete, serves
from tests.support.cluster import ClusterProcess, cluster, until
from tests.workflows.cluster_samples import ClusterSeize, ClusterSteps

pytestmark = pytest.mark.django_db(transaction=True)
WATCHDOG: Final = "durableflow.cluster.watchdog."
SOON: Final = {
    WATCHDOG + "OVERDUE": 2.0,
    WATCHDOG + "SILENT": 4.0,
    WATCHDOG + "IDLE": 0.5,
    WATCHDOG + "LOOK": 0.5,
    "durableflow.cluster.run.ORDERLY": 2.0,
}
"""A minute of patience becomes a few seconds."""
LOOKS: Final = 8
"""Enough for a watchdog that would bark."""


def looks(running: ClusterProcess, more: int = LOOKS) -> None:
    """Wait until the watchdog has looked so many times more."""
    before = said_looks(running)
    until(lambda: said_looks(running) >= before + more or running.process.poll() is not None, "the watchdog looks")


def said_looks(running: ClusterProcess) -> int:
    return running.log.read_text(errors="replace").count("the watchdog looked")


def created(directory: Path, name: str) -> WorkflowInstance:
    return ClusterSteps.create({"log": str(directory / "new"), "name": name})


@pytest.mark.parametrize("role", ["pusher", "sentinel"])
def test_a_helper_that_stands_still_ends_the_cluster(tmp_path: Path, role: str) -> None:
    """Status 75 for a service manager, one last message that says why, no orphan, and the work is done by the next cluster."""
    with cluster(tmp_path / "log", durableflow={"SHUTDOWN_GRACE": 1}, constants=SOON) as running:
        serves(tmp_path, "before")
        running.freeze(running.role("pusher") if role == "pusher" else running.sentinel())
        row = created(tmp_path, "late")
        assert running.process.wait(60) == 75
        last = running.log.read_text().splitlines()[-1]
        assert "The cluster has ended with status 75, because it stood still: " in last
        assert (
            f"the {role} has given no sign of life for" in last or "work has been due for" in last
        )  # what is seen first
        assert running.log.read_text().count("has ended with status 75") == 1
        assert not running.said("The cluster has died")
        until(lambda: not running.alive(), "no orphan is left", 10)
    with cluster(tmp_path / "log2"):
        until(lambda: complete(row), "the next cluster goes on")


def test_work_that_waits_for_busy_workers_is_no_standstill(tmp_path: Path) -> None:
    """Long bodies on all workers, with work due behind them."""
    held = [Held(tmp_path, f"held{n}") for n in range(2)]
    with cluster(tmp_path / "log", constants=SOON, TEST_LOOKS="1") as running:
        for each in held:
            each.begun()
        row = created(tmp_path, "late")
        looks(running)
        row.refresh_from_db()
        assert row.status == WorkflowInstance.Status.QUEUED
        for each in held:
            each.finish()
        until(lambda: complete(row), "it goes on")
        assert running.stop() == 0


def test_what_a_users_transaction_holds_is_no_standstill(tmp_path: Path) -> None:
    """PostgreSQL: its row; SQLite: the whole database. All workers are idle, and nobody could claim it."""
    with cluster(tmp_path / "log", constants=SOON, TEST_LOOKS="1") as running:
        serves(tmp_path, "before")
        running.freeze()  # so that it is held before anybody claims it
        row = created(tmp_path, "late")
        with transaction.atomic():
            held = WorkflowInstance.objects.select_for_update().get(pk=row.pk)
            WorkflowInstance.objects.filter(pk=row.pk).update(give_backs=0)
            assert held.status == WorkflowInstance.Status.QUEUED
            running.thaw()
            until(lambda: overdue(row) > 2.5, "it is overdue")
            looks(running)
        until(lambda: complete(row), "it goes on")
        assert running.stop() == 0
        assert not running.said("stands still")


def test_a_machine_that_has_slept_is_no_standstill(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT of the whole cluster: everything is overdue, and nobody is to blame."""
    with cluster(tmp_path / "log", constants=SOON, TEST_LOOKS="1") as running:
        serves(tmp_path, "before")
        running.freeze()
        row = created(tmp_path, "late")
        until(lambda: overdue(row) > 6, "everything has been silent for longer than the watchdog's patience")
        running.thaw()
        looks(running)
        until(lambda: complete(row), "it goes on")
        assert running.stop() == 0


def seized(directory: Path) -> WorkflowInstance:
    """An instance whose body holds its process's interpreter lock."""
    log = directory / "seized"
    log.touch()
    row = ClusterSeize.create({"log": str(log), "name": "w"})
    until(lambda: "w seized" in log.read_text(), "the body has begun")
    return row


def test_a_worker_in_which_nothing_runs_any_more_is_replaced(tmp_path: Path) -> None:
    """A body in C that holds the interpreter's lock: neither time-out nor renewal nor exit is possible in there."""
    constants = {"durableflow.cluster.hung.PATIENCE": 3.0}
    with cluster(tmp_path / "log", durableflow={"LEASE": 1}, q_cluster={"workers": 1}, constants=constants) as running:
        row = seized(tmp_path)
        until(lambda: complete(row), "it goes on in the next worker")
        assert running.said("gives no sign of life for") and running.said("it is killed")
        serves(tmp_path, "after")
        assert running.stop() == 0
        assert not running.alive()
    assert row.history.filter(type="attempt_lost").count() == 1


def test_a_worker_in_which_nothing_runs_any_more_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    constants = {"durableflow.cluster.hung.STOP_PATIENCE": 1.0}
    settings = {"LEASE": 120, "SHUTDOWN_GRACE": 1}
    with cluster(tmp_path / "log", durableflow=settings, constants=constants) as running:
        row = seized(tmp_path)
        assert running.stop() == 0
        assert running.said("s after it was asked to stop; it is killed")
        assert not running.alive()
    with cluster(tmp_path / "log2", durableflow=settings):
        until(lambda: complete(row), "it goes on at once in the next cluster")


def overdue(row: WorkflowInstance) -> float:
    assert row.wake_at is not None
    return (timezone.now() - row.wake_at).total_seconds()
