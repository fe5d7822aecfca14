"""Groups that failed because ``run`` itself raised in a branch, and what their records say when the code is put right (design 7, 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from durableflow import AsyncStep, Step, Workflow, WorkflowEvent
from durableflow.engine.claims import look
from durableflow.engine.executor import execute
from durableflow.engine.unwind import ProcessDied
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.integration.repair_world import Mortal
from tests.support.commands import called
from tests.support.engine import drain_all, drained, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
Program = dict[str, bool]


def check(program: Program, where: str) -> None:
    """A line of ``run`` that is wrong as long as ``program`` says so."""
    if program[where]:
        raise LookupError(f"a mistake in {where}")


class PutRight(Workflow[Any, Any]):
    """A gather in a gather; the inner one has a map and a mistake."""

    class Meta:
        name = "put-right"

    program: Program = {}

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather("outer", lambda: self.inner(step), lambda: step.do("beside", str, "b"))

    def inner(self, step: Step) -> Any:
        return step.gather("inner", lambda: step.map("items", str, [1, 2]), lambda: self.wrong(step))

    def wrong(self, step: Step) -> str:
        check(self.program, "inner")
        return step.do("right", str, "r")


class PutRightAsync(PutRight):
    """The same, async."""

    class Meta:
        name = "put-right-async"

    async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:  # type: ignore[override]
        return await step.gather("outer", lambda: self.within(step), lambda: step.do("beside", str, "b"))

    async def within(self, step: AsyncStep) -> Any:
        return await step.gather("inner", lambda: step.map("items", str, [1, 2]), lambda: self.mistaken(step))

    async def mistaken(self, step: AsyncStep) -> str:
        check(self.program, "inner")
        return await step.do("right", str, "r")


BOTH = pytest.mark.parametrize("flow", [PutRight, PutRightAsync])
RESULT = ((["1", "2"], "r"), "b")


def groups_of(row: WorkflowInstance) -> dict[str, str]:
    return {label: status for label, status in steps_of(row) if label in ("outer-1", "outer-1[1]/inner-1")}


def failed(flow: type[PutRight], *mistakes: str) -> WorkflowInstance:
    flow.program = PutRight.program = dict.fromkeys(mistakes, True)
    row = drained(flow.create())
    assert row.status == S.ERRORED
    return row


def mortal(work: Callable[[], Any], after: int) -> bool:
    """Do ``work`` in a process that dies before its statement number ``after``; whether it came to that."""
    worker = Mortal(after, lambda: None)
    with connection.execute_wrapper(worker):
        try:
            work()
        except ProcessDied:
            pass
    return worker.dead


@BOTH
def test_a_group_that_failed_by_a_mistake_of_run_ends_anew(flow: type[PutRight]) -> None:
    """After retry() it is open, and what becomes of it then is recorded: no failed group in a completed instance."""
    row = failed(flow, "inner")
    assert groups_of(row) == {"outer-1": "failed", "outer-1[1]/inner-1": "failed"}
    row.retry()
    assert set(groups_of(row).values()) == {"pending"}
    assert drained(row).status == S.ERRORED and set(groups_of(row).values()) == {"failed"}, "it is wrong still"
    flow.program["inner"] = False
    row.retry()
    assert (drained(row).status, row.output) == (S.COMPLETE, RESULT)
    assert {status for _label, status in steps_of(row)} == {"complete"}


@BOTH
def test_wherever_its_worker_dies(flow: type[PutRight], stopped_clock: StoppedClock) -> None:
    """The verb is one transaction, and each execution goes on from what is stored."""
    for after in range(200):
        row = failed(flow, "inner")
        flow.program["inner"] = False
        died = mortal(row.retry, after)
        before = WorkflowInstance.objects.get(pk=row.pk).status
        assert set(groups_of(row).values()) == ({"failed"} if before == S.ERRORED else {"pending"})
        if before == S.ERRORED:
            row.retry()
        (claimed,) = look("default").taken
        claimed.lease.renewed = float("inf")
        worker = Mortal(after, lambda: None)
        worker.lease = claimed.lease
        with connection.execute_wrapper(worker):
            try:
                execute(claimed, interceptor=worker, renew=False)
            except ProcessDied:
                pass
        stopped_clock.outlast_leases()
        assert (drained(row).status, row.output) == (S.COMPLETE, RESULT), row.blocked
        assert {status for _label, status in steps_of(row)} == {"complete"}
        if not (died or worker.dead):
            return
    raise AssertionError("it dies at each of its statements")


class Beside(Workflow[Any, Any]):
    """Of two branches the first fails by a mistake, and then the second begins its step."""

    class Meta:
        name = "put-right-beside"

    program: Program = {}

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather("outer", lambda: self.inner(step), lambda: step.do("late", str, "l"))

    def inner(self, step: Step) -> Any:
        return step.gather("inner", lambda: check(self.program, "inner"), lambda: step.do("early", str, "e"))


def test_a_restart_from_a_step_beside_it_lets_it_end_anew(settings: Any) -> None:
    """What is kept goes on where it had not finished; that the run failed by it is no end of its own."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "BRANCH_THREADS": 0}
    row = failed(Beside, "inner")  # type: ignore[arg-type]
    Beside.program = {"inner": False}
    row.restart(from_step="late")
    assert set(groups_of(row).values()) == {"pending"}
    assert (drained(row).status, row.output) == (S.COMPLETE, ((None, "e"), "l"))
    assert set(groups_of(row).values()) == {"complete"}


class Caught(Workflow[Any, Any]):
    """Takes it that a group has failed by a mistake, and fails by another one."""

    class Meta:
        name = "put-right-caught"

    program: Program = {}

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        told = "nothing"
        try:
            step.gather("outer", lambda: check(self.program, "branch"), lambda: step.do("one", str, "1"))
        except* LookupError as errors:
            told = str(errors.exceptions[0])
        step.do("after", str, "a")
        check(self.program, "run")
        return told


def test_what_was_caught_stays_until_it_ends_otherwise(stopped_clock: StoppedClock) -> None:
    """retry() leaves it alone; its record follows when its branches end otherwise, wherever the worker dies."""
    for after in range(100):
        row = failed(Caught, "branch", "run")  # type: ignore[arg-type]
        Caught.program["run"] = False
        row.retry()
        assert groups_of(row) == {"outer-1": "failed"}
        assert (drained(row).status, row.output) == (S.COMPLETE, "a mistake in branch")
        assert groups_of(row) == {"outer-1": "failed"}
        row.restart(from_step="after")
        Caught.program["branch"] = False
        (claimed,) = look("default").taken
        claimed.lease.renewed = float("inf")
        worker = Mortal(after, lambda: None)
        worker.lease = claimed.lease
        with connection.execute_wrapper(worker):
            try:
                execute(claimed, interceptor=worker, renew=False)
            except ProcessDied:
                pass
        stopped_clock.outlast_leases()
        assert (drained(row).status, row.output) == (S.COMPLETE, "nothing"), row.blocked
        assert groups_of(row) == {"outer-1": "complete"}
        if not worker.dead:
            return
    raise AssertionError("it dies at each of its statements")


def test_a_group_that_fails_after_all_is_recorded_so() -> None:
    """The error that ends the instance is that of a group, and the group says the same."""
    Caught.program = {"branch": False, "run": True}
    row = drained(Caught.create())
    assert groups_of(row) == {"outer-1": "complete"}
    Caught.program = {"branch": True, "run": False}
    row.retry()
    assert (drained(row).output, groups_of(row)) == ("a mistake in branch", {"outer-1": "failed"})


class Picked(Workflow[Any, Any]):
    """Raises one of the errors of a group by itself: then each has the other one."""

    class Meta:
        name = "put-right-picked"

    program: Program = {}

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        try:
            raise ExceptionGroup("not the engine's", [self.error()])
        except ExceptionGroup as group:
            raise group.exceptions[0]  # noqa: B904

    def error(self) -> Exception:
        try:
            check(self.program, "run")
        except LookupError as error:
            return error
        return ValueError()


def test_an_error_that_is_taken_out_of_its_group_ends_the_instance() -> None:
    """It has the group as its context, which has it as its member."""
    row = failed(Picked, "run")  # type: ignore[arg-type]
    assert row.error is not None and (row.error["type"], row.blocked) == ("LookupError", "")


class Child(Workflow[Any, Any]):
    """The second one fails by a mistake."""

    class Meta:
        name = "put-right-child"

    program: Program = {}

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        if event.params["n"] == 2:
            check(self.program, "child")
        return event.params["n"]


class Parent(Workflow[Any, Any]):
    """Waits for two children."""

    class Meta:
        name = "put-right-parent"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.run_workflows("all", Child, [{"n": 1}, {"n": 2}])


def test_a_join_whose_child_failed_is_open_after_retry() -> None:
    """Before anybody executes it, too: a replay that only looks does not go on with children."""
    Child.program = {"child": True}
    row = Parent.create()
    drain_all()
    assert dict(steps_of(row)) == {"all-1": "failed", "all-1/all-1": "complete", "all-1/all-2": "failed"}
    row.retry()
    assert dict(steps_of(row)) == {"all-1": "pending", "all-1/all-1": "complete", "all-1/all-2": "pending"}
    assert called("check-replay", "put-right-parent").out.endswith("0 would break, 1 fit.\n")
    Child.program = {"child": False}
    drain_all()
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, [1, 2])
    assert {status for _label, status in steps_of(row)} == {"complete"}


class Several(Workflow[Any, Any]):
    """The same of four, three of which fail, one or all at a time."""

    class Meta:
        name = "put-right-several"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        params = [{"n": 1}, {"n": 2}, {"n": 2}, {"n": 2}]
        return step.run_workflows("all", Child, params, concurrency=event.params)


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize("early", [1, 3])
def test_children_that_are_retried_before_their_parent_goes_on(window: int | None, early: int) -> None:
    """What they come to is taken; the others are retried with their parent."""
    Child.program = {"child": True}
    row = Several.create(window)
    drain_all()
    row.refresh_from_db()
    assert row.status == S.ERRORED
    row.retry()
    row.pause()
    Child.program = {"child": False}
    for child in WorkflowInstance.objects.filter(workflow="put-right-child", status=S.ERRORED).order_by("id")[:early]:
        child.retry()
    drain_all()
    row.refresh_from_db()
    assert row.status == S.PAUSED
    row.resume()
    drain_all()
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, [1, 2, 2, 2])
    assert row.steps.get(remaining__isnull=False).remaining == 0
    assert WorkflowInstance.objects.filter(workflow="put-right-child", status=S.COMPLETE, execution__gt=0).count() == 4
