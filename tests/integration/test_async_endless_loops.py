"""Code of an ``async def run`` that never stops calling ends with its process, and its instance is blocked (design 6)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from durableflow import AsyncStep, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from tests.support.database import child_environment

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
LOOPS = {
    "suspension": """
        while True:
            try:
                await step.sleep("recorded", 60)
            except:
                pass
""",
    "refusal": """
        while True:
            try:
                await step.do("outer", lambda: step.do("inner", print))
            except:
                pass
""",
}
PROGRAM = """
import django
django.setup()
from durableflow import Workflow, drain

class Endless(Workflow):
    class Meta:
        name = "endless"
    async def run(self, event, step):
{body}
drain(seconds=5)
print("the process lives on")
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_an_endless_loop_ends_its_process(loop: str) -> None:
    class Endless(Workflow):
        class Meta:
            name = "endless"

        async def run(self, event: WorkflowEvent, step: AsyncStep) -> None:
            """In the child."""

    instance = Endless.create()
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
    expected = {"suspension": "SuspensionSwallowed", "refusal": "InvalidDurableCall"}
    assert (instance.status, instance.lease_token, instance.wake_at) == (S.PAUSED, None, None)
    assert instance.blocked.startswith(expected[loop])
