"""A worker that writes without a pause keeps its lease: its own writes must not keep the renewal out (design 4, "Renewal")."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import override_settings

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.engine import renewal
from durableflow.engine.claims import claim
from durableflow.models import WorkflowInstance
from tests.support.concurrency import PATIENCE
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class BusyWriter(Workflow):
    """Steps that each take a part of a lease, and all of them more than one."""

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        def beat(number: int) -> int:
            step._runtime.lease.renewed -= 15  # type: ignore[attr-defined]  # so long it has taken
            return 1

        if event.params == "map":
            return sum(step.map("beat", beat, range(8), concurrency=2, retries=0))
        return sum(step.do(f"beat {number}", beat, 1, retries=0) for number in range(8))


@pytest.mark.parametrize("how", ["loop", "map"])
def test_writes_renew_the_lease(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewal finds the row locked each time: the checkpoints, which hold it, renew in its place."""
    monkeypatch.setattr(renewal, "_renew_postgres", lambda *args: set())
    monkeypatch.setattr(renewal, "_renew_sqlite", lambda *args: set())
    with override_settings(DURABLEFLOW={"LEASE": 60}):
        instance = drained(BusyWriter.create(how))
    assert (instance.status, instance.output, instance.execution) == (S.COMPLETE, 8, 1)


@pytest.mark.postgresql_only
def test_the_renewal_waits_a_moment_for_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker's writes hold it again and again; who waits has it before the next one."""
    BusyWriter.create()
    ((claimed),) = claim("default")
    locked, go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                WorkflowInstance.objects.select_for_update(no_key=True).get(pk=claimed.lease.pk)
                locked.set()
                go.wait(PATIENCE)
        finally:
            connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert locked.wait(PATIENCE)
    before = claimed.lease.renewed
    renewal.renew([claimed.lease])  # held for longer than it waits: left to the next beat
    assert (claimed.lease.renewed, claimed.lease.lost) == (before, False)
    monkeypatch.setattr(renewal, "WAIT", PATIENCE)
    monkeypatch.setattr(renewal, "patience", lambda: PATIENCE)
    watching = threading.Thread(target=_let_go_when_somebody_waits, args=[go])
    watching.start()
    renewal.renew([claimed.lease])
    watching.join(PATIENCE)
    thread.join(PATIENCE)
    assert claimed.lease.renewed > before


def _let_go_when_somebody_waits(go: threading.Event) -> None:
    try:
        with connection.cursor() as cursor:
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end:
                cursor.execute(waiting)
                if cursor.fetchone()[0]:
                    break
    finally:
        go.set()
        connections.close_all()
