"""Every way in which an instance ends or goes on is told at once to those who follow it (scenario L)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from durableflow import AsyncStep, Step, Workflow, WorkflowEvent, drain
from durableflow.core import hearing
from durableflow.models import WorkflowInstance, watching
from tests.integration.follow_flows import following
from tests.support.concurrency import eventually
from tests.support.engine import types_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _notices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MARK_EVERY", 3600.0)


def hears(row: WorkflowInstance) -> bool:
    """Whether somebody waits for notices of ``row``, and they arrive."""
    hub = hearing.hub_of("default")
    row.refresh_from_db()
    marked = connection.vendor == "sqlite" or row.followed_until is not None
    return hub is not None and row.pk in hub._members and not hub.deaf and not hub._marks and marked


def followed_to_its_end(row: WorkflowInstance, *acts: Any) -> list[str]:
    """What is told of it, while after each of ``acts`` all that is due is executed."""
    with following(row) as follower:
        eventually(lambda: hears(row), "hearing")
        for act in (*acts, lambda: None):
            drain()
            act()
        eventually(lambda: drain(seconds=0.1) or follower.task.done, "the end")
    assert follower.types == types_of(row)
    return follower.types


class EndsUndone(Workflow):
    """Its second step fails, its first is undone."""

    class Meta:
        name = "ends-undone"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        step.do("book", lambda: 1, rollback=lambda undo: None)
        step.do("pay", self.pay, retries=0)

    @staticmethod
    def pay() -> None:
        raise ValueError("no money")


def test_a_rollback() -> None:
    """The end of a rollback is the end."""
    assert followed_to_its_end(EndsUndone.create())[-2:] == ["rollback_completed", "workflow_errored"]


class EndsByHand(Workflow):
    """Waits to be undone."""

    class Meta:
        name = "ends-by-hand"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        step.do("book", lambda: 1, rollback=lambda undo: None)
        step.wait_for_event("go", type="go")


def test_terminate_with_rollback() -> None:
    """The verb begins it, a worker ends it."""
    row = EndsByHand.create()
    told = followed_to_its_end(row, lambda: EndsByHand.get(row.instance_id).terminate(rollback=True))
    assert "rollback_started" in told and told[-1] == "workflow_terminated"


class EndsWithParent(Workflow):
    """Waits for its child, which waits for ever."""

    class Meta:
        name = "ends-with-parent"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        step.run_workflow("child", EndsByHand, None, instance_id=f"child-of-{step.instance_id}")


def test_a_child_that_ends_with_its_parent() -> None:
    """What ends it is the look of a broker, after the parent's end."""
    parent = EndsWithParent.create(instance_id="parent")
    drain()
    child = EndsByHand.get("child-of-parent")
    assert followed_to_its_end(child, parent.terminate)[-1] == "workflow_terminated"


def test_a_child_that_ends_and_its_parent() -> None:
    """The parent is told of its child's end."""
    parent = EndsWithParent.create(instance_id="other")
    drain()
    told = followed_to_its_end(parent, lambda: EndsByHand.get("child-of-other").send_event("go"))
    assert "child_finished" in told and told[-1] == "workflow_completed"


class EndsAnew(Workflow):
    """Goes on as a new run, twice."""

    class Meta:
        name = "ends-anew"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        step.do("work", lambda: 1)
        if event.params:
            step.continue_as_new(event.params - 1)
        return "done"


def test_continue_as_new() -> None:
    """The runs of one instance are one history."""
    told = followed_to_its_end(EndsAnew.create(2))
    assert (told.count("workflow_queued"), told.count("workflow_completed")) == (3, 1)


class EndsAsync(Workflow):
    """An asynchronous body, and a step that commits with the application's own rows."""

    class Meta:
        name = "ends-async"

    async def run(self, event: WorkflowEvent, step: AsyncStep) -> Any:
        await step.do("first", lambda: 1)
        got = await step.wait_for_event("go", type="go")
        await step.do("together", lambda: 2, atomic=True)
        return got.payload


def test_an_async_run_with_an_atomic_step() -> None:
    """The notice of an atomic step comes after the commit of its block."""
    row = EndsAsync.create()
    assert followed_to_its_end(row, lambda: row.send_event("go", 1))[-1] == "workflow_completed"


class EndsLate(Workflow):
    """Is over before its sleep."""

    class Meta:
        name = "ends-late"
        max_duration = "0.2 seconds"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        step.sleep("long", "1 day")


def test_out_of_time() -> None:
    """max_duration ends it."""
    assert followed_to_its_end(EndsLate.create())[-1] == "workflow_errored"


class EndsBlocked(Workflow):
    """Swallows its suspension."""

    class Meta:
        name = "ends-blocked"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        try:
            step.sleep("long", "1 day")
        except BaseException:
            return "swallowed"


def test_blocked_goes_on_until_a_person_ends_it() -> None:
    """To be blocked is no end."""
    row = EndsBlocked.create()
    told = followed_to_its_end(row, lambda: EndsBlocked.get(row.instance_id).terminate())
    assert told[-2:] == ["workflow_paused", "workflow_terminated"]
