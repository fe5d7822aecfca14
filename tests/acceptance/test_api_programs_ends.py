"""What the interface's example programs leave behind, beyond what their own tests look at."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import get_step_context
from durableflow.models import StepRecord, WorkflowInstance
from durableflow.testing import Harness
from shop.workflows import Agent, Book, NightlyExport, Trip

S = WorkflowInstance.Status
pytestmark = pytest.mark.django_db


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was cancelled: kind and reference, in the order of the calls."""
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr("shop.services.cancel", lambda kind, ref: calls.append((kind, ref)))
    return calls


def outputs(row: WorkflowInstance) -> dict[str, Any]:
    """What each step of the root gave in the present run."""
    steps = StepRecord.objects.filter(instance=row.pk, run_number=row.run_number, scope="")
    return {step.name: step.output for step in steps}


def test_only_the_failed_table_is_exported_again(workflows: Harness) -> None:
    workflows.mock_result("list tables", ["a", "b", "c"])
    workflows.mock_error("export table", OSError("disk"), times=1, count=2)
    run = workflows.run(NightlyExport)
    assert run.status == S.WAITING  # for the second table's retry alone
    assert workflows.attempts("export table") == 3
    workflows.advance("1 minute")
    assert (run.status, workflows.attempts("export table")) == (S.COMPLETE, 4)
    assert run.output == f"exports/{run.created.date()}/3.json"


def test_a_saga_undoes_with_what_its_steps_gave(workflows: Harness, undone: list[tuple[str, str]]) -> None:
    workflows.mock_error("pay", RuntimeError("no money"))
    trip = workflows.run(Trip, {})
    gave = outputs(trip)
    assert undone == [("hotel", gave["book hotel"]), ("flight", gave["book flight"])]
    assert ((trip.error or {}).get("type"), trip.rollback) == ("RuntimeError", {"outcome": "complete", "failed": []})


def test_a_booking_that_failed_is_undone_by_its_key(
    workflows: Harness, undone: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have gone through all the same: the handler gets the key that the body had."""
    keys: list[str] = []

    def book(kind: str) -> str:
        keys.append(get_step_context().idempotency_key)
        raise OSError("connection lost")

    monkeypatch.setattr("shop.services.book", book)
    trip = workflows.run(Trip, {})
    workflows.advance("1 day")
    assert trip.status == S.ERRORED
    assert len(keys) > 1 and undone == [("flight", keys[0])]


def test_a_trip_that_is_paid_is_not_undone(workflows: Harness, undone: list[tuple[str, str]]) -> None:
    trip = workflows.run(Trip, {})
    assert (trip.status, trip.rollback, undone) == (S.COMPLETE, None, [])
    assert list(outputs(trip)) == ["book flight", "book hotel", "pay"]


def test_terminate_undoes_a_trip_where_it_stands(workflows: Harness, undone: list[tuple[str, str]]) -> None:
    workflows.mock_error("book hotel", OSError("closed"), times=1)
    trip = workflows.run(Trip, {})
    assert (trip.status, undone) == (S.WAITING, [])
    trip.terminate(rollback=True)
    workflows.run_due()
    assert (trip.status, [kind for kind, _ in undone]) == (S.TERMINATED, ["hotel", "flight"])


DANGER = {"tool": "shell", "args": {"command": "ls"}}


def test_an_agent_that_is_allowed_calls_its_tool_once(workflows: Harness, staff: Any) -> None:
    """Its messages are what its steps gave, in their order, after each wait anew."""
    workflows.mock_result("think", DANGER, count=1)
    workflows.mock_result("think", {"tool": "search", "args": {}}, count=2)
    workflows.mock_result("think", {"text": "done"}, count=3)
    run = workflows.run(Agent, {"messages": []})
    assert (run.status, workflows.attempts("tool")) == (S.WAITING, 0)
    wait = workflows.pending(run, "tool approval")
    assert (wait.title, wait.context) == ("Run shell?", DANGER)
    workflows.approve(run, by=staff)
    assert (run.status, run.output) == (S.COMPLETE, "done")
    assert (workflows.attempts("think"), workflows.attempts("tool")) == (3, 2)


def test_a_tool_that_fails_is_tried_again_by_itself(workflows: Harness) -> None:
    workflows.mock_result("think", {"tool": "search", "args": {}}, count=1)
    workflows.mock_result("think", {"text": "done"}, count=2)
    workflows.mock_error("tool", OSError("closed"), times=2)
    run = workflows.run(Agent, {"messages": []})
    assert run.status == S.WAITING
    workflows.advance("1 hour")
    assert (run.status, run.output) == (S.COMPLETE, "done")
    assert (workflows.attempts("think"), workflows.attempts("tool")) == (2, 3)


def test_an_agent_goes_on_in_a_new_run_with_its_last_messages(
    workflows: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 50 turns the journal is empty again; the instance stays, and the conversation is the new run's params."""
    seen: list[int] = []

    def ask_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
        seen.append(len(messages))
        return {"tool": "search", "args": {"turn": len(seen)}} if len(seen) <= 50 else {"text": messages[-1]["content"]}

    monkeypatch.setattr("shop.services.ask_model", ask_model)
    run = workflows.run(Agent, {"messages": []}, instance_id="helper")
    assert (run.status, run.run_number, run.instance_id) == (S.COMPLETE, 2, "helper")
    assert run.output == "search({'turn': 50})"
    assert seen == [*range(0, 100, 2), 20]
    assert list(outputs(run)) == ["think"]


def test_a_book_has_all_its_pages(workflows: Harness) -> None:
    """Every page is a child of its own, rendered once; the results come in the order of the jobs, after the decision too."""
    book = workflows.run(Book, {})
    pages = WorkflowInstance.objects.filter(workflow="render-page")
    assert (book.status, pages.count(), pages.filter(status=S.COMPLETE).count()) == (S.WAITING, 500, 500)
    workflows.approve(book, "cover ok")
    assert (book.status, book.output) == (S.COMPLETE, sum(n % 7 for n in range(500)) + len("pages/0.pdf") + 500)
    assert (workflows.attempts("measure", book), workflows.attempts("index", book)) == (500, 1)
    assert pages.count() == 500
