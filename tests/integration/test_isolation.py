"""An instance whose worker was lost runs alone in its process until it has made progress (design 6, "Interruptions")."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine import executor, isolation
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.isolation import room
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import Charging, expire_leases
from tests.support.concurrency import PATIENCE, Gate, Task, child, eventually, finish
from tests.support.engine import drained, history_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def take() -> Any:
    (claimed,) = claim("default")
    return claimed


def test_the_others_leave_and_nobody_enters(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been turned away for long enough. One in a body is waited for, and leaves at its next durable call without a
    charge; one that comes later is turned away; after the first checkpoint others may run again."""
    monkeypatch.setattr(isolation, "INSIST_AFTER", 0)
    gate, alone = Gate(), Gate()
    log: list[str] = []

    class Other(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("first", gate.stop_here)
            step.do("second", log.append, "other goes on")

    class Lost(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("work", log.append, "lost goes on")
            step.do("more", alone.stop_here)

    class Late(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("late", log.append, "late")

    lost = Lost.create()
    take()  # and its worker dies
    expire_leases()
    interrupted = take()
    assert interrupted.interruptions == 1 and interrupted.lost_token is not None
    other = Other.create()
    taken = take()
    first = Task(lambda: execute(taken))
    gate.wait_until_reached()
    second = Task(lambda: execute(interrupted))
    late = Late.create()
    turned_away = take()
    eventually(room().occupied)
    execute(turned_away)
    late.refresh_from_db()
    assert (late.status, late.interruptions, log) == (S.QUEUED, 0, [])
    gate.open()
    first.result()
    other.refresh_from_db()
    assert (other.status, other.give_backs, steps_of(other)) == (S.QUEUED, 0, [("first-1", "complete")])
    alone.wait_until_reached()
    assert log == ["lost goes on"]
    assert not room().occupied()
    assert drained(late).status == S.COMPLETE
    alone.open()
    second.result()
    assert drained(lost).status == drained(other).status == S.COMPLETE
    assert history_of(lost, "attempt_lost") == [{"attempt": 1}]


def test_one_that_is_turned_away_keeps_what_it_is_to_be_charged() -> None:
    """RET-03: two instances lost their workers; the second is taken over again elsewhere, as if nobody had looked."""
    gate = Gate()

    class Lost(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("work", gate.stop_here if event.params == 1 else threading.get_ident)

    one, two = Lost.create(1), Lost.create(2)
    take(), take()
    expire_leases()
    claims = {claimed.lease.pk: claimed for claimed in (take(), take())}
    first = Task(lambda: execute(claims[one.pk]))
    gate.wait_until_reached()
    execute(claims[two.pk])
    two.refresh_from_db()
    assert (two.status, two.interruptions, two.lease_token) == (S.RUNNING, 0, claims[two.pk].lost_token)
    gate.open()
    first.result()
    eventually(lambda: drained(two).status == S.COMPLETE)
    assert history_of(one, "attempt_lost") == history_of(two, "attempt_lost") == [{"attempt": 1}]


def test_a_busy_process_leaves_it_to_one_that_is_idle(tmp_path: Path) -> None:
    """It goes back as the expired lease that it was, not at once due here again; the busy process's free threads go on."""
    gate = Gate()

    class Long(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("work", gate.stop_here)

    class Other(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("work", threading.get_ident)

    lost = Charging.create({"ledger": str(tmp_path / "ledger")})
    take()
    expire_leases()
    interrupted = take()
    long = Long.create()
    taken = take()
    first = Task(lambda: execute(taken))
    gate.wait_until_reached()
    execute(interrupted)
    lost.refresh_from_db()
    assert (lost.status, lost.interruptions, lost.suspect) == (S.RUNNING, 0, True)
    assert lost.lease_token == interrupted.lost_token
    assert claim("default") == [], "for a moment it is nobody's"
    assert not room().occupied()
    assert drained(Other.create()).status == S.COMPLETE
    with child("tests.integration.con_flows:drain_until", "2") as process:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        finish(process)
    lost.refresh_from_db()
    assert lost.status == S.COMPLETE
    assert history_of(lost, "attempt_lost") == [{"attempt": 1}]
    gate.open()
    first.result()
    assert drained(long).status == S.COMPLETE


def test_it_does_not_starve_where_every_process_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is always somebody in a body; after INSIST_AFTER the process makes room, and the others go on behind it."""
    monkeypatch.setattr(isolation, "PAUSE", 0.02)
    monkeypatch.setattr(isolation, "INSIST_AFTER", 0.3)
    over, running = threading.Event(), threading.Semaphore(0)
    turned: list[str] = []
    original = isolation.turn_away
    monkeypatch.setattr(executor, "turn_away", lambda claim: (turned.append(claim.label), original(claim)))

    class Busy(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            while not step.do("work", self.work):
                pass

        def work(self) -> bool:
            running.release()
            return over.wait(0.02)

    class Lost(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("work", threading.get_ident)

    lost = Lost.create()
    take()
    busy = [Busy.create() for _ in range(2)]

    def worker() -> None:
        while not over.is_set():
            drain(0)

    workers = [Task(worker) for _ in range(3)]  # one of them looks
    try:
        for _ in range(10):
            assert running.acquire(timeout=PATIENCE)
        WorkflowInstance.objects.filter(pk=lost.pk).update(wake_at=lost.created, suspect=True)
        eventually(lambda: WorkflowInstance.objects.get(pk=lost.pk).status == S.COMPLETE)
    finally:
        over.set()
    for task in workers:
        task.result()
    assert lost.label in turned
    eventually(lambda: [drained(row).status for row in busy] == [S.COMPLETE] * 2)
    assert history_of(lost, "attempt_lost") == [{"attempt": 1}]
