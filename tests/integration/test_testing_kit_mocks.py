"""The testing kit: mocks and crashes (design 10, cases TST-03, CON-05)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import CodecError, Retries, Step, WorkerLost, Workflow, WorkflowEvent, get_step_context
from durableflow.models import HistoryEntry, PendingEvent, WorkflowInstance
from durableflow.testing import Harness, harness

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


@pytest.fixture
def calls() -> list[Any]:
    """What the real bodies were called with, and their idempotency keys."""
    return []


@pytest.fixture
def pay(workflows: Harness, calls: list[Any]) -> type[Workflow[Any, Any]]:
    """Pays two bills."""

    def body(bill: str) -> str:
        calls.append((bill, get_step_context().idempotency_key))
        return f"paid {bill}"

    class Pay(Workflow[None, list[str]]):
        class Meta:
            step_retries = Retries(limit=2, delay=60, backoff="constant")

        def run(self, event: WorkflowEvent[None], step: Step) -> list[str]:
            return [step.do("pay", body, "a"), step.do("pay", body, "b")]

    return Pay


def test_a_result_for_every_occurrence(workflows: Harness, pay: Any, calls: list[Any]) -> None:
    workflows.mock_result("pay", "mocked")
    assert workflows.run(pay).output == ["mocked", "mocked"]
    assert (calls, workflows.attempts("pay")) == ([], 2)


def test_the_most_precise_result_wins(pay: Any) -> None:
    unused = r"Nothing has used mock_result\('pay'\), mock_result\('pay', count=2\)\. .*: 'pay'\."
    with pytest.raises(AssertionError, match=unused), harness() as workflows:
        workflows.mock_result("pay", "any")
        workflows.mock_result("pay", "second", count=2)
        workflows.mock_result("pay", "second here", count=2, workflow=pay)
        workflows.mock_result("pay", "here", workflow=pay)
        assert workflows.run(pay).output == ["here", "second here"]


def test_only_the_occurrence_that_was_meant(workflows: Harness, pay: Any, calls: list[Any]) -> None:
    workflows.mock_result("pay", "mocked", count=2)
    assert workflows.run(pay).output == ["paid a", "mocked"]
    assert [bill for bill, _ in calls] == ["a"]


def test_only_the_workflow_that_was_meant(workflows: Harness, pay: Any) -> None:
    class Other(Workflow[None, str]):
        def run(self, event: WorkflowEvent[None], step: Step) -> str:
            return step.do("pay", lambda: "real")

    workflows.mock_result("pay", "mocked", workflow=pay)
    assert workflows.run(Other).output == "real"
    assert workflows.run(pay).output == ["mocked", "mocked"]


def test_only_the_attempt_that_was_meant(workflows: Harness, pay: Any, calls: list[Any]) -> None:
    """TST-03: the second occurrence fails on its first attempt; the body that is mocked never runs."""
    workflows.mock_error("pay", OSError("down"), times=1, count=2)
    run = workflows.run(pay)
    assert (run.status, [bill for bill, _ in calls]) == (S.WAITING, ["a"])
    workflows.advance("1 minute")
    assert run.output == ["paid a", "paid b"]
    assert [workflows.attempts("pay"), workflows.attempts("pay", run)] == [3, 3]


def test_errors_come_before_results(workflows: Harness, pay: Any, calls: list[Any]) -> None:
    workflows.mock_result("pay", "mocked")
    workflows.mock_error("pay", OSError("first"), times=1)
    workflows.mock_error("pay", TimeoutError("second"), times=1)
    run = workflows.run(pay)
    workflows.advance("1 hour")
    assert (run.output, calls) == (["mocked", "mocked"], [])
    failed = HistoryEntry.objects.filter(type="attempt_errored").order_by("id")
    assert [entry.data["error"]["message"] for entry in failed] == ["first", "second"]


def test_an_error_for_every_attempt_survives_retry(workflows: Harness, pay: Any, calls: list[Any]) -> None:
    workflows.mock_error("pay", ConnectionError("no"))
    run = workflows.run(pay)
    workflows.advance("1 hour")
    assert run.error is not None
    assert (run.status, run.error["message"], workflows.attempts("pay")) == (S.ERRORED, "no", 3)
    run.retry()
    workflows.advance("1 hour")
    assert (run.status, workflows.attempts("pay"), calls) == (S.ERRORED, 6, [])


def test_values_are_copies_and_pass_the_codec(workflows: Harness, pay: Any) -> None:
    value = {"list": [1]}
    workflows.mock_result("pay", value)
    value["list"].append(2)
    run = workflows.run(pay)
    assert run.output == [{"list": [1]}, {"list": [1]}]


def test_wrong_mocks_are_refused_at_once(workflows: Harness, pay: Any) -> None:
    with pytest.raises(CodecError):
        workflows.mock_result("pay", object())
    for wrong in (0, -1, True, "1"):
        with pytest.raises(ValueError, match="count"):
            workflows.mock_result("pay", 1, count=wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="times"):
            workflows.mock_error("pay", OSError(), times=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="instance of an exception"):
        workflows.mock_error("pay", OSError)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="named by a text"):
        workflows.mock_result("", 1)
    workflows.mock_result("pay", 1, count=1)
    with pytest.raises(ValueError, match="which of the two"):
        workflows.mock_result("pay", 2, count=1)
    assert workflows.run(pay).output == [1, "paid b"]


def test_unused_mocks_fail_the_test() -> None:
    with pytest.raises(AssertionError) as raised, harness() as workflows:
        workflows.mock_result("carge card", 1)
        workflows.mock_error("pay", OSError(), count=3)
        workflows.crash_before_checkpoint("ship")
    assert str(raised.value) == (
        "Nothing has used mock_error('pay', count=3), mock_result('carge card'), crash_before_checkpoint('ship'). "
        "Steps whose body was due in this test: none."
    )


def test_a_test_that_has_failed_is_not_told_of_mocks() -> None:
    with pytest.raises(KeyError), harness() as workflows:
        workflows.mock_result("pay", 1)
        raise KeyError


def test_a_mock_is_for_do_steps(workflows: Harness) -> None:
    told: list[PendingEvent] = []

    class Ask(Workflow[None, bool]):
        def run(self, event: WorkflowEvent[None], step: Step) -> bool:
            return bool(step.wait_for_approval("ask", notify=told.append)) and step.do("ask", lambda: False)

    workflows.mock_result("ask", True)
    run = workflows.run(Ask)
    workflows.approve(run)
    assert (run.output, [pending.name for pending in told], workflows.attempts("ask")) == (True, ["ask"], 1)


# Crashes ----------------------------------------------------------------------------------------------------------------


def test_a_crash_repeats_the_body_with_its_key(workflows: Harness, pay: Any, calls: list[Any]) -> None:
    """CON-05: attempt 1 is lost, attempt 2 has the same idempotency key."""
    workflows.crash_before_checkpoint("pay")
    run = workflows.run(pay)
    assert (run.output, workflows.attempts("pay")) == (["paid a", "paid b"], 3)
    assert [bill for bill, _ in calls] == ["a", "a", "b"]
    assert calls[0] == calls[1]
    lost = HistoryEntry.objects.get(type="attempt_lost")
    assert (lost.step, lost.data) == ("pay-1", {"attempt": 1})


def test_a_crash_that_is_armed_later(workflows: Harness, calls: list[Any]) -> None:
    class Later(Workflow[None, str]):
        def run(self, event: WorkflowEvent[None], step: Step) -> str:
            step.do("before", lambda: calls.append("before"))
            step.wait_for_event("go", type="go")
            step.do("after", lambda: calls.append("after"))
            return "done"

    run = workflows.run(Later)
    run.send_event("go")
    workflows.crash_before_checkpoint("after")
    assert (run.output, calls) == ("done", ["before", "after", "after"])
    assert (workflows.attempts("before"), workflows.attempts("after")) == (1, 2)


def test_a_crash_of_a_mocked_step(workflows: Harness, pay: Any, calls: list[Any]) -> None:
    workflows.mock_result("pay", "mocked", count=1)
    workflows.crash_before_checkpoint("pay")
    workflows.crash_before_checkpoint("pay")
    assert workflows.run(pay).output == ["mocked", "paid b"]
    assert ([bill for bill, _ in calls], workflows.attempts("pay")) == (["b"], 4)


def test_a_step_without_retries_is_not_repeated(workflows: Harness, calls: list[Any]) -> None:
    """CON-05 with retries=0: at most once."""

    class Once(Workflow[None, str]):
        def run(self, event: WorkflowEvent[None], step: Step) -> str:
            try:
                return step.do("once", lambda: f"ran {calls.append('ran')}", retries=0)
            except WorkerLost:
                return "lost"

    workflows.crash_before_checkpoint("once")
    run = workflows.run(Once)
    assert (run.output, calls, workflows.attempts("once")) == ("lost", ["ran"], 1)


def test_nothing_is_written_after_a_crash(workflows: Harness, calls: list[Any]) -> None:
    """A program that catches everything cannot write after its process has died."""

    class Greedy(Workflow[None, str]):
        def run(self, event: WorkflowEvent[None], step: Step) -> str:
            try:
                return step.do("work", lambda: f"worked {calls.append('work')}")
            finally:
                if len(calls) == 1:
                    try:
                        step.set_progress("from the grave")
                    finally:
                        step.do("clean up", lambda: calls.append("clean up"))

    workflows.crash_before_checkpoint("work")
    run = workflows.run(Greedy)
    assert (run.output, run.progress, calls) == ("worked None", None, ["work", "work"])


def test_a_crash_rolls_an_atomic_step_back(workflows: Harness, customer: Any) -> None:
    """design 6, atomic=True: exactly once for what the body writes in our database."""

    class Count(Workflow[None, str]):
        def run(self, event: WorkflowEvent[None], step: Step) -> str:
            return step.do("count", count, atomic=True)

    def count() -> str:
        customer.refresh_from_db()
        customer.first_name += "x"
        customer.save()
        return str(customer.first_name)

    workflows.crash_before_checkpoint("count")
    assert workflows.run(Count).output == "x"
    assert workflows.attempts("count") == 2


def test_a_crash_in_notify(workflows: Harness) -> None:
    told: list[str] = []

    class Notify(Workflow[None, bool]):
        def run(self, event: WorkflowEvent[None], step: Step) -> bool:
            return bool(step.wait_for_approval("ask", notify=lambda pending: told.append(pending.name)))

    workflows.crash_before_checkpoint("ask")
    run = workflows.run(Notify)
    assert (run.status, told) == (S.WAITING, ["ask", "ask"])
    workflows.approve(run)
    assert run.output is True
