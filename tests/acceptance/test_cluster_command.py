"""How ``manage.py durableflow_cluster`` starts and ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.db import connection

from durableflow.cluster.tasks import SLICE
from durableflow.models import WorkflowInstance
from project.settings import BASE_DIR
from tests.support.cluster import cluster, until
from tests.support.database import child_environment
from tests.workflows.cluster_samples import ClusterHold, ClusterSteps

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
OURS = {"broker_class": "durableflow.cluster.Broker", "workers": 1, "timeout": 60, "retry": 120}
STOCK = {"broker_class": None, "orm": "default", "name": "tasks"}


def status(row: WorkflowInstance) -> str:
    row.refresh_from_db()
    return row.status


def test_it_says_what_it_serves(tmp_path: Path) -> None:
    with cluster(tmp_path / "log", q_cluster={"workers": 1}) as running:
        name = connection.settings_dict["NAME"]
        assert running.said(f"database 'default' ({connection.vendor}, {name}) with 1 worker, queue 'durableflow'.")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_finishes_the_body_that_runs(tmp_path: Path, number: int) -> None:
    log, gate = tmp_path / "bodies", tmp_path / "gate"
    with cluster(tmp_path / "log") as running:
        row = ClusterHold.create({"log": str(log), "name": "held", "gate": str(gate)})
        until(lambda: log.exists() and "held began" in log.read_text(), "the body runs")
        began = time.monotonic()
        running.process.send_signal(number)
        until(lambda: running.said("stopped pushing tasks"), "nothing new is handed out")
        until(lambda: time.monotonic() - began > SLICE, "the drain's slice is over")
        late = ClusterSteps.create({"log": str(log), "name": "late"})
        gate.touch()
        assert running.process.wait(30) == 0
        assert not running.alive()
    assert status(row) == S.COMPLETE
    assert status(late) == S.QUEUED, "nothing is begun after the signal"


def test_a_signal_to_the_whole_group_ends_it(tmp_path: Path) -> None:
    with cluster(tmp_path / "log") as running:
        running.stop(signal.SIGTERM, group=True, seconds=20)
        until(lambda: not running.alive(), "all processes have ended")


def test_a_cluster_whose_sentinel_died_ends_with_an_error(tmp_path: Path) -> None:
    with cluster(tmp_path / "log") as running:
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
        [sentinel] = children.read_text().split()
        subprocess.run(["kill", "-9", sentinel], check=True)
        assert running.process.wait(30) == 1
        assert running.log.read_text().count("The cluster has died") == 1


def test_it_becomes_the_cluster_that_the_setting_names(tmp_path: Path) -> None:
    """api.md, "django-q2 on Redis is already there": here the old tasks are on a stock broker of another kind."""
    q_cluster = {**STOCK, "ALT_CLUSTERS": {"flows": OURS}}
    log = tmp_path / "bodies"
    with cluster(tmp_path / "log", durableflow={"CLUSTER": "flows"}, q_cluster=q_cluster) as running:
        assert running.said("with 1 worker, queue 'flows'.")
        row = ClusterSteps.create({"log": str(log), "name": "w"})
        until(lambda: status(row) == S.COMPLETE, "it executes")
        assert running.stop() == 0
        assert not running.alive()


def run(durableflow: object, q_cluster: object) -> subprocess.CompletedProcess[str]:
    environment = child_environment(
        DJANGO_SETTINGS_MODULE="tests.support.cluster_settings",
        TEST_DURABLEFLOW=json.dumps(durableflow),
        TEST_Q_CLUSTER=json.dumps(q_cluster),
    )
    command = [sys.executable, "manage.py", "durableflow_cluster", "--skip-checks"]
    return subprocess.run(
        command, cwd=BASE_DIR, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("durableflow", "q_cluster", "words"),
    [
        ({}, STOCK, "Q_CLUSTER['broker_class'] is None"),
        ({"CLUSTER": "flow"}, {"ALT_CLUSTERS": {"flows": OURS}}, "no such entry. It has: flows."),
        (
            {"CLUSTER": "flows"},
            {**STOCK, "ALT_CLUSTERS": {"flows": {"workers": 1}}},
            "Q_CLUSTER['ALT_CLUSTERS']['flows']['broker_class'] is None",
        ),
    ],
)
def test_wrong_settings_end_it_with_a_message(durableflow: object, q_cluster: object, words: str) -> None:
    ended = run(durableflow, q_cluster)
    assert ended.returncode == 1
    assert words in ended.stderr and "Traceback" not in ended.stderr
