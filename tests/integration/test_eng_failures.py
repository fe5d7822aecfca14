"""What a worker cannot read or run blocks its own instance, and can be repaired (OPS-13)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.engine import executor
from durableflow.models import HistoryEntry, StepRecord, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# OPS-13 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["output", "config", "error"])
@pytest.mark.parametrize("text", ["{not json", "[1]", "5", '{"$df": "later", "v": 1}', "{}"])
def test_corrupt_journal_blocks_and_can_be_repaired(column: str, text: str, stopped_clock: StoppedClock) -> None:
    """OPS-13: dead letter, not endless retry: healthy instances finish, a repaired row goes on."""

    class Poisoned(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            if column == "output":
                got = step.wait_for_event("mail", type="mail").payload
            elif column == "error":
                try:
                    got = step.do("fails", lambda: 1 / 0, retries=0)
                except ZeroDivisionError:
                    got = "caught"
            else:
                got = step.do("again", again, retries=Retries(delay=60))
            step.sleep("nap", 60)
            return got

    class Healthy(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            return step.do("work", lambda: "done")

    attempts: list[int] = []

    def again() -> float:
        attempts.append(1)
        return 1 / (len(attempts) - 1)

    instance = Poisoned.create()
    if column == "output":
        instance.send_event("mail", "hello")
    assert drained(instance).status == S.WAITING
    record = instance.steps.order_by("seq")[0]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column} FROM durableflow_steprecord WHERE id = %s", [record.pk])
        (good,) = cursor.fetchone()
        assert good is not None and json.loads(good)
        cursor.execute(f"UPDATE durableflow_steprecord SET {column} = %s WHERE id = %s", [text, record.pk])
    healthy = [Healthy.create() for _ in range(5)]
    stopped_clock.advance(60)
    drained(instance)
    assert all(row.status == S.COMPLETE for row in map(drained, healthy))
    assert instance.status == S.PAUSED, instance.error
    assert "cannot be read" in instance.blocked and record.label in instance.blocked
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE durableflow_steprecord SET {column} = %s WHERE id = %s", [good, record.pk])
    instance.resume()
    drained(instance)
    stopped_clock.advance(60)
    assert drained(instance).status == S.COMPLETE


def test_unreadable_params_block() -> None:
    """OPS-13: params that cannot be read block before run is called."""

    class Params(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return event.params

    instance = Params.create({"a": 1})
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durableflow_workflowinstance SET params = '{' WHERE id = %s", [instance.pk])
    assert drained(instance).status == S.PAUSED
    assert "params cannot be read" in instance.blocked


# What a worker cannot run ---------------------------------------------------------------------------------------------


def test_an_instance_that_is_deleted_while_it_runs() -> None:
    """Design 4: no row means lease lost: the work is dropped, nobody is hurt, no orphan is left."""

    class Deleted(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("first", lambda: 1)
            step.do("deletes", lambda: WorkflowInstance.objects.all().delete() and None)
            step.do("never", lambda: bodies.append("never"))

    bodies: list[str] = []
    Deleted.create()
    assert drain(seconds=5) == 1
    assert bodies == []
    assert not WorkflowInstance.objects.exists() and not StepRecord.objects.exists()
    assert not HistoryEntry.objects.exists()


def test_a_failure_of_the_engine_stays_with_its_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-07, design 6: blocked with the internal reason, not ended; the others go on."""

    class Healthy(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            return step.do("work", lambda: "done")

    original = executor.load_journal

    def fail(lease: Any, run_number: int, **options: Any) -> Any:
        if lease.pk == bad.pk:
            raise RuntimeError("a bug of ours")
        return original(lease, run_number, **options)

    monkeypatch.setattr(executor, "load_journal", fail)
    bad, good = Healthy.create(), Healthy.create()
    WorkflowInstance.objects.update(execution=1)  # they have been executed before, so there is a journal to load
    drain(seconds=5)
    bad.refresh_from_db()
    good.refresh_from_db()
    assert (bad.status, good.status) == (S.PAUSED, S.COMPLETE)
    assert bad.blocked == "The engine failed: RuntimeError: a bug of ours"
    monkeypatch.undo()
    bad.resume()
    assert drained(bad).output == "done"


def test_a_workflow_that_cannot_be_made() -> None:
    """Design 6: what the author's class raises ends the instance."""

    class Picky(Workflow):
        def __init__(self, needed: int) -> None:
            self.needed = needed

        def run(self, event: WorkflowEvent, step: Step) -> None:
            """Never called."""

    instance = drained(Picky.create())
    assert instance.status == S.ERRORED
    assert instance.error is not None and instance.error["type"] == "TypeError"
