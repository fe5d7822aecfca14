"""Processes that die: what was done is recognised, what was accepted is kept (CON-04, CON-05)."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection, connections, transaction

from durableflow import Workflow, drain
from durableflow.models import StepRecord, WorkflowInstance
from tests.integration import con_flows
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import PATIENCE, child, together
from tests.support.ledger import Ledger

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


def test_a_kill_between_body_and_checkpoint(tmp_path: Path) -> None:
    """CON-05: the body runs again as attempt 2 with the same key, so the bank sees one charge; attempt 1 shows as lost."""
    ledger = Ledger(tmp_path / "bank")
    row = con_flows.Charging.create({"ledger": str(ledger.path)}, instance_id="cart-1")
    with child("tests.integration.con_flows:run_and_die", "before_checkpoint") as process:
        process.wait(PATIENCE)
        assert process.returncode == -9, process.communicate()[1]
    row.refresh_from_db()
    assert row.status == Status.RUNNING and not StepRecord.objects.exists()
    assert drain(0) == 0, "its lease still counts"
    expire_leases()
    drain()
    row.refresh_from_db()
    assert row.status == Status.COMPLETE
    charges = [line.split() for line in ledger.lines]
    assert [(instance, attempt) for instance, _name, attempt, _pid, _key in charges] == [
        ("cart-1", "1"),
        ("cart-1", "2"),
    ]
    assert len({pid for *_, pid, _key in charges}) == 2
    assert {key for *_, key in charges} == {row.output}, "one idempotency key"
    assert [entry.data for entry in row.history.filter(type="attempt_lost")] == [{"attempt": 1}]
    assert row.steps.get().attempts == 2


def test_a_kill_after_the_checkpoint_repeats_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "bank")
    row = con_flows.Steps.create({"ledger": str(ledger.path), "steps": 3})
    assert WorkflowInstance.objects.due().count() == 1
    with child("tests.integration.con_flows:run_and_die", "after_commit") as process:
        process.wait(PATIENCE)
        assert process.returncode == -9, process.communicate()[1]
    assert StepRecord.objects.get().status == "complete"
    expire_leases()
    drain()
    row.refresh_from_db()
    assert (row.status, row.output) == (Status.COMPLETE, 3)
    assert [line.split()[2] for line in ledger.lines].count("0") == 1
    assert len(ledger.lines) == 3


def test_ids_are_the_callers_idempotency_keys() -> None:
    """LIF-12 under load: twenty at once, one instance, one body, named errors for the others."""
    ledger: list[int] = []

    class Once(Workflow[None, None]):
        def run(self, event: object, step: object) -> None:
            ledger.append(1)

    tasks = together(*[lambda: Once.create(instance_id="x")] * 20)
    made = [task for task in tasks if task.error is None]
    assert len(made) == 1
    assert {type(task.error).__name__ for task in tasks if task.error is not None} == {"InstanceAlreadyExists"}
    tasks = together(*[lambda: Once.get_or_create(instance_id="y")] * 20)
    results = [task.result() for task in tasks]
    assert sum(created for _row, created in results) == 1
    assert len({row.pk for row, _created in results}) == 1
    drain()
    assert len(ledger) == 2 and WorkflowInstance.objects.count() == 2


@pytest.mark.sqlite_only
@pytest.mark.parametrize("mode", [None, "DEFERRED", "IMMEDIATE"])
def test_parallel_writers_on_sqlite(tmp_path: Path, mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-10: no lock error reaches a step or a caller, each body runs once; also in Django's default transaction mode."""
    instances, each = 200, 5
    ledger = Ledger(tmp_path / "bodies")
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "transaction_mode", mode)
    connections.close_all()

    def work() -> None:
        assert connection.settings_dict["OPTIONS"]["transaction_mode"] == mode
        while WorkflowInstance.objects.finished().count() < instances and not failed:
            drain(0.2)

    failed: list[bool] = []

    def start() -> None:
        try:
            send()
        except BaseException:
            failed.append(True)
            raise

    def send() -> None:
        for number in range(instances):
            with transaction.atomic():
                row = con_flows.Steps.create({"ledger": str(ledger.path), "steps": each}, instance_id=f"i-{number}")
                row.send_event("note", number, dedupe_key=f"k-{number}")

    try:
        for task in together(start, work, work, work, work):
            task.result()
    finally:
        connections.close_all()
    assert {row.status for row in WorkflowInstance.objects.all()} == {Status.COMPLETE}
    bodies = [tuple(line.split()[:3]) for line in ledger.lines]
    assert len(bodies) == len(set(bodies)) == instances * each
    assert not StepRecord.objects.exclude(status="complete", attempts=1).exists()
