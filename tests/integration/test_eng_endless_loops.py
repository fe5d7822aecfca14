"""Loops that swallow the suspension, or the loss of the lease, for ever (design 6)."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from django.db import connection

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.models import WorkflowInstance
from tests.integration.eng_flows import workflow
from tests.support.database import child_environment
from tests.support.engine import drained, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# Loops that never stop ------------------------------------------------------------------------------------------------

LOOPS = {
    "suspension": """
        while True:
            try:
                step.sleep("nap", 3600)
                return
            except:
                pass
""",
    "refusal": """
        while True:
            try:
                with transaction.atomic():
                    step.do("inside", print)
                return
            except Exception:
                pass
""",
    "changed": """
        while True:
            try:
                step.do("recorded", print)
                return
            except:
                pass
""",
    "lost": """
        WorkflowInstance.objects.get().terminate()
        while True:
            try:
                step.do("after", print)
                return
            except:
                pass
""",
}


PROGRAM = """
import django, sys
django.setup()
from django.db import transaction
from durableflow import Workflow, drain
from durableflow.models import WorkflowInstance

class Endless(Workflow):
    class Meta:
        name = "endless"
    def run(self, event, step):
{body}
drain(seconds=5)
print("the process lives on")
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_endless_loop_ends_its_process(loop: str, tmp_path: Path) -> None:
    """Spike 5, design 6: after 100 refused calls the instance is blocked and the process ends with a message."""

    class Endless(Workflow):
        class Meta:
            name = "endless"

        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.sleep("recorded", 0.001)

    instance = Endless.create()
    if loop == "changed":
        (taken,) = claim("default")
        execute(taken)
        WorkflowInstance.objects.update(wake_at=instance.created)
    connection.close()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=LOOPS[loop])],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 70, done.stderr
    assert "the process lives on" not in done.stdout
    assert "durableflow ends this process" in done.stderr and "endless/" in done.stderr
    instance.refresh_from_db()
    if loop == "lost":
        assert (instance.status, steps_of(instance)) == (S.TERMINATED, [])
    else:
        assert instance.status == S.PAUSED
        expected = {"suspension": "SuspensionSwallowed", "refusal": "InvalidDurableCall", "changed": "NonDeterminism"}
        assert instance.blocked.startswith(expected[loop])
    assert (instance.lease_token, instance.wake_at) == (None, None)


def test_a_swallowed_loss_of_the_lease_runs_no_further_body(caplog: pytest.LogCaptureFixture) -> None:
    """Design 9, LIF-01: after terminate no further durable call returns, also where its signal is swallowed."""

    def run(step: Step, log: list[str]) -> str:
        with suppress(BaseException):
            step.do("first", lambda: WorkflowInstance.objects.get().terminate())
        with suppress(BaseException):
            step.do("second", lambda: log.append("second"))
        step.do("third", lambda: log.append("third"))
        return "went on"

    log: list[str] = []
    caplog.set_level(logging.INFO, "durableflow.engine")
    instance = drained(workflow(run, log).create())
    assert (instance.status, log, instance.output) == (S.TERMINATED, [], None)
    assert [record.message for record in caplog.records].count(
        f"{instance.label}: the lease was lost; this execution's work is dropped"
    ) == 1
