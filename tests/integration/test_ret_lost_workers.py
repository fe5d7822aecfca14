"""Workers that die in the middle of a body: the attempt counts, and the budget ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import eventually
from tests.support.database import child_environment
from tests.support.engine import history_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


WORKER = """
import os, sys, time
import django
from django.conf import settings
settings.DURABLEFLOW = {"LEASE": 120}
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

class Charge(Workflow):
    class Meta:
        name = "charge"
    def run(self, event, step):
        return step.do("charge", self.charge)
    def charge(self):
        context = get_step_context()
        note(f"{context.attempt} {context.idempotency_key}")
        if context.attempt == 1:
            time.sleep(600)
        return "charged"

end = time.monotonic() + 120  # nobody is left behind by a test that was killed
while time.monotonic() < end:
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


def became(instance: WorkflowInstance, status: str) -> bool:
    instance.refresh_from_db()
    return instance.status == status


def end_all(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.kill()
        worker.wait()
    connection.close()


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

    def tended() -> bool:
        for place, worker in enumerate(workers):
            if worker.poll() is not None:
                expire_leases()  # it was the only one
                workers[place] = spawn(log)
        return became(instance, S.ERRORED)

    try:
        eventually(tended, "its end")
        healthy = Healthy.create()
        eventually(lambda: became(healthy, S.COMPLETE), "the end of the healthy one")
    finally:
        end_all(workers)
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

    class Charge(Workflow):
        class Meta:
            name = "charge"

        def run(self, event: WorkflowEvent, step: Step) -> None:
            """The worker's own class runs."""

    log = tmp_path / "log"
    instance = Charge.create()
    workers = [spawn(log)]
    try:
        eventually(lambda: log.exists() and log.read_text().endswith("\n"), "the body")
        workers[0].kill()
        workers[0].wait()
        expire_leases()
        workers.append(spawn(log))
        eventually(lambda: became(instance, S.COMPLETE), "its end")
    finally:
        end_all(workers)
    (one, key), (two, again) = (line.split() for line in log.read_text().splitlines())
    assert (one, two, key) == ("1", "2", again)
    assert (instance.output, instance.interruptions) == ("charged", 0)
    assert history_of(instance, "attempt_lost") == [{"attempt": 1}]
