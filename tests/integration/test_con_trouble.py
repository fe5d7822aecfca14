"""Trouble stays with its instance; the others go on (CON-07)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError, connection

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine import executor, steprun, steps
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.models import PendingEvent, StepRecord, WorkflowInstance
from tests.integration.con_flows import quick, state
from tests.support.concurrency import eventually

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


# Trouble stays with its instance ----------------------------------------------------------------------------------------


def test_one_instances_trouble_is_no_other_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """CON-07: of ten due instances the third meets a database error once, the fifth has unreadable params."""
    flow = quick()
    rows = [flow.create({"n": number}) for number in range(10)]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durableflow_workflowinstance SET params = %s WHERE id = %s", ['{"n": 4', rows[4].pk])
    original, failed = steps.run, []

    def flaky(using: str, sql: str, params: Any = (), **how: Any) -> Any:
        if str(rows[2].pk) in map(str, params) and not failed:
            failed.append(sql)
            raise OperationalError("server closed the connection unexpectedly")
        return original(using, sql, params, **how)

    monkeypatch.setattr(steps, "run", flaky)
    drain(30)
    assert failed
    statuses = [state(row)[0] for row in rows]
    assert statuses == [Status.COMPLETE] * 4 + [Status.PAUSED] + [Status.COMPLETE] * 5
    assert "params cannot be read" in rows[4].blocked
    assert rows[2].steps.get().attempts == 1, "infrastructure errors never count as attempts"


@pytest.mark.parametrize("column", ["output", "config"])
def test_an_unreadable_record_blocks_its_instance_alone(column: str) -> None:
    """CON-07: "5 is isolated and reported"; resume() tries again after the repair."""

    class Sleepy(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            value = step.do("a", lambda: "value")
            try:
                step.wait_for_event("go", type="go")
            except ValueError:
                return "run() must not be able to catch it"
            return value

    rows = [Sleepy.create() for _ in range(3)]
    drain()
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE durableflow_steprecord SET {column} = %s WHERE instance_id = %s AND kind = 'do'",
            ["{broken", rows[1].pk],
        )
    for row in rows:
        row.send_event("go")
    drain()
    if column == "config":  # nobody reads the options of a step that has finished
        assert [state(row)[0] for row in rows] == [Status.COMPLETE] * 3
        return
    assert [state(row)[0] for row in rows] == [Status.COMPLETE, Status.PAUSED, Status.COMPLETE]
    assert "'a-1'" in rows[1].blocked and rows[1].history.filter(type="workflow_paused").count() == 1
    StepRecord.objects.filter(instance=rows[1], kind="do").update(raw_output="repaired")
    rows[1].resume()
    drain()
    assert state(rows[1]) == (Status.COMPLETE, "repaired")


def test_an_engine_without_memory_loses_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """OPS-07: a body has left nothing to the engine, which cannot even write that down: a lost attempt, no case for a person."""
    ran: list[int] = []

    class Hungry(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.do("eat", lambda: ran.append(1) or "full")  # type: ignore[func-returns-value]

    write, failed = steprun.write_step, []

    def starved(*args: Any) -> Any:
        if len(failed) < 2:  # the checkpoint, and then the failed attempt
            failed.append(1)
            raise MemoryError
        return write(*args)

    monkeypatch.setattr(steprun, "write_step", starved)
    row = Hungry.create()
    drain()
    assert state(row) == (Status.COMPLETE, "full") and len(ran) == 2
    assert row.interruptions == 0, "the checkpoint has cleared it"
    assert row.history.filter(type="attempt_lost").count() == 1


@pytest.mark.parametrize("kind", ["event", "decision"])
def test_an_unreadable_answer_blocks_and_is_kept(kind: str) -> None:
    """CON-07, OPS-13: it is no error of the workflow, and nothing is consumed."""

    class Ask(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if kind == "event":
                return step.wait_for_event("go", type="go").payload
            return step.wait_for_approval("go", title="Go?").comment

    row = Ask.create()
    drain()
    if kind == "event":
        row.send_event("go", "fine")
    else:
        PendingEvent.objects.get().approve(by=None, comment="fine")
    with connection.cursor() as cursor:
        cursor.execute("SELECT payload FROM durableflow_sentevent")
        (text,) = cursor.fetchone()
        cursor.execute("UPDATE durableflow_sentevent SET payload = '{'")
    drain()
    assert state(row)[0] == Status.PAUSED and "cannot be read" in row.blocked
    assert row.sent_events.get().consumed_by == ""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durableflow_sentevent SET payload = %s", [text])
    row.resume()
    drain()
    assert state(row) == (Status.COMPLETE, "fine")


def fail(monkeypatch: pytest.MonkeyPatch, row: WorkflowInstance, error: Exception) -> None:
    """Each execution of that instance ends in the engine's own code with ``error``."""
    original = executor._execute

    def failing(claimed: Any, interceptor: Any) -> None:
        if claimed.lease.pk == row.pk:
            raise error
        original(claimed, interceptor)

    monkeypatch.setattr(executor, "_execute", failing)


def test_an_engine_error_blocks_its_instance_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-07: whatever it is. The others go on, and resume() tries again."""
    rows = [quick().create() for _ in range(3)]
    fail(monkeypatch, rows[1], RuntimeError("a bug of ours"))
    drain()
    assert [state(row)[0] for row in rows] == [Status.COMPLETE, Status.PAUSED, Status.COMPLETE]
    assert "a bug of ours" in rows[1].blocked
    monkeypatch.undo()
    rows[1].resume()
    drain()
    assert state(rows[1]) == (Status.COMPLETE, "done")


def test_a_database_error_in_the_engine_needs_no_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """CON-07: "3 in the next sweep", wherever the error comes up; without end it is no outage any more."""
    rows = [quick().create() for _ in range(3)]
    fail(monkeypatch, rows[1], OperationalError("server closed the connection unexpectedly"))
    drain(0)
    drain(0)
    drain(0)
    assert [state(row)[0] for row in rows] == [Status.COMPLETE, Status.QUEUED, Status.COMPLETE]
    assert rows[1].blocked == "" and rows[1].give_backs == 1
    monkeypatch.undo()
    WorkflowInstance.objects.filter(pk=rows[1].pk).update(wake_at=rows[1].created)
    drain(0)
    assert state(rows[1]) == (Status.COMPLETE, "done")


@pytest.mark.parametrize("signal_", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", ["load", "exit"])
def test_a_stop_in_the_engines_own_code_gives_the_instance_back(
    monkeypatch: pytest.MonkeyPatch, signal_: type[BaseException], place: str
) -> None:
    """Design 4, "Executor exits": always by suspend, finish or give-back, whatever BaseException comes; nobody waits for
    the lease to end, and nothing is charged."""
    row = quick().create()
    (claimed,) = claim("default")

    def stop(*_args: Any, **_kwargs: Any) -> None:
        raise signal_

    monkeypatch.setattr(*((executor, "freeze") if place == "load" else (executor.endings, "complete")), stop)
    with pytest.raises(signal_):
        execute(claimed, renew=False)
    row.refresh_from_db()
    assert (row.status, row.lease_token) == (Status.QUEUED, None)
    monkeypatch.undo()
    eventually(lambda: drain(1) or state(row)[0] == Status.COMPLETE)
    drain()
    assert state(row) == (Status.COMPLETE, "done")
    assert row.interruptions == 0 and not row.history.filter(type="attempt_lost").exists()
