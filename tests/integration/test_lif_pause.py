"""``pause`` and ``resume``: nothing starts in between, and nothing that was done is lost (LIF-04, LIF-05, LIF-06)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied

from durableflow import InvalidTransition, NonRetryableError, Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.engine import continuing, endings, executor
from durableflow.engine.claims import claim
from durableflow.models import ConcurrencyLimit, WorkflowInstance
from tests.conftest import UserFactory
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class PauseSteps(Workflow[Any, Any]):
    """A, B, C; each body notes itself and then does what the test wants."""

    ran: list[str]
    does: dict[str, Callable[[], Any]]

    class Meta:
        name = "lif-pause-steps"
        step_retries = Retries(limit=3, delay="10 minutes", backoff="constant")

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return [step.do(name, self.body, name) for name in "abc"]

    def body(self, name: str) -> str:
        self.ran.append(name)
        self.does.get(name, str)()
        return name.upper()


@pytest.fixture(autouse=True)
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(PauseSteps, "ran", seen, raising=False)
    monkeypatch.setattr(PauseSteps, "does", {}, raising=False)
    return seen


def assert_paused(row: WorkflowInstance) -> None:
    row.refresh_from_db()
    assert (row.status, row.wake_at, row.lease_token, row.woken, row.blocked) == (Status.PAUSED, None, None, False, "")
    assert row.paused_at is not None
    assert drain() == 0, "a paused instance was executed"


def test_of_a_queued_one_nothing_runs_before_the_resume(ran: list[str]) -> None:
    """LIF-05: queued."""
    row = PauseSteps.create()
    row.pause(reason="incident")
    assert_paused(row)
    assert row.history.get(type="workflow_paused").reason == "incident"
    row.resume()
    assert (row.status, row.paused_at) == (Status.QUEUED, None)
    assert drained(row).output == ["A", "B", "C"]
    assert ran == ["a", "b", "c"]


def test_the_body_in_flight_ends_and_no_other_begins(ran: list[str]) -> None:
    """LIF-04: with a step that runs."""
    row = PauseSteps.create()
    seen: list[str] = []

    def pause() -> None:
        row.pause()
        seen.append(row.status)

    PauseSteps.does["a"] = pause
    drain()
    assert (seen, ran) == ([Status.WAITING_FOR_PAUSE], ["a"])
    assert_paused(row)
    assert steps_of(row) == [("a-1", "complete")]
    row.resume()
    assert drained(row).output == ["A", "B", "C"]
    assert ran == ["a", "b", "c"]
    assert [type for type in types_of(row) if "pause" in type] == ["workflow_waiting_for_pause", "workflow_paused"]


def test_an_early_resume_cancels_the_request(ran: list[str]) -> None:
    """LIF-04: resume before the body ends; the execution goes on as if nothing had been asked."""
    row = PauseSteps.create()

    def both() -> None:
        row.pause()
        row.resume()
        assert row.status == Status.RUNNING

    PauseSteps.does["a"] = both
    assert drained(row).output == ["A", "B", "C"]
    assert (row.execution, row.paused_at) == (1, None)
    assert "workflow_running" in types_of(row) and "workflow_paused" not in types_of(row)


def test_a_resume_when_the_execution_is_leaving_already(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-04: it has seen the request and unwound; the row decides, so it is queued again, and due."""
    row = PauseSteps.create()
    PauseSteps.does["a"] = row.pause
    original = executor._pause

    def late(claim: Any) -> None:
        row.resume()
        monkeypatch.setattr(executor, "_pause", original)
        original(claim)

    monkeypatch.setattr(executor, "_pause", late)
    assert drained(row).output == ["A", "B", "C"]
    assert (ran, row.execution) == (["a", "b", "c"], 2)
    assert "workflow_paused" not in types_of(row)


def test_a_failed_attempt_does_not_wait_for_its_retry(ran: list[str], stopped_clock: StoppedClock) -> None:
    """LIF-04, LIF-05: it is paused at once, and what was left of the delay is waited for after the resume."""
    row = PauseSteps.create()

    def fail() -> None:
        del PauseSteps.does["a"]
        row.pause()
        raise RuntimeError("a fails")

    PauseSteps.does["a"] = fail
    drain()
    assert_paused(row)
    assert [(step.attempts, step.status) for step in row.steps.all()] == [(1, "pending")]
    stopped_clock.advance("1 hour")
    row.resume()
    assert drained(row).status == Status.WAITING
    assert ran == ["a"], "the delay stood still while it was paused"
    stopped_clock.advance("10 minutes")
    assert drained(row).output == ["A", "B", "C"]


class PauseEnds(Workflow[str, Any]):
    """One step, whose end is the end of the run."""

    class Meta:
        name = "lif-pause-ends"
        step_retries = 0

    undone: list[str] = []

    def run(self, event: WorkflowEvent[str], step: Step) -> Any:
        try:
            step.do("only", self.body, event, rollback=lambda undo: self.undone.append("only"))
        except NonRetryableError:
            if event.params == "swallow":
                step.do("only", int)
            if event.params == "raise":
                raise
        if event.params == "new":
            step.continue_as_new("return")
        return "out"

    @staticmethod
    def body(event: WorkflowEvent[str]) -> None:
        PauseEnds.get(event.instance_id).pause()
        if event.params in ("raise", "swallow"):
            raise NonRetryableError("no money")


def test_a_run_that_makes_no_further_call_completes() -> None:
    """Nothing is left that a pause could keep from starting."""
    row = PauseEnds.create("return")
    assert drained(row).status == Status.COMPLETE
    assert (row.output, row.paused_at) == ("out", None)


def test_a_run_that_ends_with_an_error_is_rolled_back() -> None:
    """A rollback is not paused: it goes on to its end."""
    row = PauseEnds.create("raise")
    PauseEnds.undone.clear()
    assert drained(row).status == Status.ERRORED
    assert (PauseEnds.undone, row.rollback) == (["only"], {"outcome": "complete", "failed": []})


def test_the_engine_blocks_what_it_would_have_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocked instance is paused already, and says why."""
    row = PauseEnds.create("return")

    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("the engine fails")

    monkeypatch.setattr(endings, "complete", fail)
    assert drained(row).status == Status.PAUSED
    assert "the engine fails" in row.blocked
    monkeypatch.undo()
    row.resume()
    assert drained(row).status == Status.COMPLETE


def test_the_next_run_does_not_begin() -> None:
    """``continue_as_new`` while a pause is asked for."""
    row = PauseEnds.create("new")
    drain()
    assert_paused(row)
    assert row.run_number == 1
    row.resume()
    assert drained(row).run_number == 2
    assert (row.status, row.output) == (Status.COMPLETE, "out")


def test_a_pause_just_before_the_next_run_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """``continue_as_new`` has been called; the pause comes before its transaction."""
    row = PauseEnds.create("new")
    monkeypatch.setattr(PauseEnds, "body", staticmethod(lambda event: None))
    original = continuing.renew

    def pause_first(*args: Any) -> None:
        row.pause()
        original(*args)

    monkeypatch.setattr(continuing, "renew", pause_first)
    drain()
    assert_paused(row)
    assert (row.run_number, row.params) == (2, "return")
    assert types_of(row)[-3:] == ["workflow_waiting_for_pause", "workflow_queued", "workflow_paused"]
    monkeypatch.undo()
    monkeypatch.setattr(PauseEnds, "body", staticmethod(lambda event: None))
    row.resume()
    assert drained(row).status == Status.COMPLETE


class PauseLimited(Workflow[str, str]):
    """One at a time."""

    class Meta:
        name = "lif-pause-limited"
        max_concurrency = 1

    def run(self, event: WorkflowEvent[str], step: Step) -> str:
        if event.params:
            step.do("pause", PauseLimited.get(event.instance_id).pause)
        return step.do("work", lambda: "done")


def test_a_paused_instance_holds_no_slot() -> None:
    """The others of its key go on; when it is resumed it stands in line again."""
    first, second = PauseLimited.create("pause"), PauseLimited.create("")
    assert drained(second).output == "done"
    assert_paused(first)
    assert not first.holds_slot and not ConcurrencyLimit.objects.exclude(running=0).exists()
    first.resume()
    assert drained(first).output == "done"


def test_a_parked_instance_is_paused_and_resumed() -> None:
    """LIF-05: queued, and waiting for a slot."""
    first, second = PauseLimited.create(""), PauseLimited.create("")
    [taken] = claim("default", 2)
    assert WorkflowInstance.objects.get(pk=second.pk).hold == "limit"
    second.pause()
    assert second.hold == ""
    assert_paused(second)
    executor.execute(taken)
    assert drained(first).output == "done"
    assert_paused(second)
    second.resume()
    assert drained(second).output == "done"


@pytest.mark.parametrize(
    ("verb", "status"),
    [
        ("pause", Status.PAUSED),
        ("pause", Status.WAITING_FOR_PAUSE),
        ("pause", Status.COMPLETE),
        ("pause", Status.ROLLING_BACK),
        ("resume", Status.RUNNING),
        ("resume", Status.QUEUED),
        ("resume", Status.WAITING),
        ("resume", Status.TERMINATED),
    ],
)
def test_a_verb_in_the_wrong_state_changes_nothing(verb: str, status: str) -> None:
    """LIF-06: a second click finds the state that the first has made."""
    row = PauseSteps.create()
    WorkflowInstance.objects.filter(pk=row.pk).update(status=status, wake_at=None)
    before = WorkflowInstance.objects.filter(pk=row.pk).values().get()
    with pytest.raises(InvalidTransition, match=status) as refused:
        getattr(row, verb)()
    assert refused.value.status == status
    assert WorkflowInstance.objects.filter(pk=row.pk).values().get() == before
    assert types_of(row) == ["workflow_queued"]


def test_who_asked_and_why_is_in_the_history(user_factory: UserFactory) -> None:
    """Of the request, and of the pause that came of it. Without the right nothing happens."""
    ada = user_factory("ada", permissions=["durableflow.operate_workflowinstance"])
    row = PauseSteps.create()
    with pytest.raises(PermissionDenied):
        row.pause(by=user_factory("bob"))
    assert row.status == Status.QUEUED
    PauseSteps.does["a"] = lambda: row.pause(by=ada, reason="incident", via="api")
    drain()
    assert_paused(row)
    for entry in row.history.filter(type__in=("workflow_waiting_for_pause", "workflow_paused")):
        assert (entry.actor_name, entry.reason, entry.via) == ("ada", "incident", "api")
    row.resume(by=ada, reason="over")
    entry = row.history.filter(type="workflow_queued").latest("id")
    assert (entry.actor, entry.reason, entry.data) == (ada, "over", {"verb": "resume"})


def test_one_that_is_to_start_later_still_starts_later(stopped_clock: StoppedClock) -> None:
    """``start_at`` keeps its moment, as ``sleep_until`` does; one that is over by then is started at once."""
    row = PauseSteps.create(start_at="1 hour")
    starts = row.wake_at
    row.pause()
    stopped_clock.advance("10 minutes")
    row.resume()
    assert row.wake_at == starts
    row.pause()
    stopped_clock.advance("2 hours")
    row.resume()
    assert row.wake_at == stopped_clock.now
    assert drained(row).status == Status.COMPLETE


def test_a_paused_instance_can_be_terminated() -> None:
    """Paused, and while it is to be paused."""
    row, other = PauseSteps.create(), PauseSteps.create()
    row.pause()
    row.terminate()
    assert (row.status, row.wake_at) == (Status.TERMINATED, None)

    def stop() -> None:
        other.pause()
        other.terminate()

    PauseSteps.does["a"] = stop
    assert drained(other).status == Status.TERMINATED
