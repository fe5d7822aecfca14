"""Identity in branches comes from the program text, never from timing (ENG-06)."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from durableflow.models import WorkflowInstance
from tests.integration import eng_parallel_flows
from tests.integration.eng_parallel_flows import BRANCHES
from tests.support.concurrency import child
from tests.support.ledger import Ledger

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
ROUNDS, KILL_EVERY, WORKERS = 100, 12, 2


def test_branches_keep_their_values_whoever_is_ready_first_and_whoever_dies(tmp_path: Path) -> None:
    """ENG-06: a hundred rounds of random times on two workers, of which one dies in every twelfth; always the same pairing, no
    determinism error, no finished body repeated."""
    ledger = Ledger(tmp_path / "bodies")
    names = [name + number for name in BRANCHES for number in ("", "2")]
    rows = [
        eng_parallel_flows.Branches.create(
            {"ledger": str(ledger.path), "kill": names[number // KILL_EVERY % 6] if number % KILL_EVERY == 0 else ""}
        )
        for number in range(ROUNDS)
    ]
    deaths = run_to_the_end()
    for row in rows:
        row.refresh_from_db()
        assert (row.status, row.blocked) == (S.COMPLETE, ""), row.error
        for name, (first, second) in row.output.items():
            assert first.startswith(f"/{name}:") and second.startswith(f"{first}/{name}2:")
    assert deaths == len(range(0, ROUNDS, KILL_EVERY))
    starts = Counter(tuple(line.split()[:2]) for line in ledger.lines)
    for row in rows:
        for step in row.steps.filter(kind="do"):
            position = int(step.scope[step.scope.index("[") + 1 : -1])
            name = BRANCHES[position - 1] + ("2" if step.name == "second" else "")
            failed = row.history.filter(type__in=("attempt_lost", "attempt_errored"), step=step.label).count()
            assert step.status == "complete" and step.attempts == 1 + failed
            assert 1 <= starts[row.instance_id, name] <= step.attempts, "a finished body never runs again"


def run_to_the_end(work: str = "tests.integration.eng_parallel_flows:work") -> int:
    """Two workers, each replaced when it dies; how many did."""
    deaths, end = 0, time.monotonic() + 150
    with ExitStack() as stack:
        workers: list[Any] = [None] * WORKERS
        while WorkflowInstance.objects.active().exists():
            assert time.monotonic() < end, "the instances do not end"
            for number, worker in enumerate(workers):
                if worker is None or worker.poll() is not None:
                    if worker is not None and worker.returncode:
                        assert worker.returncode == -9, worker.communicate()[1]
                        deaths += 1
                    workers[number] = stack.enter_context(child(work))
            time.sleep(0.05)
        for worker in workers:
            worker.wait(60)
            deaths += worker.returncode == -9
    return deaths
