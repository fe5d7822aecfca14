"""A process that ends while an ending of one of its instances waits for a locked row sees it through: nobody has to wait for its
lease (design 4, "Executor exits")."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine import drain as drains
from durableflow.engine.watcher import held
from durableflow.models import Heartbeat, WorkflowInstance
from tests.integration.test_threads import pool  # noqa: F401  the fixture
from tests.support.concurrency import PATIENCE, Gate, Task, child, eventually

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
EARLY = 2.0  # seconds within which a process that does not wait has ended, by far


class Slow(Workflow):
    """Ends when it is told to."""

    class Meta:
        name = "settle-slow"

    def run(self, event: WorkflowEvent, step: Step) -> str:
        sys.stdout.write("running\n")
        sys.stdout.flush()
        sys.stdin.readline()
        return "done"


def drain_and_exit() -> None:
    """What a script does that a timer of the system starts."""
    drain(0)
    sys.stdout.write(f"{held()} held\n")
    sys.stdout.flush()


@pytest.mark.postgresql_only
def test_a_script_does_not_exit_before() -> None:
    row = Slow.create()
    with child("tests.integration.test_settle:drain_and_exit") as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "running\n"
        with transaction.atomic():
            WorkflowInstance.objects.select_for_update().get(pk=row.pk)
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "1 held\n", "the drain is over"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(EARLY)
        assert process.wait(PATIENCE) == 0
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, "done")


@pytest.mark.postgresql_only
def test_the_drain_command_does_not_return_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it take leave before: somebody is still at work."""
    gate, settling = Gate(), Gate()

    class Waiting(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            gate.stop_here()
            return "done"

    original = drains.settle
    monkeypatch.setattr("durableflow.management.verbs.drain.settle", lambda: (settling.stop_here(), original()))
    row = Waiting.create()
    task = Task(lambda: call_command("durableflow", "drain", stdout=io.StringIO()))
    gate.wait_until_reached()
    with transaction.atomic():
        WorkflowInstance.objects.select_for_update().get(pk=row.pk)
        gate.open()
        settling.wait_until_reached()
        assert held() == 1
        settling.open()
        task.thread.join(EARLY)
        assert not task.done
    task.result()
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, "done")


def test_bodies_in_helper_threads_are_waited_for() -> None:
    """With THREADS above 1 a drain returns while helpers go on; the command does not."""
    gates = [Gate(), Gate()]

    class Body(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.do("work", gates[event.params].stop_here)

    rows = [Body.create(number) for number in range(2)]
    task = Task(lambda: call_command("durableflow", "drain", "--seconds", "0", stdout=io.StringIO()))
    for gate in gates:
        gate.wait_until_reached()
    for number, gate in enumerate(gates):
        assert not task.done
        gate.open()
        eventually(lambda number=number: WorkflowInstance.objects.get(pk=rows[number].pk).status == S.COMPLETE)
    task.result()
    assert held() == 0 and not Heartbeat.objects.filter(stopping=False).exists()
