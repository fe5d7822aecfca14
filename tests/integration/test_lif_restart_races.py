"""``restart`` and ``complete_step`` at the same moment as everything else (LIF-07, CON-04; design 4, 9)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from durableflow import InvalidTransition, Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.core.exceptions import StaleDecision
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.models import ConcurrencyLimit, StepRecord, WorkflowInstance
from tests.integration.chd_flows import Child, child_of
from tests.integration.con_flows import expire_leases
from tests.integration.restart_flows import Raced
from tests.support.concurrency import PATIENCE, Gate, Task, child, eventually, together
from tests.support.engine import drained, history_of

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status
ROUNDS = range(5)


def fresh(row: WorkflowInstance) -> WorkflowInstance:
    return WorkflowInstance.objects.get(pk=row.pk)


def verb(row: WorkflowInstance, name: str, **options: Any) -> Callable[[], str]:
    """Apply it to a page that was just loaded; what it answered."""
    page = fresh(row)

    def press() -> str:
        try:
            getattr(page, name)(**options)
        except InvalidTransition as refused:
            return f"refused: {refused.status}"
        return "done"

    return press


def assert_sound(row: WorkflowInstance, runs: int) -> None:
    """So many runs; each has its own records and one beginning, nothing of one is in another, no slot is lost."""
    row.refresh_from_db()
    assert row.run_number == runs
    for step in row.steps.all():
        if step.kind == "do" and step.status == "complete":
            assert step.output == step.run_number == step.key_run
        assert step.run_number == runs or step.status in ("complete", "failed", "cancelled")
    begun = list(row.history.filter(type="workflow_started").values_list("run_number", flat=True))
    assert len(begun) == len(set(begun)) and (row.status == "queued" or runs in begun)
    assert history_of(row, "workflow_queued").count({"verb": "restart", "from_step": None}) == runs - 1
    assert not row.pending_events.filter(status="open").exclude(run_number=runs).exists()
    taken = sum(limit.running for limit in ConcurrencyLimit.objects.all())
    assert taken == WorkflowInstance.objects.filter(holds_slot=True).count()


@pytest.mark.parametrize("_round", ROUNDS)
@pytest.mark.parametrize("params", ["plain", "fail"])
def test_with_the_end_of_the_run(params: str, _round: int) -> None:
    """LIF-07: either the run had ended and is restarted, or its last write finds no lease; the new run is whole in both cases."""
    row = Raced.create(params)
    (claimed,) = claim("default")
    press = verb(row, "restart")
    worker, operator = together(lambda: execute(claimed, renew=False), press)
    worker.result()
    assert operator.result() == "done"
    drained(row)
    assert (row.status, row.output) == (Status.COMPLETE, [2, 2])
    assert_sound(row, 2)
    assert row.history.filter(type="workflow_completed", run_number=2).count() == 1


@pytest.mark.parametrize("_round", ROUNDS)
@pytest.mark.parametrize("params", ["event", "timer"])
def test_with_a_worker_that_goes_on(params: str, _round: int) -> None:
    """A due timer, or an event that is being delivered and read: nothing of the old run is read by the new one but what was sent
    and committed after the restart."""
    row = drained(Raced.create(params))
    if params == "event":
        row.send_event("x", "first")
    if row.status == Status.WAITING:
        operator, worker = together(verb(row, "restart"), lambda: drain(0.05))
        worker.result()
        assert operator.result() == "done"
    else:  # the timer was so short that it is over
        row.restart()
    drained(row)
    if params == "event":
        # Whichever came first: the old run read it, or nobody did and it is closed.
        assert row.status == Status.WAITING
        assert row.sent_events.get().consumed_run == 1
        row.send_event("x", "second")
    eventually(lambda: drained(row).status == Status.COMPLETE, "the end")
    assert row.output == ([2, "second", 2] if params == "event" else [2, 2])
    assert_sound(row, 2)


@pytest.mark.parametrize("_round", ROUNDS)
def test_with_a_sender(_round: int) -> None:
    """Design 2: what the restart sees is closed, what commits later is the new run's. Never both, never neither."""
    row = drained(Raced.create("event"))
    page = fresh(row)
    operator, sender, courier = together(
        verb(row, "restart"), lambda: page.send_event("x", "sent", dedupe_key="k"), lambda: deliver("default")
    )
    sender.result(), courier.result()
    assert operator.result() == "done"
    drained(row)
    drained(row)
    (sent,) = row.sent_events.all()
    if sent.consumed_by == "restart":
        assert (row.status, sent.run_number, sent.consumed_run) == (Status.WAITING, 1, 1)
    else:
        assert (row.status, row.output, sent.run_number, sent.consumed_run) == (Status.COMPLETE, [2, "sent", 2], 2, 2)
    assert row.history.filter(type="event_received").count() == 1
    assert_sound(row, 2)


@pytest.mark.parametrize("_round", ROUNDS)
def test_with_a_decision(_round: int) -> None:
    """A decision is of its own pending event: refused as stale, or kept as what the old run was told. No deadlock."""
    row = drained(Raced.create("approval"))
    pending = row.pending_events.get()
    operator, decider = together(verb(row, "restart"), lambda: pending.approve(by=None, comment="old"))
    assert operator.result() == "done"
    drained(row)
    pending.refresh_from_db()
    if decider.error is None:
        assert (pending.status, pending.comment) == ("received", "old")
    else:
        assert isinstance(decider.error, StaleDecision) and pending.status == "cancelled"
    assert row.status == Status.WAITING
    row.pending_events.get(status="open").approve(by=None, comment="new")
    assert drained(row).output == [2, "new", 2]
    assert_sound(row, 2)


@pytest.mark.parametrize("_round", ROUNDS)
def test_with_a_takeover(_round: int) -> None:
    """The lease of a lost worker has ended: whoever takes it over has the new run, or loses what it has taken."""
    row = Raced.create("plain")
    claim("default")
    expire_leases()
    operator, worker = together(verb(row, "restart"), lambda: drain(0.2))
    worker.result()
    assert operator.result() == "done"
    drained(row)
    assert (row.status, row.output) == (Status.COMPLETE, [2, 2])
    assert_sound(row, 2)


@pytest.mark.parametrize("other", ["pause", "terminate", "retry", "restart"])
@pytest.mark.parametrize("_round", ROUNDS)
def test_with_another_verb(other: str, _round: int) -> None:
    """One after the other, in either order; each is answered by what it found."""
    row = drained(Raced.create("fail" if other == "retry" else "event"))
    first, second = together(verb(row, "restart"), verb(row, other))
    answers = first.result(), second.result()
    row.refresh_from_db()
    possible: dict[str, set[tuple[tuple[str, str], str, int]]] = {
        "pause": {(("done", "done"), "paused", 2), (("done", "done"), "queued", 2)},
        "terminate": {(("done", "done"), "terminated", 2), (("done", "done"), "queued", 2)},
        "retry": {(("done", "refused: queued"), "queued", 2), (("refused: queued", "done"), "queued", 1)},
        "restart": {(("done", "refused: queued"), "queued", 2), (("refused: queued", "done"), "queued", 2)},
    }
    assert (answers, str(row.status), row.run_number) in possible[other]
    runs = row.run_number
    drained(row)
    assert_sound(row, runs) if row.status not in ("paused", "terminated") else None


@pytest.mark.parametrize("_round", ROUNDS)
def test_with_the_end_of_a_child(_round: int) -> None:
    """Its message is of the old run's call; the new run has a child of its own."""
    row = Raced.create("child")
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    first = child_of(row)
    (claimed,) = claim("default")
    operator, worker, courier = together(
        verb(row, "restart"), lambda: execute(claimed, renew=False), lambda: deliver("default")
    )
    worker.result(), courier.result()
    assert operator.result() == "done"
    drained(row)
    drained(row)
    assert (row.status, row.output) == (Status.COMPLETE, [2, 2, 2])
    first.refresh_from_db()
    assert first.status in (Status.COMPLETE, Status.TERMINATED)


@pytest.mark.parametrize("_round", ROUNDS)
def test_a_step_is_completed_while_it_is_claimed(_round: int) -> None:
    """Either the person was first, and the body does not run; or the body runs, and the person is told."""
    ran: list[int] = []

    class Flaky(Workflow[Any, Any]):
        class Meta:
            name = "complete-raced"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.do("a", self.body, retries=Retries(limit=5, delay=0.001))

        def body(self) -> str:
            ran.append(1)
            if len(ran) == 1:
                raise OSError("once")
            return "body"

    row = Flaky.create()
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    step = StepRecord.objects.get()
    operator, worker = together(verb(row, "complete_step", step=step, output="person"), lambda: drain(0.1))
    worker.result()
    drained(row)
    assert row.status == Status.COMPLETE
    if operator.result() == "done":
        assert (row.output, len(ran)) == ("person", 1)
    else:
        assert (row.output, len(ran)) == ("body", 2)


class Beside(Workflow[Any, Any]):
    """A branch that waits for an answer, and one that is restarted beside it."""

    class Meta:
        name = "restart-beside"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather(
            "both", lambda: self.wait(event, step), lambda: step.do("a", lambda: event.run_number), concurrency=1
        )

    def wait(self, event: WorkflowEvent[Any], step: Step) -> Any:
        if event.params == "approval":
            return step.wait_for_approval("x", title="Ok?").comment
        if event.params == "child":
            return step.run_workflow("x", Child, {"wait": 1})
        return step.wait_for_event("x", type="x", timeout=None).payload


@pytest.mark.parametrize("_round", ROUNDS)
@pytest.mark.parametrize("params", ["event", "approval", "child"])
def test_from_a_step_with_an_answer_to_what_is_kept(params: str, _round: int) -> None:
    """Promise 1: the wait is kept, and so is its answer, whenever it comes; it answers once."""
    row = drained(Beside.create(params))
    pending = row.pending_events.first()
    page, waiting = fresh(row), child_of(row) if params == "child" else None

    def answer() -> Any:
        if params == "event":
            return page.send_event("x", "answer", dedupe_key="k")
        if waiting is not None:
            return waiting.send_event("go", "answer")
        assert pending is not None
        return pending.approve(by=None, comment="answer")

    def work() -> None:
        drain(0.05)

    operator, sender, worker = together(verb(row, "restart", from_step="a"), answer, work)
    sender.result(), worker.result()
    assert operator.result() == "done"
    drained(row)
    assert drained(row).status == Status.COMPLETE and row.output == ("answer", 2)
    assert (
        row.steps.filter(name="x").count() == row.history.filter(type="workflow_completed", run_number=2).count() == 1
    )


def test_a_late_body_and_the_step_of_the_new_run() -> None:
    """LIF-07 with a thread of its own: 'old' ends when the new run has stored 'new' and waits; then the event comes."""
    gate, ran = Gate(), list[str]()

    class Late(Workflow[Any, Any]):
        class Meta:
            name = "restart-late"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            value = step.do("value", self.body, event.run_number)
            step.wait_for_event("go", type="go", timeout=None)
            return value

        def body(self, run_number: int) -> str:
            if run_number == 1:
                gate.stop_here()
            ran.append("old" if run_number == 1 else "new")
            return ran[-1]

    row = Late.create()
    (claimed,) = claim("default")
    worker = Task(lambda: execute(claimed))
    gate.wait_until_reached()
    fresh(row).restart()
    drained(row)
    gate.open()
    worker.result()
    assert ran == ["new", "old"] and [step.output for step in row.steps.filter(name="value")] == ["new"]
    row.send_event("go")
    assert drained(row).output == "new"
    assert row.history.filter(type="step_completed", step="value-1").count() == 1


def test_killed_between_the_restart_and_its_hint() -> None:
    """CON-04: the process dies when the restart is committed and nobody has been told; a look finds it and starts it once."""
    row = drained(Raced.create("plain"))
    with child("tests.integration.restart_flows:restart_and_die", str(row.pk)) as process:
        assert process.wait(PATIENCE) == -signal.SIGKILL, process.communicate()
    assert fresh(row).status == Status.QUEUED
    drained(row)
    assert (row.status, row.output) == (Status.COMPLETE, [2, 2])
    assert_sound(row, 2)
