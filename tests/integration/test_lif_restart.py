"""``restart`` from the start: a new run in place of the old one (LIF-06, LIF-07, LIF-08; design 9, reference 11)."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from durableflow import InvalidTransition, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.core.exceptions import StaleDecision
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.interception import Interceptor
from durableflow.models import PendingEvent, SentEvent, WorkflowInstance
from tests.integration.chd_flows import Child, children_of
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class Phases(Workflow[Any, Any]):
    """Does a, then what its params say, then c."""

    keys: list[tuple[str, int, str]]

    class Meta:
        name = "restart-phases"
        max_duration = "10 days"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        step.set_progress(event.run_number)
        step.do("a", self.body)
        if event.params == "sleep":
            step.sleep("nap", "1 hour")
        if event.params == "event":
            step.wait_for_event("gate", type="go", timeout="1 day")
        if event.params == "approval":
            step.wait_for_approval("gate", title="Gate")
        if event.params == "fail" and event.run_number == 1:
            step.do("fail", self.fail, retries=0)
        if event.params == "retry" and event.run_number == 1:
            step.do("fail", self.fail, retries=3)
        return [step.do("c", self.body), event.run_number]

    def body(self) -> str:
        context = get_step_context()
        self.keys.append((context.name, context.run_number, context.idempotency_key))
        return context.name

    def fail(self) -> None:
        raise OSError("no")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    seen: list[tuple[str, int, str]] = []
    monkeypatch.setattr(Phases, "keys", seen, raising=False)
    return seen


def assert_as_new(row: WorkflowInstance, run_number: int = 2) -> None:
    """Nothing of the old run is in the way."""
    row.refresh_from_db()
    assert (row.status, row.run_number, row.output, row.error, row.progress) == ("queued", run_number, None, None, None)
    assert (row.started, row.finished, row.paused_at, row.rollback, row.blocked, row.hold) == (
        None,
        None,
        None,
        None,
        "",
        "",
    )
    assert (row.lease_token, row.owner, row.interruptions, row.give_backs) == (None, None, 0, 0)
    assert row.wake_at is not None and not row.steps.filter(run_number=run_number).exists()
    assert not row.steps.filter(status__in=["pending", "started"]).exists()
    assert not row.pending_events.filter(status="open").exists()
    assert not row.sent_events.filter(consumed_by="").exists()


@pytest.mark.parametrize(
    "phase", ["complete", "fail", "retry", "sleep", "event", "approval", "paused", "terminated", "blocked"]
)
def test_every_kind_of_end_and_wait(
    phase: str, keys: list[tuple[str, int, str]], stopped_clock: StoppedClock, superuser: User
) -> None:
    """LIF-08: same id and params; steps, waits, timers, events, output and error of the old run are out of the way, its records
    stay under its number; and it really runs."""
    row = Phases.create(phase if phase not in ("paused", "terminated", "blocked") else "event", instance_id="same")
    drained(row)
    if phase == "paused":
        row.pause()
    if phase == "terminated":
        row.terminate()
    if phase == "blocked":
        WorkflowInstance.objects.filter(pk=row.pk).update(status="paused", blocked="x", wake_at=None)
    if row.status in ("waiting", "paused"):
        row.send_event("other", 1)
        drained(row)
        row.send_event("other", 2)  # undelivered
    seed, before, deadline = row.seed, list(row.steps.values_list("name", "pk")), row.deadline_at
    stopped_clock.advance("1 hour")
    row.restart(by=superuser, reason="again", via="admin")
    assert_as_new(row)
    assert row.seed != seed and row.params == (phase if phase not in ("paused", "terminated", "blocked") else "event")
    assert list(row.steps.filter(run_number=1).values_list("name", "pk")) == before
    assert deadline is not None and row.deadline_at == stopped_clock.now + (deadline - row.created)
    entry = row.history.latest("id")
    assert (entry.type, entry.run_number, entry.actor, entry.reason, entry.via) == (
        "workflow_queued", 2, superuser, "again", "admin",
    )  # fmt: skip
    assert entry.data == {"verb": "restart", "from_step": None}
    drained(row)
    stopped_clock.advance("1 hour")
    if phase in ("event", "paused", "terminated", "blocked"):
        row.send_event("go")
    if phase == "approval":
        row.pending_events.get(status="open").approve(by=None)
    drained(row)
    assert (row.status, row.output, row.progress) == (Status.COMPLETE, ["c", 2], 2)
    ran = [key for name, _, key in keys if name == "a"]
    assert len(set(ran)) == len(ran) == 2, "new keys: what runs again is new to the services that it calls"
    assert row.history.filter(type="workflow_started").values_list("run_number", flat=True).distinct().count() == 2


def test_the_table_of_restart(keys: list[Any]) -> None:
    """LIF-06: a second click finds it queued, and changes nothing; one that has never begun needs none."""
    row = Phases.create(None)
    with pytest.raises(InvalidTransition, match="queued") as refused:
        row.restart()
    assert refused.value.status == "queued"
    drained(row)
    page = WorkflowInstance.objects.get(pk=row.pk)
    row.restart()
    history = types_of(row)
    for stale in (row, page):
        with pytest.raises(InvalidTransition):
            stale.restart()
    assert types_of(row) == history and drained(row).run_number == 2


class OnCheckpoint(Interceptor):
    """Calls a function when a body has returned, before its checkpoint."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def before_checkpoint(self, *_args: Any) -> None:
        function, self.function = self.function, lambda: None
        function()


class Old(Workflow[Any, Any]):
    """Its first run's step returns 'old', the second's 'new'."""

    class Meta:
        name = "restart-old"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        value = step.do("value", lambda: "old" if event.run_number == 1 else "new")
        step.wait_for_event("go", type="go")
        return value


def test_what_an_old_body_returns_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """LIF-07: only 'new' is stored; the old attempt is fenced, whether the new run has its checkpoint by then or not."""
    row = Old.create()
    (claimed,) = claim("default")

    def restart_and_run() -> None:
        WorkflowInstance.objects.get(pk=row.pk).restart()
        (second,) = claim("default")
        execute(second, renew=False)

    with caplog.at_level("INFO", "durableflow"):
        execute(claimed, interceptor=OnCheckpoint(restart_and_run), renew=False)
    row.refresh_from_db()
    assert (row.status, row.run_number) == (Status.WAITING, 2)
    assert [(step.run_number, step.output) for step in row.steps.filter(name="value")] == [(2, "new")]
    assert sum("lost" in record.message for record in caplog.records if "restart-old" in record.message) == 1
    row.send_event("go")
    assert drained(row).output == "new"
    assert row.history.filter(type="workflow_completed").count() == 1


def test_its_slot_is_given_back() -> None:
    """CHD-06: the slot of a run that is taken away is free for the next one, and is counted once."""

    class Limited(Workflow[Any, Any]):
        class Meta:
            name = "restart-limited"
            max_concurrency = 1

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return event.run_number

    one, other = Limited.create(), Limited.create()
    (claimed,) = claim("default")
    assert claim("default") == []
    WorkflowInstance.objects.get(pk=one.pk).restart()
    one.refresh_from_db()
    assert (one.holds_slot, one.status) == (False, "queued")
    execute(claimed, renew=False)
    drain(5)
    assert (drained(one).output, drained(other).output) == (2, 1)


@pytest.mark.parametrize("key", ["", "b"])
def test_what_was_sent(key: str) -> None:
    """Design 2: restart closes the unread events that it sees; what was accepted for the old run and commits later moves to the new
    one. A dedupe key is free again, and the history of each run shows what came in it."""
    row = Phases.create("event")
    drained(row)
    row.send_event("go", "unread", dedupe_key="a")
    stale = WorkflowInstance.objects.get(pk=row.pk)
    row.restart()
    late = SentEvent.objects.create(
        instance=stale, run_number=1, kind="event", type="go", payload="late", sent_at=row.created, dedupe_key=key
    )
    SentEvent.objects.filter(pk=late.pk).update(sent_at=row.wake_at)
    drained(row)
    assert (row.status, row.output) == (Status.COMPLETE, ["c", 2])
    closed, moved = SentEvent.objects.filter(instance=row).order_by("id")
    assert (closed.run_number, closed.consumed_by, closed.consumed_run, closed.delivered) == (1, "restart", 1, True)
    assert (moved.run_number, moved.consumed_run) == (2, 2) and "gate" in moved.consumed_by
    assert list(row.history.filter(type="event_received").order_by("id").values_list("run_number", flat=True)) == [1, 2]
    row.restart()
    assert row.send_event("go", "unread", dedupe_key="a").pk not in (closed.pk, moved.pk)


def test_an_approval_page_of_the_old_run_is_stale() -> None:
    """LIF-03, LIF-08: its decision is refused, and answers no wait of the new run."""
    row = Phases.create("approval")
    drained(row)
    old = row.pending_events.get()
    row.restart()
    drained(row)
    with pytest.raises(StaleDecision) as refused:
        old.approve(by=None)
    assert refused.value.code == "stale"
    assert PendingEvent.objects.get(status="open").run_number == 2 and row.status == Status.WAITING


def test_a_decision_that_nobody_has_read_is_of_its_own_run() -> None:
    """Decisions belong to their pending event: accepted before the restart, it opens nothing after it."""
    row = Phases.create("approval")
    drained(row)
    row.pending_events.get().approve(by=None)
    row.restart()
    drained(row)
    assert row.status == Status.WAITING and row.pending_events.get(status="open").run_number == 2
    assert row.history.get(type="decided").run_number == 1
    assert row.sent_events.get().consumed_by == "restart"


def test_children() -> None:
    """What the old run still waits for ends; what it has started goes on, and is the instance's (design 7)."""

    class Parent(Workflow[Any, Any]):
        class Meta:
            name = "restart-parent"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if event.run_number == 1:
                step.start_workflow("started", Child, {"wait": 1})
                step.run_workflow("awaited", Child, {"wait": 1})
            return event.run_number

    row = Parent.create()
    drained(row)
    started, awaited = sorted(children_of(row), key=lambda child: child.pk)
    row.restart()
    drained(row)
    drain(5)
    assert (row.output, steps_of(row)) == (2, [("started-1", "complete"), ("awaited-1", "cancelled")])
    assert drained(awaited).status == Status.TERMINATED
    assert "was restarted" in awaited.history.get(type="workflow_terminated").reason
    assert drained(started).status == Status.WAITING


def test_a_child_that_is_restarted_tells_its_parent_in_the_end() -> None:
    """The parent waits for the child, whatever its run; an end that was taken back is none."""

    class Parent(Workflow[Any, Any]):
        class Meta:
            name = "restart-parent"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.run_workflow("child", Phases, "fail")

    row = Parent.create()
    drain(0)
    while WorkflowInstance.objects.filter(workflow="restart-phases", status="errored").count() == 0:
        for claimed in claim("default"):
            execute(claimed, renew=False)
    (child,) = children_of(row)
    child.restart()  # before anybody has told the parent
    drained(row)
    assert (row.status, row.output) == (Status.COMPLETE, ["c", 2])


@pytest.mark.parametrize("from_step", [None, "a"])
def test_a_second_click_that_comes_when_the_next_run_is_under_way(from_step: str | None) -> None:
    """LIF-08: who says which run is meant restarts nothing else; the status alone would let it through."""
    row = drained(Phases.create("event"))
    row.restart(from_step=from_step, expected_run=1)
    assert drained(row).status == Status.WAITING
    entries = row.history.count()
    with pytest.raises(InvalidTransition, match="is in run 2 by now, and run 1 was meant") as refused:
        row.restart(from_step=from_step, expected_run=1)
    row.refresh_from_db()
    assert (row.run_number, row.status, refused.value.status) == (2, "waiting", "waiting")
    assert row.history.count() == entries
    row.restart(from_step=from_step, expected_run=2)
    assert row.run_number == 3
