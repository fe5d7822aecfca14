"""A real cluster executes workflows and ordinary tasks, on either database."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connection, transaction
from django_q.models import OrmQ, Schedule
from django_q.tasks import async_task

from durableflow.core import dispatch
from durableflow.models import WorkflowInstance
from tests.support.cluster import cluster, until
from tests.workflows.cluster_samples import (
    ClusterHold,
    ClusterHoldOnce,
    ClusterNap,
    ClusterRetry,
    ClusterSteps,
    ClusterWait,
)

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The file that the bodies write to."""
    path = tmp_path / "bodies"
    path.touch()
    return str(path)


@pytest.fixture
def lines(log: str) -> Callable[[], list[str]]:
    """What the bodies wrote."""
    return lambda: Path(log).read_text().splitlines()


def complete(*rows: WorkflowInstance) -> bool:
    statuses = WorkflowInstance.objects.filter(pk__in=[row.pk for row in rows]).values_list("status", flat=True)
    assert not set(statuses) & {S.ERRORED, S.PAUSED, S.TERMINATED}, list(statuses)
    return all(status == S.COMPLETE for status in statuses)


def test_instances_complete_and_ordinary_tasks_are_served(
    tmp_path: Path, log: str, lines: Callable[[], list[str]]
) -> None:
    with cluster(tmp_path / "log") as running:
        rows = [ClusterSteps.create({"log": log, "name": f"w{n}"}) for n in range(20)]
        for n in range(10):
            async_task("tests.workflows.cluster_samples.write", log, f"task {n}")
        until(lambda: complete(*rows), "all instances complete")
        until(lambda: sum(line.startswith("task") for line in lines()) == 10, "all tasks ran")
        assert running.stop() == 0
        assert not running.alive()
    expected = [f"w{n} {which}" for n in range(20) for which in ("first", "second")] + [f"task {n}" for n in range(10)]
    assert sorted(lines()) == sorted(expected)
    assert OrmQ.objects.count() == 0


def test_a_task_is_not_starved_by_long_workflows_nor_the_other_way_round(
    tmp_path: Path, log: str, lines: Callable[[], list[str]]
) -> None:
    gate = tmp_path / "gate"
    with cluster(tmp_path / "log"):
        held = ClusterHold.create({"log": log, "name": "held", "gate": str(gate)})
        until(lambda: any("held began" in line for line in lines()), "the body runs")
        steps = [ClusterSteps.create({"log": log, "name": f"w{n}"}) for n in range(5)]
        async_task("tests.workflows.cluster_samples.write", log, "task")
        until(lambda: complete(*steps), "the other worker executes")
        until(lambda: "task" in lines(), "the other worker runs the task")
        gate.touch()
        until(lambda: complete(held), "the held instance completes")


def test_a_killed_worker_costs_an_attempt_and_nothing_else(
    tmp_path: Path, log: str, lines: Callable[[], list[str]]
) -> None:
    """CON-05 with a real worker: kill -9 in the middle of a body; another worker goes on."""
    gate = tmp_path / "gate"
    with cluster(tmp_path / "log", durableflow={"LEASE": 10}):
        row = ClusterHold.create({"log": log, "name": "held", "gate": str(gate)})
        until(lambda: any("held began" in line for line in lines()), "the body runs")
        pid = int(next(line.split()[-1] for line in lines() if "held began" in line))
        os.kill(pid, signal.SIGKILL)
        gate.touch()
        until(lambda: complete(row), "another worker completes it")
        other = ClusterSteps.create({"log": log, "name": "later"})
        until(lambda: complete(other), "the cluster goes on")
    begun = [line for line in lines() if "held began" in line]
    assert len(begun) == 2 and begun[0] != begun[1]
    assert [line for line in lines() if line == "held before"] == ["held before"], "a finished step never runs again"
    assert row.history.filter(type="attempt_lost").count() == 1


def test_a_body_that_outlasts_retry_runs_once(tmp_path: Path, log: str, lines: Callable[[], list[str]]) -> None:
    """CON-02: retry 1 s, no timeout, three workers, a longer body that may start once."""
    gate = tmp_path / "gate"
    with cluster(tmp_path / "log", durableflow={"LEASE": 10}, q_cluster={"retry": 1, "timeout": None, "workers": 3}):
        row = ClusterHoldOnce.create({"log": log, "name": "held", "gate": str(gate)})
        until(lambda: any("held began" in line for line in lines()), "the body runs")
        row.refresh_from_db()
        began = row.wake_at
        assert began is not None

        def renewed_past_retry() -> bool:
            row.refresh_from_db()
            return row.wake_at is not None and (row.wake_at - began).total_seconds() > 3

        until(renewed_past_retry, "the lease is renewed while the body runs")
        gate.touch()
        until(lambda: complete(row), "it completes")
    assert len(lines()) == 2


def test_a_sleep_that_ends_while_no_cluster_is_up_goes_on_at_the_next_start(
    tmp_path: Path, log: str, lines: Callable[[], list[str]]
) -> None:
    """TIM-01: due is due, however late."""
    with cluster(tmp_path / "log") as running:
        row = ClusterNap.create({"log": log, "name": "nap", "seconds": 7200})
        until(lambda: WorkflowInstance.objects.filter(pk=row.pk, status=S.WAITING).exists(), "it sleeps")
        assert running.stop() == 0
    advance([row])
    assert WorkflowInstance.objects.filter(pk=row.pk).due().exists(), "the sleep is over"
    assert lines() == ["nap before"]
    with cluster(tmp_path / "log2"):
        until(lambda: complete(row), "it goes on")
    assert lines() == ["nap before", "nap after"]


def test_the_queue_tables_hold_nothing_that_could_be_lost(
    tmp_path: Path, log: str, lines: Callable[[], list[str]]
) -> None:
    """TIM-02: sleeping, retrying and queued instances go on, once each, though every row of django-q2 is deleted."""
    sleeping = [ClusterNap.create({"log": log, "name": f"nap{n}", "seconds": 1}) for n in range(10)]
    retrying = [ClusterRetry.create({"log": log, "name": f"retry{n}"}) for n in range(5)]
    with cluster(tmp_path / "log"):
        rows = [row.pk for row in (*sleeping, *retrying)]
        until(lambda: WorkflowInstance.objects.filter(pk__in=rows, started__isnull=True).count() == 0, "all started")
        queued = [ClusterSteps.create({"log": log, "name": f"new{n}"}) for n in range(5)]
        OrmQ.objects.all().delete()
        Schedule.objects.all().delete()
        until(lambda: complete(*sleeping, *retrying, *queued), "all complete")
    naps = [f"nap{n} {when}" for n in range(10) for when in ("before", "after")]
    retries = [f"retry{n} tried" for n in range(5)] * 2
    news = [f"new{n} {which}" for n in range(5) for which in ("first", "second")]
    assert sorted(lines()) == sorted([*naps, *retries, *news])


def test_far_timers_never_enter_the_queue(tmp_path: Path, log: str, lines: Callable[[], list[str]]) -> None:
    """TIM-08: 200 instances sleep for two hours; the queue stays empty, and after the sleep each follow-up runs once."""
    rows = [ClusterNap.create({"log": log, "name": f"nap{n}", "seconds": 7200}) for n in range(200)]
    everybody = WorkflowInstance.objects.filter(pk__in=[row.pk for row in rows])
    with cluster(tmp_path / "log", q_cluster={"retry": 1, "timeout": 1}):
        until(lambda: everybody.filter(status=S.WAITING).count() == 200, "all sleep")
        probe = ClusterNap.create({"log": log, "name": "probe", "seconds": 1.5})
        until(lambda: complete(probe), "more than django-q2's retry has passed")
        assert len(lines()) == 202 and OrmQ.objects.count() == 0
        advance(rows)
        until(lambda: complete(*rows), "all complete")
    assert sorted(line for line in lines() if "after" in line) == sorted(
        ["probe after", *(f"nap{n} after" for n in range(200))]
    )


def advance(rows: list[WorkflowInstance]) -> None:
    """Let the time of these sleeps be over: the recorded moment and the wake move two hours back."""
    with transaction.atomic():
        for row in rows:
            row.refresh_from_db()
            [nap] = row.steps.filter(name="nap")
            assert row.wake_at is not None and nap.wake_at is not None
            back = row.wake_at - row.created
            row.steps.filter(pk=nap.pk).update(wake_at=nap.wake_at - back)
            WorkflowInstance.objects.filter(pk=row.pk).update(wake_at=row.wake_at - back)


@pytest.mark.postgresql_only
def test_broken_connections_are_replaced(tmp_path: Path, log: str, lines: Callable[[], list[str]]) -> None:
    """The server ends every session of the cluster; nothing is lost, and no process has to be started anew."""
    with cluster(tmp_path / "log") as running:
        for n in range(3):
            row = ClusterSteps.create({"log": log, "name": f"w{n}"})
            until(lambda row=row: complete(row), "it executes")  # type: ignore[misc]
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        assert not running.said("Traceback") and not running.said("reincarnated"), running.log.read_text()
    assert len(lines()) == 6


def test_a_lost_hint_costs_one_look(
    tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch, lines: Callable[[], list[str]]
) -> None:
    """CON-04: whoever commits dies before the hint: created, told, sleeping and resumed instances start all the same, once
    each."""
    monkeypatch.setattr(dispatch, "_listeners", [])
    resumed = ClusterSteps.create({"log": log, "name": "resumed"})
    WorkflowInstance.objects.filter(pk=resumed.pk).update(status=S.PAUSED, blocked="why", wake_at=None)
    with cluster(tmp_path / "log"):
        waiting = ClusterWait.create({"log": log, "name": "wait"})
        napping = ClusterNap.create({"log": log, "name": "nap", "seconds": 1})
        until(lambda: WorkflowInstance.objects.filter(pk=waiting.pk, status=S.WAITING).exists(), "it waits")
        waiting.send_event("go", 1)
        WorkflowInstance.objects.get(pk=resumed.pk).resume()
        until(lambda: complete(waiting, napping, resumed), "all complete")
    assert sorted(line for line in lines() if "resumed" not in line) == ["nap after", "nap before", "wait got 1"]
    assert max(Counter(lines()).values()) == 1


def test_killed_idle_processes_do_not_wedge_the_cluster(tmp_path: Path, log: str) -> None:
    """An idle worker holds the queue's lock when it is killed; so does the monitor. The others go on all the same."""
    with cluster(tmp_path / "log") as running:
        first = ClusterSteps.create({"log": log, "name": "first"})
        until(lambda: complete(first), "the cluster executes")
        for again in range(3):
            for pid in running.idle_readers(3):  # two workers and the monitor
                os.kill(pid, signal.SIGKILL)
            row = ClusterSteps.create({"log": log, "name": f"w{again}"})
            until(lambda row=row: complete(row), "new processes execute")
        running.idle_readers(3)
        assert running.stop() == 0
        assert not running.alive()
