"""The testing kit: running, waiting without waiting, answering, looking (design 10, cases TST-01, TST-02, TST-04)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django import forms
from django.core.exceptions import PermissionDenied, ValidationError

from durableflow import (
    EventTimeout,
    InstanceAlreadyExists,
    Priority,
    Retries,
    StaleDecision,
    Step,
    Workflow,
    WorkflowEvent,
    get_step_context,
)
from durableflow.core import clock, registry
from durableflow.models import HistoryEntry, WorkflowInstance
from durableflow.testing import Harness, harness
from tests.conftest import UserFactory

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


class NoteForm(forms.Form):
    note = forms.CharField()


@pytest.fixture
def log() -> list[Any]:
    """What bodies have left, with the time on the workflow's clock."""
    return []


@pytest.fixture
def sleeper(workflows: Harness, log: list[Any]) -> type[Workflow[Any, datetime]]:
    """A workflow that gets a name and naps; it logs its name and the time when it wakes."""

    class Sleeper(Workflow[list[str], datetime]):
        def run(self, event: WorkflowEvent[list[str]], step: Step) -> datetime:
            name, *naps = event.params
            for nap in naps:
                step.sleep("nap", nap)
                step.do("wake", lambda: log.append((name, clock.host_now())))
            return step.now()

    return Sleeper


def test_run_starts_with_the_options_of_create(workflows: Harness, customer: Any) -> None:
    class Echo(Workflow[str, str]):
        def run(self, event: WorkflowEvent[str], step: Step) -> str:
            return f"{event.params} {event.instance_id}"

    run = workflows.run(Echo, params="hi", instance_id="a", priority=Priority.HIGH, created_by=customer)
    assert (run.status, run.output, run.priority, run.created_by) == (S.COMPLETE, "hi a", Priority.HIGH, customer)
    assert run.result() == "hi a"
    with pytest.raises(InstanceAlreadyExists):
        workflows.run(Echo, "again", instance_id="a")
    with pytest.raises(TypeError):
        workflows.run(Echo, "typo", id="b")  # type: ignore[call-arg]
    assert WorkflowInstance.objects.count() == 1


def test_run_due_runs_what_others_started(workflows: Harness) -> None:
    class Parcel(Workflow[None, str]):
        def run(self, event: WorkflowEvent[None], step: Step) -> str:
            return step.wait_for_event("sent", type="sent", timeout=None).payload

    row = Parcel.create()
    workflows.run_due()
    assert row.status == S.QUEUED
    assert workflows.attempts("none", row) == 0
    Parcel.get(row.instance_id).send_event("sent", "by air")
    workflows.run_due()
    assert (row.status, row.output) == (S.COMPLETE, "by air")


def test_advance_jumps_from_moment_to_moment(workflows: Harness, sleeper: Any, log: list[Any]) -> None:
    """TST-02: due things happen in time order, at their own time, without waiting."""
    begin, started = clock.host_now(), time.monotonic()
    late = workflows.run(sleeper, ["late", "3 hours"])
    early = workflows.run(sleeper, ["early", "1 hour", "1 hour", "30 days"])
    ended = workflows.run(sleeper, ["ended", "2 hours"])
    ended.terminate()
    assert log == []
    workflows.advance("59 minutes")
    assert log == []
    workflows.advance("1 minute")
    assert log == [("early", begin + timedelta(hours=1))]
    workflows.advance(timedelta(hours=5))
    assert log[1:] == [("early", begin + timedelta(hours=2)), ("late", begin + timedelta(hours=3))]
    assert clock.host_now() == begin + timedelta(hours=6)
    assert (late.output, early.status, ended.status) == (begin + timedelta(hours=3), S.WAITING, S.TERMINATED)
    workflows.advance("30 days")
    assert early.output == begin + timedelta(days=30, hours=2)
    assert time.monotonic() - started < 10


def test_time_stands_still(workflows: Harness) -> None:
    class Clocks(Workflow[None, Any]):
        def run(self, event: WorkflowEvent[None], step: Step) -> Any:
            return [event.timestamp, step.now(), step.do("now", clock.host_now), step.now()]

    before = clock.host_now()
    assert abs(before - datetime.now(UTC)) < timedelta(minutes=1)
    run = workflows.run(Clocks)
    assert run.output == [before] * 4
    assert (run.created, run.started, run.finished) == (before, before, before)
    assert set(HistoryEntry.objects.values_list("at", flat=True)) == {before}


def test_retries_wait_for_advance(workflows: Harness) -> None:
    class Stubborn(Workflow[None, int]):
        def run(self, event: WorkflowEvent[None], step: Step) -> int:
            return step.do("try", attempt, retries=Retries(limit=3, delay=10, backoff="exponential"))

    def attempt() -> int:
        number = get_step_context().attempt
        if number < 4:
            raise OSError(number)
        return number

    run = workflows.run(Stubborn)
    workflows.run_due()
    assert (run.status, workflows.attempts("try")) == (S.WAITING, 1)
    workflows.advance(10)
    assert workflows.attempts("try", run) == 2
    workflows.advance(19.5)
    assert workflows.attempts("try", run) == 2
    workflows.advance("1 hour")
    assert (run.output, workflows.attempts("try", run), workflows.attempts("other", run)) == (4, 4, 0)


def test_max_duration_ends_at_its_moment(workflows: Harness) -> None:
    class Bounded(Workflow[None, None]):
        class Meta:
            max_duration = "1 day"

        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            step.wait_for_event("never", type="never", timeout=None)

    begin = clock.host_now()
    run = workflows.run(Bounded)
    workflows.advance("2 days")
    assert run.error is not None
    assert (run.status, run.error["type"]) == (S.ERRORED, "durableflow.WorkflowTimeout")
    assert run.finished == begin + timedelta(days=1)


def test_start_at_waits_for_advance(workflows: Harness, sleeper: Any) -> None:
    run = workflows.run(sleeper, ["late"], start_at="1 hour")
    assert run.status == S.QUEUED
    workflows.advance("1 hour")
    assert run.status == S.COMPLETE


def test_due_work_runs_in_time_order_then_by_priority(workflows: Harness, sleeper: Any, log: list[Any]) -> None:
    sleeper.create(["second", "0 seconds"], start_at="2 minutes", priority=Priority.HIGH)
    sleeper.create(["first", "0 seconds"], start_at="1 minute", priority=Priority.LOW)
    for name, priority in (("low", Priority.LOW), ("normal", Priority.NORMAL), ("high", Priority.HIGH)):
        sleeper.create([name, "0 seconds"], start_at="3 minutes", priority=priority)
    workflows.advance("1 hour")
    assert [name for name, _ in log] == ["first", "second", "high", "normal", "low"]


class Approval(Workflow[None, Any]):
    """Waits for a manager, then for a program."""

    class Meta:
        name = "kit-approval"

    def run(self, event: WorkflowEvent[None], step: Step) -> Any:
        decision = step.wait_for_approval("sign", groups=["managers"], form=NoteForm, allow_requester=False)
        if not decision:
            return [decision.by, decision.comment]
        try:
            return [decision.by, decision.data, step.wait_for_event("paid", type="paid", timeout="1 hour").payload]
        except EventTimeout:
            return "late"


def test_pending_and_approve(workflows: Harness, customer: Any, manager: Any) -> None:
    run = workflows.run(Approval, created_by=customer)
    pending = workflows.pending(run)
    assert (pending, pending.status) == (workflows.pending(run, "sign"), "open")
    workflows.approve(run, by=manager, data={"note": "fine"}, comment="ok")
    assert (pending.status, pending.comment) == ("received", "ok")
    assert workflows.pending(run).name == "paid"
    run.send_event("paid", 5)
    workflows.run_due()
    assert run.output == [manager.username, {"note": "fine"}, 5]


def test_reject(workflows: Harness, customer: Any, manager: Any) -> None:
    run = workflows.run(Approval, created_by=customer)
    workflows.reject(run, "sign", by=manager, comment="no")
    assert run.output == [manager.username, "no"]


def test_trusted_code_decides(workflows: Harness, customer: Any, manager: Any) -> None:
    run = workflows.run(Approval, created_by=customer)
    workflows.approve(run, data={"note": "x"})
    workflows.advance("2 hours")
    assert run.output == "late"


def test_a_wrong_decision_changes_nothing(workflows: Harness, customer: Any, manager: Any) -> None:
    run = workflows.run(Approval, created_by=customer)
    with pytest.raises(PermissionDenied):
        workflows.approve(run, by=customer, data={"note": "me"})
    with pytest.raises(ValidationError):
        workflows.approve(run, by=manager, data={})
    assert workflows.pending(run).status == "open"


def test_no_open_wait_is_told(workflows: Harness, customer: Any, manager: Any) -> None:
    run = workflows.run(Approval, created_by=customer)
    stale = workflows.pending(run)
    with pytest.raises(LookupError, match=r"is waiting and has no open wait 'sing' \(open: 'sign'\)"):
        workflows.approve(run, "sing")
    workflows.approve(run, data={"note": "x"})
    with pytest.raises(LookupError, match=r"no open wait \(open: none\)"):
        workflows.approve(run)
    with pytest.raises(StaleDecision):
        stale.approve(by=manager, data={"note": "late"})
    workflows.advance("2 hours")
    with pytest.raises(LookupError, match="is complete and has no open wait"):
        workflows.pending(run)


def test_why_there_is_no_open_wait_is_told(workflows: Harness) -> None:
    """A test that expects a wait learns from the message what stopped its workflow."""

    class Broken(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            raise RuntimeError("the terminal is down")

    run = workflows.run(Broken)
    with pytest.raises(LookupError, match=r"no open wait \(open: none\)\. .*RuntimeError: the terminal is down"):
        workflows.approve(run)


def test_a_wait_past_its_deadline_is_not_pending(workflows: Harness, customer: Any, manager: Any) -> None:
    run = workflows.run(Approval, created_by=customer)
    clock.move(clock.host_now() + timedelta(days=2))
    with pytest.raises(LookupError, match="no open wait"):
        workflows.approve(run)


def test_a_deleted_row_is_left_alone(workflows: Harness, sleeper: Any, log: list[Any]) -> None:
    run = workflows.run(sleeper, ["gone", "1 hour"])
    WorkflowInstance.objects.filter(pk=run.pk).delete()
    workflows.advance("2 hours")
    assert (run.status, log) == (S.WAITING, [])


def test_an_instance_that_never_rests_is_stopped(workflows: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    class Restless(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            step.do("try", fail, retries=Retries(limit=1000, delay=0))

    def fail() -> None:
        raise OSError

    monkeypatch.setattr("durableflow.testing.kit.AT_ONE_MOMENT", 5)
    with pytest.raises(RuntimeError, match="again and again"):
        workflows.run(Restless)


def test_an_interrupt_reaches_the_test(workflows: Harness) -> None:
    class Impatient(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        workflows.run(Impatient)
    assert WorkflowInstance.objects.get().status == S.QUEUED


def test_harness_has_a_clock_of_its_own() -> None:
    noon = datetime(2030, 5, 1, 12, tzinfo=UTC)

    class Noon(Workflow[None, datetime]):
        def run(self, event: WorkflowEvent[None], step: Step) -> datetime:
            return step.now()

    with harness(now=noon) as workflows:
        run = workflows.run(Noon)
        assert run.output == noon
        workflows.advance("1 hour")
        assert clock.host_now() == noon + timedelta(hours=1)
    assert clock.stopped() is None
    with pytest.raises(RuntimeError, match="has ended"):
        workflows.run_due()
    with pytest.raises(ValueError, match="no time zone"), harness(now=datetime(2030, 5, 1)):
        pass


@pytest.mark.parametrize("turn", [1, 2])
def test_nothing_is_left_over(workflows: Harness, turn: int) -> None:
    """TST-04: the same id, a workflow that is left asleep, and a class of one name in each turn."""
    assert registry.find("kit-left-over") is None

    class KitLeftOver(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            step.sleep("nap", "1 day")

    assert registry.find("kit-left-over") is KitLeftOver
    assert workflows.run(KitLeftOver, instance_id="same").status == S.WAITING


def test_a_module_that_was_imported_inside_stays_known() -> None:
    with registry.isolated():
        registry._classes.pop(Approval.workflow_name())
        registry.register(Approval.workflow_name(), Approval)
    assert registry.find("kit-approval") is Approval


def test_the_requester_of_a_given_row(workflows: Harness, user_factory: UserFactory, manager: Any) -> None:
    """A row that some other code made counts as given."""
    row = Approval.create(created_by=user_factory("eve"))
    workflows.run_due()
    workflows.reject(row, by=manager)
    assert (row.status, row.output) == (S.COMPLETE, [manager.username, ""])
