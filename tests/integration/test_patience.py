"""Which failures of a write its maker waits out (design 4, "Infrastructure errors")."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest
from django.db import NotSupportedError, OperationalError, connection

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine import steps
from durableflow.engine.lease import Lease
from durableflow.engine.patience import patient
from durableflow.engine.sql import run
from durableflow.engine.unwind import WriteFailed

pytestmark = pytest.mark.django_db(transaction=True)


def lease() -> Lease:
    return Lease(connection.alias, 1, 1, "some/instance", time.monotonic())


def test_a_stale_plan_is_made_again_on_a_new_connection() -> None:
    """A migration under a running worker costs a connection, not an instance."""
    seen = []

    @patient
    def write(_lease: Lease) -> str:
        seen.append(connection.connection)
        if len(seen) == 1:
            raise NotSupportedError("cached plan must not change result type")
        return "written"

    run(connection.alias, "SELECT 1")
    assert write(lease()) == "written"
    assert seen[0] is not None
    assert seen[1] is None  # closed; the next statement opens a new one


def test_an_error_in_a_statement_is_not_repeated() -> None:
    """Repeated, a missing table would keep the worker for ever without a word."""
    tries = []

    @patient
    def write(_lease: Lease) -> None:
        tries.append(1)
        run(connection.alias, "SELECT 1 FROM there_is_no_such_table")

    with pytest.raises(WriteFailed, match="there_is_no_such_table"):
        write(lease())
    assert len(tries) == 1


@pytest.mark.parametrize("obedient", [True, False])
def test_a_statement_of_the_engine_that_fails_ends_no_instance(monkeypatch: pytest.MonkeyPatch, obedient: bool) -> None:
    """Design 6, "Engine failures": blocked until somebody has repaired the database, whatever ``run`` does about it."""

    class Careless(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            try:
                return step.do("work", lambda: "done", retries=1)
            except BaseException:
                if obedient:
                    raise
                return "without its step"

    original = steps.run

    def broken(using: str, sql: str, params: Any = (), **how: Any) -> Any:
        return original(using, sql.replace("INSERT INTO durableflow_steprecord", "INSERT INTO gone"), params, **how)

    monkeypatch.setattr(steps, "run", broken)
    row = Careless.create()
    drain(0)
    row.refresh_from_db()
    assert (row.status, row.error) == ("paused", None)
    assert "gone" in row.blocked or "SuspensionSwallowed" in row.blocked
    monkeypatch.undo()
    row.resume()
    drain(0)
    row.refresh_from_db()
    assert (row.status, row.output) == ("complete", "done")
    assert row.steps.get().attempts == 1


@pytest.mark.parametrize("state", ["57014", "57P01", "57P05", "55P03", "40P01", "40001", "53300", "08006", "58030"])
def test_what_a_server_does_to_a_session_is_waited_out(state: str) -> None:
    """Not only its end: a project's ``statement_timeout`` cancels a checkpoint that waits for a locked row."""
    tries = []

    @patient
    def write(_lease: Lease) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError("from the server") from psycopg.errors.lookup(state)("from the server")
        return "written"

    assert (write(lease()), len(tries)) == ("written", 2)


def test_a_lost_connection_is_waited_out() -> None:
    tries = []

    @patient
    def write(_lease: Lease) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OperationalError("server closed the connection unexpectedly")
        return "written"

    assert (write(lease()), len(tries)) == ("written", 3)


def test_an_atomic_step_whose_checkpoint_fails_for_good_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would run its body each second for ever; the instance is blocked instead, and nothing is charged."""

    class Careful(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.do("work", lambda: bodies.append(1), atomic=True)

    bodies: list[int] = []
    original = steps.run

    def broken(using: str, sql: str, params: Any = (), **how: Any) -> Any:
        if "INSERT INTO durableflow_steprecord" in sql.replace('"', ""):
            if len(bodies) > 3:
                raise SystemExit("again and again")
            raise OperationalError("for good") from psycopg.errors.lookup("57P04")("for good")
        return original(using, sql, params, **how)

    monkeypatch.setattr(steps, "run", broken)
    row = Careful.create()
    drain(0)
    row.refresh_from_db()
    assert (row.status, row.blocked, len(bodies)) == ("paused", "OperationalError: for good", 1)
    monkeypatch.undo()
    row.resume()
    drain(0)
    row.refresh_from_db()
    assert (row.status, row.steps.get().attempts, len(bodies)) == ("complete", 1, 2)
