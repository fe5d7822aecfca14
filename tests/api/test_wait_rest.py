"""``?wait=``: each way in which an instance comes to rest is told at once to a request that is held back for it (scenario L)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.api import waiting
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.models import WorkflowInstance, watching
from tests.integration.wait_flows import AwaitedOrder, AwaitedParent, Waiter
from tests.support.concurrency import Gate, Task
from tests.support.engine import drain_all

pytestmark = pytest.mark.django_db(transaction=True)


class AwaitedBody(Workflow):
    """A body that a test holds up, then a wait."""

    class Meta:
        name = "awaited-body"

    gate = Gate()

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        step.do("body", lambda: self.gate.stop_here())
        return step.wait_for_event("go", type="go").payload


class AwaitedLimited(Workflow):
    """One at a time: a body that a test holds up."""

    class Meta:
        name = "awaited-limited"
        max_concurrency = 1

    gate = Gate()

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        if event.params:
            step.do("body", lambda: self.gate.stop_here())
        return step.wait_for_event("go", type="go").payload


class AwaitedBlocked(Workflow):
    """Swallows its suspension."""

    class Meta:
        name = "awaited-blocked"

    def run(self, event: WorkflowEvent, step: Step) -> Any:
        try:
            step.sleep("long", "1 day")
        except BaseException:
            return "swallowed"


@pytest.fixture(autouse=True)
def _notices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MARK_EVERY", 3600.0)
    monkeypatch.setattr(watching, "HEAR_AFTER", 0.0)


@pytest.fixture
def asked(client_of: Callable[[str], APIClient]) -> Callable[[WorkflowInstance], Waiter]:
    """A request for the instance that is held back by now."""
    viewer = client_of("viewer")

    def ask(row: WorkflowInstance) -> Waiter:
        url = f"/api/workflows/{row.workflow}/instances/{row.instance_id}/?wait=60"
        return Waiter(row, lambda _row: viewer.get(url).json())

    return ask


def test_it_waits(asked: Callable[[WorkflowInstance], Waiter]) -> None:
    """The request came while the last body before that ran: only the suspension itself can tell."""
    AwaitedBody.gate = Gate()
    row = AwaitedBody.create()
    worker = Task(drain_all)
    AwaitedBody.gate.wait_until_reached()
    request = asked(row)
    AwaitedBody.gate.open()
    worker.result()
    assert request.task.result()["status"] == "waiting"


def test_what_was_sent_is_followed_to_its_end(asked: Callable[[WorkflowInstance], Waiter]) -> None:
    """An undelivered event is on its way; what follows of it is the answer."""
    row = AwaitedOrder.create()
    drain_all()
    row.send_event("go", 7)
    request = asked(row)
    drain_all()
    body = request.task.result()
    assert (body["status"], body["output"]) == ("complete", 7)


def test_an_event_that_nobody_waits_for(asked: Callable[[WorkflowInstance], Waiter]) -> None:
    """It wakes the instance, which has nothing to write and waits on."""
    row = AwaitedOrder.create()
    drain_all()
    row.send_event("other")
    request = asked(row)
    drain_all()
    assert request.task.result()["status"] == "waiting"


def test_it_looks_at_one_moment(django_assert_num_queries: Any) -> None:
    """Else a delivery between two statements would make a rest of what has just become due."""
    row = AwaitedOrder.create()
    drain_all()
    row.send_event("other")
    with django_assert_num_queries(1):
        assert not waiting._at_rest(row)


def test_it_is_paused(asked: Callable[[WorkflowInstance], Waiter]) -> None:
    """At once, where it does not run."""
    row = AwaitedOrder.create()
    request = asked(row)
    AwaitedOrder.get(row.instance_id).pause()
    assert request.task.result()["status"] == "paused"


def test_it_is_paused_when_its_body_has_ended(asked: Callable[[WorkflowInstance], Waiter]) -> None:
    """``waiting_for_pause`` is no rest."""
    AwaitedBody.gate = Gate()
    row = AwaitedBody.create()
    worker = Task(drain_all)
    AwaitedBody.gate.wait_until_reached()
    AwaitedBody.get(row.instance_id).pause()
    request = asked(row)
    AwaitedBody.gate.open()
    worker.result()
    assert request.task.result()["status"] == "paused"


def test_it_is_blocked(asked: Callable[[WorkflowInstance], Waiter]) -> None:
    """A person has to look at it: nothing more will come."""
    request = asked(AwaitedBlocked.create())
    drain_all()
    body = request.task.result()
    assert (body["status"], body["blocked"]) == ("paused", True)


def test_it_is_deleted(asked: Callable[[WorkflowInstance], Waiter]) -> None:
    """It is gone, like one that never was."""
    row = AwaitedOrder.create()
    request = asked(row)
    AwaitedOrder.get(row.instance_id).delete()
    assert request.task.result()["code"] == "not_found"


def test_the_message_of_its_parents_end_is_overtaken(asked: Callable[[WorkflowInstance], Waiter]) -> None:
    """The parent has been retried and waits for it once more: nothing is on its way to it any more."""
    parent = AwaitedParent.create(instance_id="asked")
    drain_all()
    past = parent.created - timedelta(days=1)
    WorkflowInstance.objects.filter(pk=parent.pk).update(deadline_at=past, wake_at=past)
    (claimed,) = claim("default", pk=parent.pk)
    execute(claimed, renew=False)
    assert AwaitedParent.get("asked").status == "errored"
    AwaitedParent.get("asked").retry()
    WorkflowInstance.objects.filter(pk=parent.pk).update(deadline_at=None)
    request = asked(AwaitedOrder.get("child-of-asked"))
    drain_all()
    assert request.task.result()["status"] == "waiting"


def test_it_is_held_for_other_code(asked: Callable[[WorkflowInstance], Waiter]) -> None:
    """It has been due, and is put aside by a worker that does not know its workflow."""
    row = AwaitedOrder.create()
    drain_all()
    row.send_event("go")
    WorkflowInstance.objects.filter(pk=row.pk).update(workflow="awaited-nowhere")
    row.refresh_from_db()
    request = asked(row)
    drain(seconds=10)
    body = request.task.result()
    assert (body["status"], body["hold"]) == ("waiting", "unknown_workflow")


def test_it_is_parked_for_want_of_a_slot(asked: Callable[[WorkflowInstance], Waiter]) -> None:
    """Another has the only slot when it would go on."""
    AwaitedLimited.gate = Gate()
    row = AwaitedLimited.create()
    drain_all()
    other = AwaitedLimited.create(True)
    worker = Task(drain_all)
    AwaitedLimited.gate.wait_until_reached()
    row.send_event("go")
    request = asked(row)
    drain(seconds=10)
    body = request.task.result()
    assert (body["status"], body["hold"]) == ("waiting", "limit")
    AwaitedLimited.gate.open()
    worker.result()
    other.refresh_from_db()
    assert other.status == "waiting"
