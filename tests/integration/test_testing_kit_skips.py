"""The testing kit: what does not wait (design 10; the reference's test controls: no sleeps, no retry delays, forced timeouts)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest

from durableflow import (
    AsyncStep,
    EventTimeout,
    Retries,
    Rollback,
    Step,
    StepTimeout,
    Undo,
    Workflow,
    WorkflowEvent,
    get_step_context,
)
from durableflow.core import clock
from durableflow.models import PendingEvent, WorkflowInstance
from durableflow.testing import Harness, harness

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


class SkipNap(Workflow[None, str]):
    """Sleeps in three ways."""

    def run(self, event: WorkflowEvent[None], step: Step) -> str:
        step.sleep("nap", "1 day")
        step.sleep_until("until", step.now() + timedelta(days=2))
        step.gather("both", lambda: step.sleep("left", "5 days"), lambda: step.sleep("right", "3 days"))
        return "awake"


class SkipWait(Workflow[None, str]):
    """Waits for an event, and then for a person."""

    def run(self, event: WorkflowEvent[None], step: Step) -> str:
        try:
            told = str(step.wait_for_event("paid", type="paid", timeout="3 days").payload)
        except EventTimeout:
            told = "unpaid"
        try:
            decision = step.wait_for_approval("release", title="Release?", timeout="1 hour")
        except EventTimeout:
            return f"{told}, undecided"
        return f"{told}, {decision.approved}"


class SkipTries(Workflow[None, str]):
    """A body that succeeds at its third attempt."""

    class Meta:
        step_retries = Retries(limit=2, delay="1 hour", backoff="constant")

    def run(self, event: WorkflowEvent[None], step: Step) -> str:
        return step.do("try", self.tried)

    def tried(self) -> str:
        attempt = get_step_context().attempt
        if attempt < 3:
            raise OSError("not yet")
        return f"attempt {attempt}"


class SkipUndo(Workflow[None, None]):
    """Its handler succeeds at its second attempt."""

    tries: ClassVar[list[str]] = []

    def run(self, event: WorkflowEvent[None], step: Step) -> None:
        step.do("book", lambda: "booked", rollback=Rollback(self.undo, retries=Retries(limit=1, delay="1 hour")))
        step.do("pay", self.pay, retries=0)

    def pay(self) -> None:
        raise RuntimeError("no money")

    def undo(self, booking: Undo[str]) -> None:
        self.tries.append(booking.context.idempotency_key)
        if self.tries.count(booking.context.idempotency_key) < 2:
            raise OSError("not yet")


class SkipAsync(Workflow[None, str]):
    """The same calls, awaited."""

    async def run(self, event: WorkflowEvent[None], step: AsyncStep) -> str:
        await step.sleep("nap", "1 day")
        try:
            await step.do("call", self.called, retries=Retries(limit=1, delay="1 hour"))
        except StepTimeout:
            pass
        try:
            await step.wait_for_event("paid", type="paid", timeout="3 days")
        except EventTimeout:
            return "unpaid"
        return "paid"

    async def called(self) -> str:
        return "called"


class SkipRace(Workflow[None, str]):
    """An event against a timer."""

    def run(self, event: WorkflowEvent[None], step: Step) -> str:
        winner = step.race(
            "first",
            paid=lambda: step.wait_for_event("paid", type="paid"),
            late=lambda: step.sleep("late", "3 days"),
        )
        return winner.name


class SkipOwnTime(Workflow[None, str]):
    """Two events, each with a deadline."""

    def run(self, event: WorkflowEvent[None], step: Step) -> str:
        try:
            winner = step.race(
                "first",
                quick=lambda: step.wait_for_event("quick", type="quick", timeout="2 days"),
                slow=lambda: step.wait_for_event("slow", type="slow", timeout="3 days"),
            )
        except EventTimeout as error:
            return "slow timed out" if "no event of type slow" in str(error) else str(error)
        return winner.name


def test_sleeps_end_at_once(workflows: Harness) -> None:
    """All of them, also in branches; the clock stands still."""
    before = clock.stopped()
    workflows.skip_sleeps()
    row = workflows.run(SkipNap)
    assert (row.status, row.output) == (S.COMPLETE, "awake")
    assert clock.stopped() == before


def test_only_the_sleeps_that_are_named(workflows: Harness) -> None:
    workflows.skip_sleeps("nap", "left")
    row = workflows.run(SkipNap)
    assert row.steps.get(name="nap").status == "complete"
    assert row.steps.get(name="until").status == "pending"
    workflows.advance("2 days")
    assert row.steps.get(name="left").status == "complete"
    assert row.steps.get(name="right").status == "pending"
    workflows.advance("3 days")
    assert row.output == "awake"


def test_what_sleeps_already_ends_when_something_runs(workflows: Harness) -> None:
    row = workflows.run(SkipNap)
    assert row.status == S.WAITING
    workflows.skip_sleeps()
    workflows.run_due()
    assert row.output == "awake"


def test_a_paused_sleep_ends_when_it_is_resumed(workflows: Harness) -> None:
    row = workflows.run(SkipNap)
    row.pause()
    workflows.skip_sleeps("nap", "until", "left", "right")
    workflows.run_due()
    assert row.status == S.PAUSED
    row.resume()
    workflows.run_due()
    assert row.output == "awake"


def test_a_timer_in_a_race(workflows: Harness) -> None:
    workflows.skip_sleeps("late")
    assert workflows.run(SkipRace).output == "late"


def test_retries_come_at_once(workflows: Harness) -> None:
    workflows.skip_retry_delays()
    row = workflows.run(SkipTries)
    assert (row.output, workflows.attempts("try")) == ("attempt 3", 3)


def test_only_the_retries_that_are_named(workflows: Harness) -> None:
    workflows.skip_retry_delays("try")
    workflows.mock_error("try", OSError("down"), times=1)
    assert workflows.run(SkipTries).output == "attempt 3"


def test_retries_of_handlers_come_at_once(workflows: Harness) -> None:
    workflows.skip_retry_delays()
    row = workflows.run(SkipUndo)
    assert row.rollback is not None
    assert (row.status, row.rollback["outcome"]) == (S.ERRORED, "complete")
    assert row.steps.get(name="book").rollback_attempts == 2


def test_sleeps_do_not_end_with_retry_delays(workflows: Harness) -> None:
    workflows.skip_retry_delays()
    assert workflows.run(SkipNap).status == S.WAITING


def test_a_wait_times_out_at_once(workflows: Harness) -> None:
    workflows.mock_event_timeout("paid")
    row = workflows.run(SkipWait)
    assert row.status == S.WAITING
    assert [wait.current_status for wait in PendingEvent.objects.order_by("id")] == ["timed_out", "open"]
    workflows.approve(row)
    assert row.output == "unpaid, True"


def test_a_decision_times_out_at_once(workflows: Harness) -> None:
    row = workflows.run(SkipWait)
    workflows.mock_event_timeout("release", workflow=SkipWait, count=1)
    row.send_event("paid", "cash")
    workflows.run_due()
    assert row.output == "cash, undecided"


def test_a_wait_that_is_answered_already_takes_its_answer() -> None:
    """Its mock is unused, and fails the test."""
    with pytest.raises(AssertionError, match=r"Nothing has used mock_event_timeout\('paid'\)"), harness() as workflows:
        row = SkipWait.create()
        row.send_event("paid", "cash")
        workflows.mock_event_timeout("paid")
        workflows.run_due()
        row.refresh_from_db()
        assert row.steps.get(name="paid").status == "complete"


def test_an_event_that_races_with_a_timer_has_no_deadline_of_its_own() -> None:
    """It cannot time out, so that the mock is unused."""
    with pytest.raises(AssertionError, match="Nothing has used mock_event_timeout"), harness() as workflows:
        workflows.mock_event_timeout("paid")
        row = workflows.run(SkipRace)
        workflows.advance("3 days")
        assert row.output == "late"


def test_an_event_that_races_with_its_own_deadline(workflows: Harness) -> None:
    workflows.mock_event_timeout("slow")
    row = workflows.run(SkipOwnTime)
    assert row.output == "slow timed out"


def test_attempts_time_out_at_once(workflows: Harness) -> None:
    workflows.mock_timeout("try", times=1)
    workflows.mock_error("try", OSError("down"), times=1)
    workflows.mock_result("try", "at last")
    workflows.skip_retry_delays()
    row = workflows.run(SkipTries)
    assert (row.output, workflows.attempts("try")) == ("at last", 3)
    errors = [entry.data["error"]["type"] for entry in row.history.filter(type="attempt_errored").order_by("id")]
    assert errors == ["durableflow.StepTimeout", "OSError"]


def test_every_attempt_times_out(workflows: Harness) -> None:
    workflows.mock_timeout("try")
    workflows.skip_retry_delays()
    row = workflows.run(SkipTries)
    assert row.status == S.ERRORED
    assert row.error is not None
    assert row.error["type"] == "durableflow.StepTimeout"


def test_the_same_calls_of_async_code(workflows: Harness) -> None:
    workflows.skip_sleeps()
    workflows.skip_retry_delays()
    workflows.mock_timeout("call")
    workflows.mock_event_timeout("paid")
    row = workflows.run(SkipAsync)
    assert (row.output, workflows.attempts("call")) == ("unpaid", 2)


def test_a_name_that_nothing_uses_fails_the_test() -> None:
    unused = (
        r"Nothing has used mock_timeout\('tyr'\), skip_sleeps\('nop'\)\. Steps whose body was due in this test: 'try'\. "
        r"What waited for its time in this test: 'nap'\."
    )
    with pytest.raises(AssertionError, match=unused), harness() as workflows:
        workflows.skip_sleeps("nop")
        workflows.mock_timeout("tyr")
        workflows.run(SkipNap)
        workflows.run(SkipTries)


def test_all_of_a_kind_need_not_be_there(workflows: Harness) -> None:
    workflows.skip_sleeps()
    workflows.skip_retry_delays()
    workflows.mock_result("try", "done")
    assert workflows.run(SkipTries).output == "done"


@pytest.mark.parametrize("method", ["skip_sleeps", "skip_retry_delays", "mock_timeout", "mock_event_timeout"])
def test_a_name_is_a_text(workflows: Harness, method: str) -> None:
    wrong: Any = None
    with pytest.raises(ValueError, match="A step is named by a text, not by None"):
        getattr(workflows, method)(wrong)


def test_how_often_is_a_number(workflows: Harness) -> None:
    with pytest.raises(ValueError, match=r"mock_timeout\('try'\): times must be at least 1"):
        workflows.mock_timeout("try", times=0)
