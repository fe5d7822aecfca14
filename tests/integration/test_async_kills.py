"""An ``async def run`` under workers that die in its bodies: the same values to the same names (cases ENG-06, CON-05)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from durableflow.models import WorkflowInstance
from tests.integration.async_flows import BRANCHES, Mortal
from tests.integration.test_eng_parallel_identity import run_to_the_end
from tests.support.ledger import Ledger

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
ROUNDS, KILL_EVERY = 24, 3


def test_tasks_and_branches_keep_their_values_whoever_is_ready_first_and_whoever_dies(tmp_path: Path) -> None:
    """Two workers, of which one dies in every third instance; random delays in all bodies."""
    ledger = Ledger(tmp_path / "bodies")
    names = [f"{name}{part}" for name in BRANCHES for part in ("", "2", "3", "4")]
    rows = [
        Mortal.create({"ledger": str(ledger.path), "kill": names[number % 12] if number % KILL_EVERY == 0 else ""})
        for number in range(ROUNDS)
    ]
    deaths = run_to_the_end("tests.integration.async_flows:work")
    assert deaths >= 1
    starts = Counter(tuple(line.split()[:2]) for line in ledger.lines)
    for row in rows:
        row.refresh_from_db()
        assert (row.status, row.blocked) == (S.COMPLETE, ""), row.error
        for number, (first, second) in enumerate(row.output):
            name, part = BRANCHES[number % 3], ("", "2") if number < 3 else ("3", "4")
            assert first.startswith(f"/{name}{part[0]}:")
            assert second.startswith(f"{first}/{name}{part[1]}:")
        if not row.params["kill"]:
            again = [name for name in names if starts[row.instance_id, name] > 1]
            assert len(again) <= 6, "only what was in flight in a worker that died with another instance runs again"
        else:
            assert starts[row.instance_id, row.params["kill"]] >= 2
