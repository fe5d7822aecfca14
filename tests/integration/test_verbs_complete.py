"""``complete_step``: a person gives the result of a step (design 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied

from durableflow import (
    AsyncStep,
    CodecError,
    InvalidTransition,
    LimitExceeded,
    Retries,
    Step,
    Undo,
    Workflow,
    WorkflowEvent,
    get_step_context,
)
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.models import HistoryEntry, StepRecord, WorkflowInstance
from durableflow.timeline import steps as timeline_steps
from tests.conftest import UserFactory
from tests.integration.con_flows import expire_leases
from tests.integration.conftest import StoppedClock
from tests.integration.restart_flows import Bodies, flow, step_of
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status
OVERRIDE = "durableflow.override_workflowinstance"


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


@pytest.fixture
def overrider(user_factory: UserFactory) -> User:
    return user_factory("overrider", permissions=[OVERRIDE])


def abc(bodies: Bodies, **options: Any) -> Callable[[WorkflowEvent[Any], Step], Any]:
    options = {"retries": Retries(limit=1, delay=60), **options}
    return lambda event, step: [bodies.do(step, "a"), bodies.do(step, "b", **options), bodies.do(step, "c")]


def test_of_a_failed_instance(bodies: Bodies, overrider: User, stopped_clock: StoppedClock) -> None:
    """As by retry, but the step is complete: the instance is queued, its error is cleared, ``max_duration`` starts again."""
    bodies.broken.add("b")
    row = drained(flow(abc(bodies, retries=0), max_duration="1 day").create())
    assert row.status == Status.ERRORED
    stopped_clock.advance("2 hours")
    row.complete_step(step_of(row, "b"), {"paid": 1}, by=overrider, reason="paid by hand", via="admin")
    assert (row.status, row.error, row.finished, row.run_number) == ("queued", None, None, 1)
    assert row.deadline_at is not None and (row.deadline_at - stopped_clock.now).days == 1
    told, queued = row.history.order_by("-id")[:2][::-1]
    assert (told.type, told.step, told.kind, told.actor, told.reason, told.via, told.data) == (
        "step_completed", "b-1", "do", overrider, "paid by hand", "admin", {"verb": "complete_step"},
    )  # fmt: skip
    assert (queued.type, queued.data) == ("workflow_queued", {"verb": "complete_step", "steps": []})
    assert drained(row).output == ["A", {"paid": 1}, "C"] and bodies.names == "abc"
    step = step_of(row, "b")
    assert (step.status, step.output, step.error, step.attempts) == ("complete", {"paid": 1}, None, 1)


@pytest.mark.parametrize("how", ["waiting", "paused", "blocked"])
def test_of_a_step_that_waits_for_its_retry(bodies: Bodies, overrider: User, how: str) -> None:
    """One that waits is due at once; a paused one stays paused, and goes on with the result after the resume."""
    bodies.broken.add("b")
    row = drained(flow(abc(bodies)).create())
    assert row.status == Status.WAITING
    if how == "paused":
        row.pause()
        WorkflowInstance.objects.filter(pk=row.pk).update(owner=7)  # a worker was lost while the pause was asked for
    if how == "blocked":
        WorkflowInstance.objects.filter(pk=row.pk).update(status="paused", blocked="why", wake_at=None)
    row.complete_step(step_of(row, "b"), None, by=overrider)
    assert row.status == ("waiting" if how == "waiting" else "paused") and (row.blocked == "why") == (how == "blocked")
    assert row.history.latest("id").type == "step_completed"
    drained(row)
    if how != "waiting":
        assert row.status == Status.PAUSED and bodies.names == "ab"
        row.resume()
    assert drained(row).output == ["A", None, "C"] and bodies.names == "abc"
    assert not row.history.filter(type="attempt_lost").exists(), "no other step is charged"


def test_it_is_no_attempt(bodies: Bodies, stopped_clock: StoppedClock) -> None:
    """What a person gives is shown as the step's end, not as a try of its body."""
    bodies.broken.add("b")
    row = drained(flow(abc(bodies)).create())
    stopped_clock.advance(60)
    drained(row)
    row.complete_step(step_of(row, "b"), "by hand")
    drained(row)
    (view,) = (view for view in timeline_steps(row) if view.name == "b")
    assert (view.attempts, [attempt.status for attempt in view.tries], view.output) == (2, ["failed"] * 2, "by hand")


def test_a_name_is_no_step(bodies: Bodies) -> None:
    """Unlike ``restart(from_step=...)``: whose result is given has to be exact. The error tells how to find it."""
    bodies.broken.add("b")
    row = drained(flow(abc(bodies)).create())
    with pytest.raises(TypeError, match=r"not 'b': models\.restart\.find_step\(instance, name\) gives one"):
        row.complete_step("b", "by hand")  # type: ignore[arg-type]


def test_of_a_step_whose_worker_was_lost(bodies: Bodies) -> None:
    """An interrupted instance is given back, or taken over: between the executions its step can be completed."""
    row = flow(abc(bodies, retries=0)).create()
    (claimed,) = claim("default")
    step = StepRecord(
        instance=row,
        run_number=1,
        kind="do",
        name="b",
        count=1,
        seq=2,
        execution=1,
        status="started",
        attempts=1,
        token=1,
    )
    with pytest.raises(InvalidTransition, match="running"):
        row.complete_step(step, 1)
    step.save()
    StepRecord.objects.create(
        instance=row, run_number=1, kind="do", name="a", count=1, seq=1, execution=1, status="complete", attempts=1,
        raw_output="A",
    )  # fmt: skip
    expire_leases()
    WorkflowInstance.objects.update(status="queued", lease_token=None, owner=None, suspect=False)
    row.refresh_from_db()
    row.complete_step(step, "by hand")
    execute(claimed, renew=False)
    assert bodies.names == "a", "the old worker's writes are dropped"
    row.refresh_from_db()
    assert drained(row).output == ["A", "by hand", "C"]


@pytest.mark.parametrize(
    "which", ["complete", "caught", "sleep", "old run", "other instance", "undone", "running", "finished", "twice"]
)
def test_what_cannot_be_completed(bodies: Bodies, which: str) -> None:
    """Each refusal says why, and changes nothing."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        bodies.do(step, "a", **({"rollback": lambda undo: None} if which == "undone" else {}))
        step.sleep("sleep", 0)
        try:
            bodies.do(step, "caught", retries=0)
        except OSError:
            pass
        if which == "finished":
            return None
        bodies.do(step, "b", retries=0)

    bodies.broken |= {"caught", "b"}
    again = flow(run)
    row, other = drained(again.create()), drained(again.create())
    name = {"complete": "a", "caught": "caught", "sleep": "sleep", "finished": "caught"}.get(which, "b")
    step = step_of(other if which == "other instance" else row, name)
    if which == "old run":
        row.restart()
        drained(row)
    if which == "running":
        row.retry()
        claim("default")
        row.refresh_from_db()
    if which == "twice":
        row.complete_step(step, 1)
    before = [
        list(model._default_manager.order_by("pk").values()) for model in (WorkflowInstance, StepRecord, HistoryEntry)
    ]
    expected: dict[str, tuple[type[Exception], str]] = {
        "complete": (InvalidTransition, "is complete already"),
        "caught": (InvalidTransition, "the workflow has gone on"),
        "sleep": (ValueError, "only a do has"),
        "old run": (InvalidTransition, "belongs to run 1, and the present run is 2"),
        "other instance": (ValueError, "is not a step of"),
        "undone": (InvalidTransition, "undone"),
        "running": (InvalidTransition, "is running"),
        "finished": (InvalidTransition, "is complete"),
        "twice": (InvalidTransition, "is complete already"),
    }
    error, match = expected[which]
    with pytest.raises(error, match=match):
        row.complete_step(step, 2)
    assert before == [
        list(model._default_manager.order_by("pk").values()) for model in (WorkflowInstance, StepRecord, HistoryEntry)
    ]
    with pytest.raises((TypeError, InvalidTransition)):
        row.complete_step("b", 2)  # type: ignore[arg-type]


def test_an_output_that_cannot_be_stored(bodies: Bodies, settings: Any) -> None:
    """The same codec and the same limits as for what a body returns; nothing is changed."""
    bodies.broken.add("b")
    row = drained(flow(abc(bodies, retries=0)).create())
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LIMITS": {"output": 100, "bytes": 30}}
    for output, error in ((object(), CodecError), ("x" * 200, LimitExceeded), ("é" * 14, LimitExceeded)):
        with pytest.raises(error):
            row.complete_step(step_of(row, "b"), output)
        assert WorkflowInstance.objects.get(pk=row.pk).status == Status.ERRORED
    assert step_of(row, "b").status == "failed"
    row.complete_step(step_of(row, "b"), "é" * 12)
    assert step_of(row, "b").output == "é" * 12


def test_who_may(bodies: Bodies, user_factory: UserFactory, overrider: User) -> None:
    """A right of its own: who operates does not invent results. It is offered where a step could take one."""
    bodies.broken.add("b")
    row = drained(flow(abc(bodies, retries=0)).create())
    operator = user_factory("operator", permissions=["durableflow.operate_workflowinstance"])
    with pytest.raises(PermissionDenied, match="override_workflowinstance"):
        row.complete_step(step_of(row, "b"), object(), by=operator)
    assert "complete_step" not in row.available_actions(operator)
    assert row.available_actions(overrider) == {"complete_step"}
    row.complete_step(step_of(row, "b"), 1, by=overrider)
    assert row.available_actions(overrider) == set()


def test_a_sensitive_step_stays_one() -> None:
    """Case SEC-09: what a person gives is masked like what the body would have returned."""

    class Secret(Workflow[Any, Any]):
        class Meta:
            name = "complete-secret"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return len(step.do("token", self.fail, retries=0, sensitive=True))

        def fail(self) -> str:
            raise OSError("no")

    row = drained(Secret.create())
    row.complete_step(step_of(row, "token"), "s3cret")
    assert step_of(row, "token").output == "[REDACTED]" and drained(row).output == 6
    assert not any("s3cret" in str(entry.data) for entry in row.history.all())


def test_the_handler_of_a_completed_step_gets_the_output(bodies: Bodies) -> None:
    """Design 7: its body had begun, and may have had the effect that the person knows of."""
    undone: list[Any] = []

    def undo(undo: Undo[Any]) -> None:
        undone.append((undo.completed, undo.output))

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        bodies.do(step, "a", rollback=undo, retries=Retries(limit=3, delay=600))
        bodies.do(step, "b", retries=0)

    bodies.broken |= {"a", "b"}
    row = drained(flow(run).create())
    row.complete_step(step_of(row, "a"), "booked")
    assert drained(row).status == Status.ERRORED and undone == [(True, "booked")]


@pytest.mark.parametrize("both", [False, True])
def test_a_branch_of_a_gather(bodies: Bodies, both: bool) -> None:
    """The group goes on; what else had failed with the step runs again."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        return step.gather(
            "all", *[lambda name=name: bodies.do(step, name, retries=0) for name in "abc"], concurrency=1
        )  # type: ignore[misc]

    bodies.broken |= {"b", "c"} if both else {"b"}
    row = drained(flow(run).create())
    assert row.status == Status.ERRORED
    bodies.broken.clear()
    row.complete_step(step_of(row, "b"), "by hand")
    assert row.history.latest("id").data["steps"] == (["all-1[3]/c-1"] if both else [])
    assert drained(row).output == ("A", "by hand", "C") and bodies.names == ("abcc" if both else "abc")


@pytest.mark.parametrize("how", ["errored", "waiting"])
def test_an_item_of_a_map(bodies: Bodies, how: str) -> None:
    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        retries = Retries(limit=0 if how == "errored" else 3, delay=600)
        return step.map("each", bodies.body, list("abc"), concurrency=1, retries=retries)

    bodies.broken.add("b")
    row = drained(flow(run).create())
    assert row.status == how
    row.complete_step(step_of(row, "each", count=2, kind="do"), "by hand")
    assert drained(row).output == ["A", "by hand", "C"] and bodies.names == "abc"


@pytest.mark.parametrize("how", ["errored", "waiting"])
def test_a_step_of_an_async_run(how: str) -> None:
    """The replay of async code gets it in the place that it has now in the order of ends."""
    ran: list[str] = []

    class Async(Workflow[Any, Any]):
        class Meta:
            name = "complete-async"

        async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
            retries = Retries(limit=0 if how == "errored" else 3, delay=600)
            first = await step.do("a", self.body)
            second = await step.do("b", self.fail, retries=retries)
            return [first, second, await step.do("c", self.body)]

        def body(self) -> str:
            ran.append(get_step_context().name)
            return ran[-1]

        def fail(self) -> str:
            self.body()
            raise OSError("no")

    row = drained(Async.create())
    assert row.status == how
    row.complete_step(step_of(row, "b"), "by hand")
    assert drained(row).output == ["a", "by hand", "c"] and ran == ["a", "b", "c"]
    row.restart(from_step="c")
    assert drained(row).output == ["a", "by hand", "c"] and ran == ["a", "b", "c", "c"]
