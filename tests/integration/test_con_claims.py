"""Who executes: claims, takeovers, isolation of one instance's trouble (cases CON-01, 02, 06, 07, ENG-14)."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection

from durableflow import Priority, Step, Workflow, WorkflowEvent, drain
from durableflow.engine import claims as claims_module
from durableflow.engine import renewal, taking, watcher
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.interception import Interceptor
from durableflow.engine.lease import elapsed
from durableflow.engine.renewal import renew
from durableflow.models import HistoryEntry, SentEvent, StepRecord, WorkflowInstance
from tests.integration import con_flows
from tests.integration.con_flows import expire_leases, quick, state
from tests.support.concurrency import Gate, Task, child, eventually, finish, held, together
from tests.support.ledger import Ledger

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


def test_four_processes_drain_at_once(tmp_path: Path) -> None:
    """CON-01: each body once; bodies are counted in a file."""
    ledger = Ledger(tmp_path / "bodies")
    count = 100
    rows = [con_flows.Steps.create({"ledger": str(ledger.path), "steps": 3}) for _ in range(count)]
    with ExitStack() as stack:
        children = [stack.enter_context(child("tests.integration.con_flows:drain_until", str(count))) for _ in range(4)]
        for process in children:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in children:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in children:
            finish(process)
    bodies = [tuple(line.split()[:1] + line.rsplit(" ", 3)[:1]) for line in ledger.lines]
    assert len(bodies) == len(set(bodies)) == count * 3
    assert {row.status for row in WorkflowInstance.objects.all()} == {Status.COMPLETE}
    assert StepRecord.objects.filter(status="complete", attempts=1).count() == count * 3
    assert HistoryEntry.objects.filter(type="workflow_started").count() == count
    assert HistoryEntry.objects.filter(type="workflow_completed").count() == len(rows)


def test_one_claim_wins(tmp_path: Path) -> None:
    """CON-01: the losers return quietly, without an error and without a row."""
    for _ in range(100):
        row = quick().create()
        tasks = together(*[lambda: claim("default")] * 4)
        taken = [claimed for task in tasks for claimed in task.result()]
        assert len(taken) == 1
        execute(taken[0], renew=False)
        assert state(row) == (Status.COMPLETE, "done")
        assert row.execution == 1


def test_a_lease_counts_from_before_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-02: however long the answer took, the worker does not think its lease younger than the database does."""
    quick().create()
    sent: list[float] = []
    run = taking.run

    def noted(*args: Any) -> Any:
        sent.append(elapsed())
        return run(*args)

    monkeypatch.setattr(taking, "run", noted)
    (claimed,) = claim("default")
    assert claimed.lease.renewed <= sent[0]


def test_a_live_lease_keeps_others_out() -> None:
    """CON-02: while a body runs, every further look and every redelivery finds nothing to do."""
    ran: list[int] = []
    inside = Gate()

    def body() -> str:
        ran.append(1)
        inside.stop_here()
        return "done"

    row = quick(body).create()
    worker = Task(lambda: drain(0.1))
    inside.wait_until_reached()
    for _ in range(3):
        assert drain(0) == 0 and claim("default") == []
    inside.open()
    worker.result()
    assert state(row) == (Status.COMPLETE, "done") and ran == [1]
    assert row.steps.get().attempts == 1


def test_the_renewal_keeps_a_long_body_alive(settings: Any) -> None:
    """CON-02: the renewal thread of its process moves the end of the lease on while a body runs."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LEASE": 6}
    inside = Gate()
    row = quick(inside.stop_here).create()
    worker = Task(lambda: drain(0.1))
    inside.wait_until_reached()
    row.refresh_from_db()
    first = row.wake_at
    assert first is not None

    def moved() -> bool:
        assert claim("default") == []
        row.refresh_from_db()
        return row.wake_at is not None and row.wake_at > first

    eventually(moved, "the end of the lease")
    inside.open()
    worker.result()
    assert state(row)[0] == Status.COMPLETE
    assert not row.history.filter(type="attempt_lost").exists()


def test_two_sweepers_and_one_expired_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-06: both have read the same old lease; one takes it, by compare-and-set."""
    for _ in range(20):
        row = quick().create()
        (lost,) = claim("default")
        expire_leases()
        tasks = together(*[lambda: claim("default")] * 3)
        (taken,) = [claimed for task in tasks for claimed in task.result()]
        assert taken.lost_token == lost.lease.token and taken.interruptions == 1
        execute(taken, renew=False)
        assert state(row) == (Status.COMPLETE, "done")
        assert row.history.filter(type="attempt_lost").count() == 1


def test_a_sweep_at_start_leaves_what_this_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-06: nobody is taken over because of what process holds it; the lease alone counts."""
    row = quick().create()
    (held,) = claim("default")
    assert drain(0) == 0
    row.refresh_from_db()
    assert row.lease_token == held.lease.token


def test_a_due_row_that_another_took_between_look_and_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-06 on SQLite: the first look takes no lock, the second is made under it."""
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL claims in one statement")
    row = quick().create()
    looked = Gate()
    original = taking._due_classes_sqlite
    calls: list[int] = []

    def due(*args: Any) -> Any:
        classes = original(*args)
        calls.append(1)
        if len(calls) == 1:
            looked.stop_here()
        return classes

    monkeypatch.setattr(taking, "_due_classes_sqlite", due)
    late = Task(lambda: claim("default"))
    looked.wait_until_reached()
    (first,) = claim("default")
    looked.open()
    assert late.result() == []
    row.refresh_from_db()
    assert row.lease_token == first.lease.token


def test_urgent_first_and_nobody_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4, "Claim": by class, resumed before new; each fourth claim takes the oldest of all."""
    flow = quick()
    low = flow.create(priority=Priority.LOW)
    normal = [flow.create() for _ in range(3)]
    high = [flow.create(priority=Priority.HIGH) for _ in range(4)]
    monkeypatch.setattr(claims_module, "_turn", itertools.count(1))
    order = [claim("default")[0].lease.pk for _ in range(8)]
    assert order[:3] == [row.pk for row in high[:3]]
    assert order[3] == low.pk, "the oldest of all"
    assert order[4] == high[3].pk
    assert order[5:] == [row.pk for row in normal]


@pytest.mark.parametrize("status", [Status.COMPLETE, Status.ERRORED, Status.TERMINATED])
def test_a_late_delivery_to_a_finished_instance_changes_nothing(status: str) -> None:
    """ENG-14: the look, the event that was on its way, the timer that fires late."""

    class Ended(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if status == Status.TERMINATED:
                step.wait_for_event("x", type="x")
            if status == Status.ERRORED:
                raise ValueError("no")
            return "out"

    row = Ended.create()
    drain()
    if status == Status.TERMINATED:
        row.terminate()
    SentEvent.objects.create(
        instance=row, run_number=1, type="x", sent_at=row.created
    )  # sent before the end, seen after
    before = WorkflowInstance.objects.values().get(pk=row.pk)
    records = list(StepRecord.objects.values())
    for _ in range(3):
        assert drain(0) == 0
    assert WorkflowInstance.objects.values().get(pk=row.pk) == before and before["status"] == status
    assert list(StepRecord.objects.values()) == records
    assert row.history.filter(type="event_received").count() == 1


# Renewal -----------------------------------------------------------------------------------------------------------------


def test_renewing_moves_the_ends_and_finds_the_lost() -> None:
    for _ in range(3):
        quick().create()
    held = [claim("default")[0] for _ in range(3)]
    leases = [claimed.lease for claimed in held]
    before = {row.pk: row.wake_at for row in WorkflowInstance.objects.all()}
    for lease in leases:
        lease.renewed -= 5
    old = [lease.renewed for lease in leases]
    WorkflowInstance.objects.filter(pk=leases[1].pk).update(lease_token=4711)
    renew(leases)
    assert [lease.lost for lease in leases] == [False, True, False]
    after = {row.pk: row.wake_at for row in WorkflowInstance.objects.all()}
    for lease, renewed_before in zip(leases, old, strict=True):
        moved = after[lease.pk] > before[lease.pk]  # type: ignore[operator]
        assert moved is (lease is not leases[1])
        assert (lease.renewed > renewed_before + 4) is (lease is not leases[1])


def test_a_row_that_somebody_holds_is_not_lost() -> None:
    """It is left to the next beat, and nobody waits for it."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no row locks")
    for _ in range(2):
        quick().create()
    leases = [claim("default")[0].lease for _ in range(2)]
    with held(WorkflowInstance.objects.get(pk=leases[0].pk)):
        for lease in leases:
            lease.renewed -= 5
        before = [lease.renewed for lease in leases]
        renew(leases)
        assert [lease.lost for lease in leases] == [False, False]
        assert leases[0].renewed == before[0] and leases[1].renewed > before[1]
    renew(leases)
    assert leases[0].renewed > before[0]


def test_the_renewal_outlives_any_error(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Without it every lease of the process would end."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LEASE": 1}
    errors = [RuntimeError("what is this"), OperationalError("away")]
    original = renewal._renew

    def flaky(*args: Any) -> None:
        if errors:
            raise errors.pop()
        original(*args)

    monkeypatch.setattr(renewal, "_renew", flaky)
    monkeypatch.setattr(watcher, "RETRY", 0.01)
    quick().create()
    (claimed,) = claim("default")
    claimed.lease.renewed -= 5
    before = claimed.lease.renewed
    with watcher.watcher().holding(claimed.lease):
        eventually(lambda: claimed.lease.renewed > before)
    assert not errors


def test_no_durable_call_returns_after_the_lease_is_lost() -> None:
    """Design 9: the renewal notices, and the rest of run() is not executed."""
    ran: list[str] = []

    class Two(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.do("a", lambda: ran.append("a"))
            try:
                step.do("b", lambda: ran.append("b"))
            except BaseException:
                ran.append("swallowed")
            step.set_progress("never")
            step.do("c", lambda: ran.append("c"))

    row = Two.create()
    (claimed,) = claim("default")

    class Lose(Interceptor):
        def before_checkpoint(self, _workflow: str, identity: Any, _attempt: int) -> None:
            if identity.name == "a":
                WorkflowInstance.objects.update(lease_token=4711)
                renew([claimed.lease])

    execute(claimed, interceptor=Lose(), renew=False)
    assert ran == ["a"] or ran == ["a", "swallowed"]
    assert not StepRecord.objects.exists()
    row.refresh_from_db()
    assert (row.status, row.lease_token, row.progress) == (Status.RUNNING, 4711, None)
