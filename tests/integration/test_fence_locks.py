"""Somebody else's transaction holds the row of an instance (design 4)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.core.durations import parse_duration
from durableflow.engine import bodies, fence, steps
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.integration.fence_flows import At, blocked, one_step, state
from tests.support.concurrency import Gate, Task, eventually, held

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


# Somebody else's transaction ------------------------------------------------------------------------------------------


class Holder:
    """A user whose transaction holds the only instance FOR UPDATE, from the first ``grab`` on."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.task: Task | None = None

    def grab(self) -> None:
        if self.task is None:
            self.task = Task(self._hold)
            self.gate.wait_until_reached()

    def let_go(self) -> None:
        assert self.task is not None
        self.gate.open()
        self.task.result()

    def _hold(self) -> None:
        with transaction.atomic():
            WorkflowInstance.objects.select_for_update().get()
            self.gate.stop_here()


@pytest.mark.postgresql_only
@pytest.mark.parametrize("place", ["checkpoint", "suspend", "finish", "wait"])
def test_a_long_transaction_that_holds_the_row_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, place: str, settings: Any
) -> None:
    """A user holds the instance FOR UPDATE for longer than a lease: no body runs twice, nothing is dropped."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LEASE": 1}
    for module in (steps, fence):
        monkeypatch.setattr(module, "TIMEOUT", module.TIMEOUT.replace("5s", "100ms"))
    steps._postgres_sql.cache_clear()
    request.addfinalizer(steps._postgres_sql.cache_clear)
    holder = Holder()
    ran: list[str] = []

    class Held(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.do("a", lambda: ran.append("a"))
            if place in ("suspend", "wait"):
                if place == "wait":
                    holder.grab()
                step.wait_for_event("x", type="x", notify=lambda pending: holder.grab())
            if place == "finish":
                holder.grab()
            return "done"

    row = Held.create()
    deliver("default")
    (claimed,) = claim("default")
    seconds = parse_duration(2).total_seconds()
    claimed.lease.renewed -= seconds if place != "checkpoint" else 0

    def body_done() -> None:
        if place == "checkpoint":
            holder.grab()
            claimed.lease.renewed -= seconds

    monkeypatch.setattr(type(claimed.lease), "require", lambda self: None)
    work = Task(lambda: execute(claimed, interceptor=At(body_done), renew=False))
    holder.gate.wait_until_reached()
    eventually(blocked, "the executor's wait for the row")
    holder.let_go()
    work.result()
    if place in ("suspend", "wait"):
        assert state(row)[0] == Status.WAITING
        row.send_event("x")
        drain()
    assert state(row) == (Status.COMPLETE, "done")
    assert ran == ["a"]


def test_a_claim_skips_a_row_that_somebody_holds() -> None:
    """It is no error, and the others are taken."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no row locks")
    rows = [one_step().create() for _ in range(3)]
    with held(rows[0]):
        drain()
        assert [state(row)[0] for row in rows] == [Status.QUEUED, Status.COMPLETE, Status.COMPLETE]
    drain()
    assert state(rows[0])[0] == Status.COMPLETE


@pytest.mark.postgresql_only
def test_a_foreign_key_that_an_open_transaction_checks_blocks_nobody() -> None:
    """Business rows point to instances: their KEY SHARE lock must neither hide the row from the claim nor stop the writes."""
    row = one_step().create()
    with held(row, lock="FOR KEY SHARE"):
        drain()
        assert state(row) == (Status.COMPLETE, "done")


def test_bodies_start_on_a_fresh_lease_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4, "Renewal": else somebody may be running it already."""
    ran: list[int] = []

    class Late(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            claimed.lease.renewed -= 3600
            step.do("a", lambda: ran.append(1))

    row = Late.create()
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    assert ran == [] and state(row)[0] == Status.RUNNING
    assert bodies.BodyRun is not None
    expire_leases()
    monkeypatch.setattr(type(claimed.lease), "require", lambda self: None)
    drain()
    assert state(row)[0] == Status.COMPLETE and ran == [1]
