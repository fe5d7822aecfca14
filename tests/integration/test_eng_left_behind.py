"""What a body, a signal or an outage leaves behind on a connection, or after a checkpoint (design 1.1, 4, 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import Error, connection, connections

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.core.statuses import Status
from durableflow.engine import steprun
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import state

pytestmark = pytest.mark.django_db(transaction=True)


class LeftPlain(Workflow[int, int]):
    """Nothing is wrong with it."""

    def run(self, event: WorkflowEvent[int], step: Step) -> int:
        return step.do("give", lambda: event.params)


@pytest.fixture
def others() -> Iterator[Callable[..., Any]]:
    """``others(sql)``: what is committed, as another connection sees it."""
    other = connections["default"].copy()

    def ask(sql: str, *params: Any) -> list[Any]:
        with other.cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall()) if cursor.description else []

    yield ask
    other.close()


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.mark.parametrize("where", ["body", "failing body", "run", "run's end"])
def test_a_transaction_begun_by_hand_takes_nobody_along(where: str, others: Callable[..., Any]) -> None:
    """Nothing that the connection was used for after such a BEGIN would ever be committed, and nobody would see it."""

    class Begins(Workflow[None, int]):
        def run(self, event: WorkflowEvent[None], step: Step) -> int:
            step.do("begin", self.body, retries=0)
            if where.startswith("run"):
                execute("BEGIN")
            return 0 if where == "run's end" else step.do("after", lambda: 1)

        def body(self) -> None:
            if where.endswith("body"):
                execute("BEGIN")
            if where == "failing body":
                raise ValueError("between BEGIN and COMMIT")

    bad = Begins.create()
    rows = [LeftPlain.create(number) for number in range(3)]
    drain()
    seen = dict(others("SELECT id, status FROM durableflow_workflowinstance"))
    assert {seen[row.pk] for row in rows} == {"complete"}
    bad.refresh_from_db()
    assert bad.status == Status.ERRORED and bad.error is not None
    if where != "failing body":
        assert "transaction begun by hand on 'default'" in bad.error["message"]


@pytest.mark.parametrize("retries", [0, 5])
@pytest.mark.parametrize("error", [MemoryError, ValueError, "of a signal"])
def test_an_exception_that_comes_after_the_checkpoint_undoes_nothing(
    error: Any, retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server had committed: the step is no failed one, and does not wait for a retry that nobody wakes."""

    class OfASignal(BaseException):
        pass

    ran: list[str] = []
    write, raised = steprun.write_step, []

    def then_raise(*args: Any) -> Any:
        written = write(*args)
        if ran and not raised:
            raised.append(1)
            raise OfASignal if error == "of a signal" else error
        return written

    class Marked(Workflow[None, str]):
        def run(self, event: WorkflowEvent[None], step: Step) -> str:
            step.do("a", lambda: ran.append("a"), retries=retries)
            return step.do("b", lambda: ran.append("b") or "end")  # type: ignore[func-returns-value]

    monkeypatch.setattr(steprun, "write_step", then_raise)
    row = Marked.create()
    drain()
    assert state(row) == (Status.COMPLETE, "end")
    assert ran == ["a", "b"] and row.interruptions == 0
    assert not row.history.filter(type__in=["attempt_errored", "attempt_lost"]).exists()


@pytest.mark.postgresql_only
def test_a_session_in_which_nothing_can_be_written_is_given_up() -> None:
    """A body's SET stays with the connection; it must not stop the whole process."""

    class ReadOnly(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            step.do("set", lambda: execute("SET default_transaction_read_only = on"))

    bad, good = ReadOnly.create(), LeftPlain.create(1)
    drain()
    assert state(good) == (Status.COMPLETE, 1)
    bad.refresh_from_db()
    assert bad.status == Status.PAUSED and "read-only transaction" in bad.blocked


@pytest.mark.postgresql_only
def test_another_encoding_of_the_session_changes_no_text() -> None:
    """What is stored is what was returned, whatever the body has set for itself."""

    class Encodes(Workflow[None, list[str]]):
        def run(self, event: WorkflowEvent[None], step: Step) -> list[str]:
            step.do("before", lambda: 1)
            step.do("set", lambda: execute("SET client_encoding TO 'LATIN1'"))
            return [step.do("text", lambda: "naïve é"), "naïve é"]

    row = Encodes.create()
    drain()
    connection.close()
    assert state(row) == (Status.COMPLETE, ["naïve é", "naïve é"])


@pytest.mark.postgresql_only
def test_a_scheduler_that_drains_again_has_a_new_connection(others: Callable[..., Any]) -> None:
    """The drain that meets the loss tells of it; the next one works."""
    LeftPlain.create(1)
    assert drain() == 1
    row = LeftPlain.create(2)
    others("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
    with pytest.raises(Error):
        drain()
    assert drain() == 1
    row.refresh_from_db()
    assert row.status == WorkflowInstance.Status.COMPLETE
