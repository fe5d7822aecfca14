"""``terminate``: nothing starts after it, whatever the instance was doing (LIF-01, LIF-02, LIF-03)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from durableflow import InvalidTransition, Retries, Step, Workflow, WorkflowEvent, WorkflowFailed, drain
from durableflow.core.exceptions import StaleDecision
from durableflow.engine import endings, executor
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.interception import Interceptor
from durableflow.engine.renewal import renew
from durableflow.engine.verdicts import MAX_GIVE_BACKS
from durableflow.models import StepRecord, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.concurrency import Gate, Task, together

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class Abc(Workflow[Any, Any]):
    """A, then B and C; notes what has run."""

    ran: list[str]

    class Meta:
        name = "verbs-abc"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        for name in "abc":
            step.do(name, lambda name=name: self.ran.append(name))  # type: ignore[misc]
        return "out"


@pytest.fixture(autouse=True)
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(Abc, "ran", seen, raising=False)
    return seen


class At(Interceptor):
    """Calls a function when the body of A has returned."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def before_checkpoint(self, _workflow: str, identity: Any, _attempt: int) -> None:
        if identity.name == "a":
            self.function()


def fresh(row: WorkflowInstance) -> WorkflowInstance:
    row.refresh_from_db()
    return row


def assert_terminated(row: WorkflowInstance) -> None:
    fresh(row)
    assert (row.status, row.output, row.wake_at, row.lease_token, row.owner) == (
        Status.TERMINATED,
        None,
        None,
        None,
        None,
    )
    assert row.history.filter(type="workflow_terminated").count() == 1
    assert not row.history.filter(type="workflow_completed").exists()
    assert row.history.get(type="workflow_terminated").at >= row.finished
    assert not row.pending_events.filter(status="open").exists()
    assert not row.steps.filter(status__in=["pending", "started"]).exists()


@pytest.mark.parametrize("beat", [False, True])
def test_during_a_body(ran: list[str], beat: bool) -> None:
    """LIF-01: the body is not interrupted, its checkpoint is dropped, B and C never start; whether or not the renewal has
    noticed by then."""
    row = Abc.create()
    (claimed,) = claim("default")

    def stop() -> None:
        WorkflowInstance.objects.get(pk=row.pk).terminate(reason="enough")
        if beat:
            renew([claimed.lease])

    execute(claimed, interceptor=At(stop), renew=False)
    assert ran == ["a"]
    assert_terminated(row)
    assert not StepRecord.objects.exists(), "the checkpoint met no lease"
    ended = row.finished
    drain()
    assert fresh(row).finished == ended and ran == ["a"]
    with pytest.raises(WorkflowFailed, match="terminated"):
        row.result()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", ["suspend", "complete", "fail"])
def test_around_the_last_write(monkeypatch: pytest.MonkeyPatch, name: str, moment: str) -> None:
    """LIF-01, LIF-02: just before the engine's last write terminate wins; just after it the operator is told what came
    first. Never "terminated" and complete."""

    class Ends(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if name == "suspend":
                step.wait_for_event("x", type="x")
            if name == "fail":
                raise ValueError("no")
            return "out"

    row = Ends.create()
    original = getattr(endings, name)
    answers: list[str] = []

    def stop() -> None:
        try:
            WorkflowInstance.objects.get(pk=row.pk).terminate()
            answers.append("terminated")
        except InvalidTransition as refused:
            answers.append(refused.status)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if moment == "before":
            stop()
        value = original(*args, **kwargs)
        if moment == "after":
            stop()
        return value

    monkeypatch.setattr(executor.endings, name, wrapped)
    drain()
    fresh(row)
    if moment == "before" or name == "suspend":
        assert answers == ["terminated"]
        assert_terminated(row)
    else:
        expected = {"complete": Status.COMPLETE, "fail": Status.ERRORED}[name]
        assert answers == [expected] and row.status == expected
        assert not row.history.filter(type="workflow_terminated").exists()


def test_terminate_and_completion_at_once(ran: list[str]) -> None:
    """LIF-02: either "terminated" and it is, or refused with "complete" and it is."""
    outcomes = set()
    for _ in range(25):
        row = Abc.create()
        (claimed,) = claim("default")
        gate = Gate()

        def work(claimed: Any = claimed, gate: Gate = gate) -> None:
            execute(claimed, interceptor=At(gate.stop_here), renew=False)

        worker = Task(work)
        gate.wait_until_reached()
        stopper, opener = together(
            lambda pk=row.pk: WorkflowInstance.objects.get(pk=pk).terminate(),  # type: ignore[misc]
            gate.open,
        )
        opener.result()
        worker.result()
        fresh(row)
        if stopper.error is None:
            assert_terminated(row)
        else:
            assert isinstance(stopper.error, InvalidTransition) and stopper.error.status == Status.COMPLETE
            assert (row.status, row.output) == (Status.COMPLETE, "out")
        outcomes.add(row.status)
    assert outcomes <= {Status.COMPLETE, Status.TERMINATED}


class Stages(Workflow[str, Any]):
    """Stops where its params say."""

    ran: list[str]

    class Meta:
        name = "verbs-stages"

    def run(self, event: WorkflowEvent[str], step: Step) -> Any:
        if event.params == "retry":
            step.do("flaky", self.fail, retries=Retries(limit=5, delay=60))
        if event.params == "sleep":
            step.sleep("nap", 60)
        if event.params == "event":
            step.wait_for_event("gate", type="x", timeout=60)
        if event.params == "approval":
            step.wait_for_approval("gate", title="Gate", timeout=60)
        if event.params == "notify":
            step.wait_for_event("gate", type="x", timeout=600, notify=lambda pending: self.fail())
        step.do("after", lambda: self.ran.append("after"))

    def fail(self) -> None:
        self.ran.append("fail")
        raise OSError("away")


@pytest.mark.parametrize(
    "stage", ["queued", "start_at", "retry", "sleep", "event", "approval", "notify", "blocked", "expired"]
)
def test_in_every_stage(monkeypatch: pytest.MonkeyPatch, stopped_clock: StoppedClock, stage: str) -> None:
    """LIF-03: back-off, sleep, gate, queue, a lease that has ended: all closed in the one transaction, nothing runs later."""
    seen: list[str] = []
    monkeypatch.setattr(Stages, "ran", seen, raising=False)
    row = Stages.create(stage, start_at="1 minute" if stage == "start_at" else None)
    if stage == "expired":
        claim("default")
        stopped_clock.advance(3600)
    elif stage == "blocked":
        WorkflowInstance.objects.update(code_version=9, give_backs=MAX_GIVE_BACKS)
    if stage not in ("queued", "expired"):
        drain()
    before = list(seen)
    waits = list(row.pending_events.all())
    if stage == "approval":
        row.send_event("x")
    fresh(row).terminate(reason="stop")
    assert_terminated(row)
    stopped_clock.advance("2 hours")
    assert drain() == 0
    assert seen == before
    assert_terminated(row)
    assert row.blocked == row.hold == ""
    for pending in waits:
        pending.refresh_from_db()
        assert pending.status == "cancelled" and pending.closed is not None
        if pending.is_approval:
            with pytest.raises(StaleDecision) as stale:
                pending.approve(by=None)
            assert (stale.value.code, stale.value.status) == ("cancelled", Status.TERMINATED)


def test_a_decision_that_came_first_is_kept() -> None:
    """The audit shows it, although nobody reads it any more."""
    row = Stages.create("approval")
    drain()
    pending = row.pending_events.get()
    pending.approve(by=None, comment="yes")
    fresh(row).terminate()
    pending.refresh_from_db()
    assert (pending.status, pending.approved, pending.comment) == ("received", True, "yes")
    drain()
    assert row.history.filter(type="decided").count() == 1
    assert fresh(row).status == Status.TERMINATED


def test_a_decision_and_terminate_at_once() -> None:
    """No deadlock, and both are told the truth."""
    for _ in range(15):
        row = Stages.create("approval")
        drain()
        pending = row.pending_events.get()
        decider, stopper = together(
            lambda pending=pending: pending.approve(by=None),  # type: ignore[misc]
            lambda row=row: WorkflowInstance.objects.get(pk=row.pk).terminate(),  # type: ignore[misc]
        )
        stopper.result()
        drain()
        pending.refresh_from_db()
        assert fresh(row).status == Status.TERMINATED
        if decider.error is None:
            assert (pending.status, pending.approved) == ("received", True)
        else:
            assert isinstance(decider.error, StaleDecision) and pending.status == "cancelled"


def test_progress_of_a_terminated_instance_is_not_written(ran: list[str]) -> None:
    class Progress(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            WorkflowInstance.objects.get().terminate()
            step.set_progress("late")
            ran.append("went on")

    row = Progress.create()
    drain()
    assert_terminated(row)
    assert row.progress is None and ran == []
