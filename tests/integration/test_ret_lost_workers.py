"""Workers that die in the middle of a body: the attempt counts, and the budget ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from tests.support.database import child_environment
from tests.support.engine import history_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


WORKER = """
import os, sys, time
import django
from django.conf import settings
settings.DURABLEFLOW = {"LEASE": 1}
django.setup()
from durableflow import Retries, Workflow, drain, get_step_context

def note(line):
    with open(sys.argv[1], "a") as log:
        log.write(line + "\\n")

class Killer(Workflow):
    class Meta:
        name = "killer"
    def run(self, event, step):
        step.do("before", note, "before")
        step.do("kills", self.kill, retries=Retries(limit=event.params, delay=0))
    def kill(self):
        note(f"kills {get_step_context().attempt}")
        os._exit(1)

class Healthy(Workflow):
    class Meta:
        name = "healthy"
    def run(self, event, step):
        step.do("work", note, "healthy")

end = time.monotonic() + 40
while time.monotonic() < end and not os.path.exists(sys.argv[1] + ".stop"):
    drain(seconds=0.2)
    time.sleep(0.02)
"""


def spawn(log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(log)],
        env=child_environment(),
        cwd=Path(__file__).parents[2],
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(("limit", "starts"), [(0, 1), (2, 3)])
def test_a_step_that_kills_its_process(limit: int, starts: int, tmp_path: Path) -> None:
    """RET-03: after the first try and its retries it fails with WorkerLost; what finished is not repeated; two workers,
    started again whenever one dies, still serve a healthy instance."""

    class Killer(Workflow):
        class Meta:
            name = "killer"

        def run(self, event: WorkflowEvent, step: Step) -> None:
            """The worker's own class runs."""

    class Healthy(Workflow):
        class Meta:
            name = "healthy"

        def run(self, event: WorkflowEvent, step: Step) -> None:
            """The worker's own class runs."""

    log = tmp_path / "log"
    instance = Killer.create(limit)
    workers = [spawn(log), spawn(log)]
    end = time.monotonic() + 60
    try:
        while instance.status != S.ERRORED:
            assert time.monotonic() < end, (instance.status, instance.blocked, log.read_text())
            workers = [worker if worker.poll() is None else spawn(log) for worker in workers]
            time.sleep(0.05)
            instance.refresh_from_db()
        healthy = Healthy.create()
        while healthy.status != S.COMPLETE:
            assert time.monotonic() < end
            time.sleep(0.05)
            healthy.refresh_from_db()
    finally:
        log.with_suffix(".stop").touch()
        for worker in workers:
            worker.kill()
            worker.wait()
        connection.close()
    lines = log.read_text().split("\n")[:-1]
    assert lines == ["before", *[f"kills {number}" for number in range(1, starts + 1)], "healthy"]
    assert instance.error is not None
    assert instance.error["type"] == "durableflow.WorkerLost"
    assert "kills-1" in instance.error["message"] and instance.error["step"] == "kills-1"
    assert [entry["attempt"] for entry in history_of(instance, "attempt_lost")] == list(range(1, starts + 1))
    assert steps_of(instance) == [("before-1", "complete"), ("kills-1", "failed")]
    assert instance.steps.get(name="kills").attempts == starts
    assert instance.interruptions == 0


def test_a_worker_that_is_killed_from_outside(tmp_path: Path) -> None:
    """CON-05, RET-03: kill -9 inside a body; the next worker goes on with the same key as attempt 2."""
    program = """
import os, sys, time
import django
from django.conf import settings
settings.DURABLEFLOW = {"LEASE": 1}
django.setup()
from durableflow import Workflow, drain, get_step_context

class Charge(Workflow):
    class Meta:
        name = "charge"
    def run(self, event, step):
        return step.do("charge", self.charge)
    def charge(self):
        context = get_step_context()
        with open(sys.argv[1], "a") as log:
            log.write(f"{context.attempt} {context.idempotency_key}\\n")
        if context.attempt == 1:
            time.sleep(60)
        return "charged"

end = time.monotonic() + 40
while time.monotonic() < end and not os.path.exists(sys.argv[1] + ".stop"):
    drain(seconds=0.2)
    time.sleep(0.02)
"""

    class Charge(Workflow):
        class Meta:
            name = "charge"

        def run(self, event: WorkflowEvent, step: Step) -> None:
            """The worker's own class runs."""

    log = tmp_path / "log"
    instance = Charge.create()
    command = [sys.executable, "-c", program, str(log)]
    options: dict[str, Any] = {"env": child_environment(), "cwd": Path(__file__).parents[2]}
    end = time.monotonic() + 60
    first = subprocess.Popen(command, **options)
    second = None
    try:
        while not log.exists() or not log.read_text().endswith("\n"):
            assert time.monotonic() < end
            time.sleep(0.02)
        os.kill(first.pid, signal.SIGKILL)
        second = subprocess.Popen(command, **options)
        while instance.status != S.COMPLETE:
            assert time.monotonic() < end, instance.status
            time.sleep(0.05)
            instance.refresh_from_db()
    finally:
        log.with_suffix(".stop").touch()
        for worker in (first, second):
            if worker is not None:
                worker.kill()
                worker.wait()
        connection.close()
    (one, key), (two, again) = (line.split() for line in log.read_text().splitlines())
    assert (one, two, key) == ("1", "2", again)
    assert (instance.output, instance.interruptions) == ("charged", 0)
    assert history_of(instance, "attempt_lost") == [{"attempt": 1}]
