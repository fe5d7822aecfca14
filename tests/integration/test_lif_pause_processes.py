"""Processes at work while somebody pauses and resumes what they execute: all is done, and each body once (LIF-04, LIF-05)."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from durableflow import InvalidTransition, Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.models import WorkflowInstance
from tests.support.concurrency import child, eventually, finish
from tests.support.ledger import Ledger

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
CROWD = 12
STEPS = "abcd"


class PauseCrowd(Workflow[str, str]):
    """Steps, branches and a short sleep; each body notes itself in a file."""

    class Meta:
        name = "lif-pause-crowd"
        step_retries = Retries(limit=0)

    def run(self, event: WorkflowEvent[str], step: Step) -> str:
        def body(name: str) -> str:
            Ledger(event.params).add(f"{event.instance_id} {name}")
            return name

        first = step.do("a", body, "a")
        step.sleep("nap", 0.01)
        both = step.gather("both", lambda: step.do("b", body, "b"), lambda: step.do("c", body, "c"))
        return first + "".join(both) + step.do("d", body, "d")


def work(stop: str) -> None:
    """In a process of its own: execute what is due until the file ``stop`` is there."""
    while not Path(stop).exists():
        drain(0.2)


def test_a_crowd_that_is_paused_and_resumed(tmp_path: Path) -> None:
    """Whatever the moments were."""
    ledger, stop = Ledger(tmp_path / "ledger"), tmp_path / "stop"
    rows = [PauseCrowd.create(str(ledger.path), instance_id=f"crowd-{number}") for number in range(CROWD)]
    dice, done = random.Random(7), 0
    function = f"{__name__}:work"
    with child(function, str(stop)) as one, child(function, str(stop)) as other:
        eventually(lambda: ledger.lines, "somebody works")
        for _ in range(150):
            row = dice.choice(rows)
            with suppress(InvalidTransition):
                getattr(row, dice.choice(("pause", "pause", "resume")))()
                done += 1

        def finished() -> bool:
            for row in WorkflowInstance.objects.filter(status__in=(S.PAUSED, S.WAITING_FOR_PAUSE)):
                with suppress(InvalidTransition):
                    row.resume()
            return not WorkflowInstance.objects.active().exists()

        eventually(finished, "all are finished")
        stop.touch()
        finish(one)
        finish(other)
    assert done, "nobody was paused"
    for row in rows:
        row.refresh_from_db()
        assert (row.status, row.output, row.paused_at) == (S.COMPLETE, "abcd", None), row.error
    assert sorted(ledger.lines) == sorted(f"{row.instance_id} {name}" for row in rows for name in STEPS)
