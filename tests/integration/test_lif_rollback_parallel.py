"""Rollback of parallel work: the order is that of the starts, whatever ended first (LIF-15, design 7)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group

from durableflow import (
    AsyncStep,
    NonRetryableError,
    Retries,
    Rollback,
    Step,
    Undo,
    Workflow,
    WorkflowEvent,
    WorkflowFailed,
    drain,
    get_step_context,
)
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from tests.integration.eng_flows import workflow
from tests.integration.lif_flows import Saga
from tests.support.concurrency import PATIENCE, Task
from tests.support.engine import drained, history_of

S = WorkflowInstance.Status
UNDONE: list[tuple[str, Any]] = []
"""Label and output of what was undone, in the order in which the handlers ran."""


@pytest.fixture(autouse=True)
def nothing_is_undone() -> None:
    UNDONE.clear()


def note(undo: Undo[Any]) -> None:
    UNDONE.append((f"{undo.context.name}-{undo.context.count}", undo.output))


def fails(undo: Undo[Any]) -> None:
    raise AssertionError("it never started")


@pytest.mark.django_db(transaction=True)
def test_reverse_order_of_start() -> None:
    """LIF-15: a, b, parallel (c fast, d slow), e fails; each once, with its output, none for e. c starts first and ends last."""
    started, ended = threading.Event(), threading.Event()

    def c() -> str:
        started.set()
        assert ended.wait(PATIENCE)
        return "C"

    def d_later(step: Step) -> str:
        assert started.wait(PATIENCE)
        return step.do("d", lambda: (ended.set(), "D")[1], rollback=note)

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=note)
        step.do("b", lambda: "B", rollback=note)
        step.gather("both", lambda: step.do("c", c, rollback=note), lambda: d_later(step))
        step.do("e", Saga.fail, rollback=note)

    row = drained(workflow(run, []).create())
    assert [step.name for step in row.steps.filter(kind="do").order_by("seq")] == ["a", "b", "c", "d", "e"]
    assert UNDONE == [("e-1", None), ("d-1", "D"), ("c-1", "C"), ("b-1", "B"), ("a-1", "A")]
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})


@pytest.mark.django_db
def test_both_branches_fail_or_not(workflows: Harness) -> None:
    """Reference G: parallel starts A, B are undone B, A; an ExceptionGroup is an uncaught error like any other."""
    errors: list[Exception] = []

    def handler(undo: Undo[Any]) -> None:
        note(undo)
        errors.append(undo.error)

    def run(step: Step, log: list[str]) -> None:
        step.gather(
            "both",
            lambda: step.do("a", lambda: "A", rollback=handler),
            lambda: [step.do("b", lambda: "B", rollback=handler), step.do("x", Saga.fail)],
        )

    row = workflows.run(workflow(run, []))
    assert UNDONE == [("b-1", "B"), ("a-1", "A")]
    assert row.status == S.ERRORED and isinstance(errors[0], ExceptionGroup)
    assert [str(member) for member in errors[0].exceptions] == ["no money"]


@pytest.mark.django_db
def test_items_of_a_map(workflows: Harness) -> None:
    """Each item is a step: those that were started are undone, the one that failed too."""

    def work(item: int) -> int:
        if item == 3:
            raise NonRetryableError("three")
        return item * 10

    def run(step: Step, log: list[str]) -> None:
        step.map("measure", work, [1, 2, 3], rollback=Rollback(note, retries=0))

    row = workflows.run(workflow(run, []))
    assert UNDONE == [("measure-3", None), ("measure-2", 20), ("measure-1", 10)]
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})


@pytest.mark.django_db
def test_terminated_while_branches_wait(workflows: Harness) -> None:
    """Design 7: the replay for the handlers goes on in each branch up to its first unfinished call."""
    broken = [OSError("closed")]

    def book() -> str:
        if broken:
            raise broken.pop()
        return "booked"

    def run(step: Step, log: list[str]) -> None:
        def waits(name: str) -> None:
            step.do(f"{name} before", lambda: name, rollback=note)
            step.wait_for_event(f"{name} waits", type="x", timeout=None)
            step.do(f"{name} after", lambda: name, rollback=fails)

        step.do("first", lambda: "1", rollback=note)
        step.gather(
            "all",
            lambda: waits("a"),
            lambda: step.gather("inner", lambda: waits("b"), lambda: waits("c")),
            lambda: step.do("retried", book, retries=Retries(limit=3, delay=60), rollback=note),
        )

    row = workflows.run(workflow(run, []))
    assert row.status == S.WAITING
    row.terminate(rollback=True)
    workflows.run_due()
    assert [label for label, _ in UNDONE] == ["retried-1", "c before-1", "b before-1", "a before-1", "first-1"]
    assert UNDONE[0] == ("retried-1", None), "it has had an attempt, so it may have had an effect"
    assert (row.status, row.rollback) == (S.TERMINATED, {"outcome": "complete", "failed": []})
    assert not row.steps.filter(status__in=("pending", "started")).exists()
    assert not row.pending_events.filter(status="open").exists()


@pytest.mark.django_db
def test_failed_handlers_of_branches_run_again_alone(workflows: Harness) -> None:
    """Design 7: after the end, when all that was open is cancelled, the replay still finds the handlers of branches."""
    broken = True

    def handler(undo: Undo[Any]) -> None:
        note(undo)
        if broken:
            raise NonRetryableError("no")

    def run(step: Step, log: list[str]) -> None:
        def waits(name: str) -> None:
            step.do(name, lambda: name, rollback=handler if name == "a" else note)
            step.wait_for_event(f"{name} waits", type="x", timeout=None)

        step.gather("both", lambda: waits("a"), lambda: waits("b"))

    row = workflows.run(workflow(run, []))
    row.terminate(rollback=True)
    workflows.run_due()
    assert (row.status, row.rollback) == (S.TERMINATED, {"outcome": "failed", "failed": ["both-1[1]/a-1"]})
    broken = False
    row.retry()
    workflows.run_due()
    assert UNDONE == [("b-1", "b"), ("a-1", "a"), ("a-1", "a")]
    assert (row.status, row.rollback) == (S.TERMINATED, {"outcome": "complete", "failed": []})


@pytest.mark.django_db(transaction=True)
def test_an_async_workflow() -> None:
    """The same for ``async def run``: sync and async handlers, and a durable call in one is refused."""

    class AsyncSaga(Workflow[Any, Any]):
        async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> None:
            async def undo(undo: Undo[Any]) -> None:
                note(undo)

            async def calls(undo: Undo[Any]) -> None:
                await step.do("inside", lambda: UNDONE.append(("inside", None)))

            await step.do("a", lambda: "A", rollback=note)
            await step.do("b", lambda: "B", rollback=undo)
            await step.do("c", lambda: "C", rollback=calls)
            await step.do("d", Saga.fail)

    row = drained(AsyncSaga.create())
    assert UNDONE == [("b-1", "B"), ("a-1", "A")]
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "failed", "failed": ["c-1"]})
    assert (
        "do 'inside' was called inside the rollback handler of step 'c-1'"
        in row.steps.get(name="c").rollback_error["message"]
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", [lambda work: work(), lambda work: Task(work).result()], ids=["main", "thread"])
def test_an_async_handler_that_takes_too_long(where: Callable[[Any], Any]) -> None:
    """Design 6, "Timeouts": it is cancelled at its deadline, in whichever thread; its second attempt may use the ORM."""
    cancelled: list[bool] = []

    async def undo(undo: Undo[Any]) -> None:
        note(undo)
        assert get_step_context() is undo.context
        if len(UNDONE) > 1:
            await Group.objects.acreate(name="undone")
            return
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    class SlowAsync(Workflow[Any, Any]):
        async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> None:
            await step.do("a", lambda: "A", rollback=Rollback(undo, retries=Retries(limit=1, delay=0), timeout=2))
            await step.do("b", Saga.fail)

    row = SlowAsync.create()
    where(lambda: drain(30))
    row.refresh_from_db()
    assert (UNDONE, cancelled) == ([("a-1", "A")] * 2, [True])
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
    (timed_out,) = history_of(row, "rollback_attempt_errored")
    assert timed_out["error"]["type"] == "durableflow.StepTimeout"
    assert Group.objects.filter(name="undone").count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_child_and_its_parent() -> None:
    """LIF-19, third run: a child that fails undoes what it did, then its parent hears of it; where that does not catch it, it is
    undone like after any error."""

    class Booking(Workflow[Any, Any]):
        class Meta:
            name = "lif-booking"

        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.do("seat", lambda: "SEAT", rollback=note)
            step.do("pay", Saga.fail)

    def run(step: Step, log: list[str]) -> None:
        step.do("catch", lambda: "CATCH", rollback=note)
        try:
            step.run_workflow("caught", Booking, None)
        except WorkflowFailed as error:
            log.append(error.error["message"])
        step.do("then", lambda: "THEN", rollback=note)
        step.run_workflow("uncaught", Booking, None)

    log: list[str] = []
    row = drained(workflow(run, log).create())
    drain(5)
    row.refresh_from_db()
    assert UNDONE == [("seat-1", "SEAT"), ("seat-1", "SEAT"), ("then-1", "THEN"), ("catch-1", "CATCH")]
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
    assert row.error is not None and row.error["type"] == "durableflow.WorkflowFailed" and "no money" in log
    children = WorkflowInstance.objects.filter(parent_step__instance=row)
    assert [child.rollback for child in children] == [{"outcome": "complete", "failed": []}] * 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("call", ["one", "join"])
def test_a_retried_parent_starts_an_undone_child_anew(call: str) -> None:
    """Design 7, 9: nothing of an undone child goes forward again, and the keys of what was undone are not used again."""
    works = False
    keys: list[str] = []

    class Seat(Workflow[Any, Any]):
        class Meta:
            name = "lif-seat"

        def run(self, event: WorkflowEvent[Any], step: Step) -> str:
            step.do("seat", lambda: keys.append(get_step_context().idempotency_key), rollback=note)
            if not works:
                step.do("pay", Saga.fail)
            return "seat"

    def run(step: Step, log: list[str]) -> Any:
        if call == "one":
            return step.run_workflow("child", Seat, None)
        return step.run_workflows("child", Seat, [None])[0]

    row = drained(workflow(run, []).create())
    assert (row.status, row.rollback, UNDONE) == (S.ERRORED, None, [("seat-1", None)])
    works = True
    row.retry()
    drained(row)
    assert (row.status, row.output, UNDONE) == (S.COMPLETE, "seat", [("seat-1", None)])
    old, new = WorkflowInstance.objects.filter(workflow="lif-seat").order_by("id")
    assert (old.status, new.status) == (S.ERRORED, S.COMPLETE) and len(set(keys)) == 2


@pytest.mark.django_db
@pytest.mark.parametrize("end", ["fails", "terminated in the race", "terminated after it"])
def test_around_a_race(workflows: Harness, end: str) -> None:
    """Design 7: the replay for the handlers goes through a decided race, and stops at one that is open."""

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=note)
        winner = step.race(
            "first",
            go=lambda: step.wait_for_event("go", type="go", timeout=None),
            nap=lambda: step.sleep("nap", "1 hour"),
        )
        step.do("b", lambda: winner.name, rollback=note)
        if end == "fails":
            step.do("c", Saga.fail)
        step.wait_for_event("later", type="later", timeout=None)

    row = workflows.run(workflow(run, []))
    if end != "terminated in the race":
        row.send_event("go")
        workflows.run_due()
    if end != "fails":
        row.terminate(rollback=True)
        workflows.run_due()
    assert row.rollback == {"outcome": "complete", "failed": []}
    assert UNDONE == ([("a-1", "A")] if end == "terminated in the race" else [("b-1", "go"), ("a-1", "A")])
    assert not row.pending_events.filter(status="open").exists()


@pytest.mark.django_db
def test_an_async_handler_in_the_testing_kit(workflows: Harness) -> None:
    """TST: the caller's thread and transaction, also for a plain ``run``; its mocks do not reach handlers."""

    async def undo(undo: Undo[Any]) -> None:
        note(undo)
        await Group.objects.acreate(name=str(undo.output))

    def run(step: Step, log: list[str]) -> None:
        step.do("a", lambda: "A", rollback=undo)
        step.do("b", Saga.fail)

    workflows.mock_result("a", "mocked")
    row = workflows.run(workflow(run, []))
    assert (row.status, row.rollback, UNDONE) == (S.ERRORED, {"outcome": "complete", "failed": []}, [("a-1", "mocked")])
    assert [group.name for group in Group.objects.all()] == ["mocked"]


@pytest.mark.django_db(transaction=True)
def test_a_task_that_a_sibling_cuts_off() -> None:
    """Design 7: an interrupted step is undone. What cancelled its task comes again in the replay for the handlers, before the call
    has an answer: also deeper in a task, in a branch, and for the items of a map."""

    async def hangs(item: Any = None) -> None:
        begun.add(item)
        await asyncio.sleep(PATIENCE)

    async def fails_then() -> None:
        while len(begun) < 4:
            await asyncio.sleep(0.01)
        raise NonRetryableError("no money")

    class CutOff(Workflow[Any, Any]):
        async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> None:
            async def deeper() -> None:
                await step.do("first", lambda: "FIRST", rollback=note)
                await step.do("b", hangs, "b", rollback=note)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(deeper())
                tasks.create_task(step.gather("both", lambda: step.do("c", hangs, "c", rollback=note)))
                tasks.create_task(step.map("each", hangs, [1, 2], rollback=note))
                tasks.create_task(step.do("a", fails_then))

    begun: set[Any] = set()
    row = drained(CutOff.create())
    assert (row.status, row.rollback) == (S.ERRORED, {"outcome": "complete", "failed": []})
    order = [f"{step.name}-{step.count}" for step in row.steps.filter(kind="do").order_by("-seq") if step.name != "a"]
    assert [label for label, _ in UNDONE] == order
    assert dict(UNDONE) == {"first-1": "FIRST", "b-1": None, "c-1": None, "each-1": None, "each-2": None}
