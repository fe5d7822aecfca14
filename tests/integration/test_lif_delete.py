"""Deleting an instance: its id is free at once, and nothing of it is left (LIF-13; design 9)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db import transaction

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.renewal import renew
from durableflow.models import ConcurrencyLimit, HistoryEntry, PendingEvent, SentEvent, StepRecord, WorkflowInstance
from durableflow.models.removal import delete_instance
from tests.conftest import UserFactory
from tests.integration.chd_flows import Child, children_of
from tests.integration.fence_flows import blocked
from tests.support.concurrency import Gate, Task, eventually, together
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status
DELETE = "durableflow.delete_workflowinstance"


class Deleted(Workflow[str, Any]):
    """A step that says which instance it is of, then a wait."""

    gate: Gate | None = None

    class Meta:
        name = "lif-deleted"
        max_concurrency = 5

    def run(self, event: WorkflowEvent[str], step: Step) -> Any:
        value = step.do("first", self.body, event.params)
        step.wait_for_approval("ok", title="Ok?")
        return value

    def body(self, params: str) -> str:
        if params == "old" and self.gate is not None:
            self.gate.stop_here()
        return params


def orphans() -> dict[str, int]:
    """Rows of any table whose instance is gone."""
    tables: tuple[Any, ...] = (StepRecord, PendingEvent, SentEvent, HistoryEntry)
    alive = WorkflowInstance.objects.values("pk")
    return {
        model.__name__: model._default_manager.exclude(instance__in=alive).count()
        for model in tables
        if model._default_manager.exclude(instance__in=alive).exists()
    }


@pytest.mark.parametrize("beat", [False, True])
def test_while_a_step_runs(monkeypatch: pytest.MonkeyPatch, beat: bool) -> None:
    """LIF-13: the same id is created at once; the body of the old one ends later, whether the new one has run by then or not."""
    gate = Gate()
    monkeypatch.setattr(Deleted, "gate", gate)
    old = Deleted.create("old", instance_id="same")
    (claimed,) = claim("default")
    work = Task(lambda: execute(claimed, renew=False))
    gate.wait_until_reached()
    old.send_event("x", "undelivered")
    delete_instance(WorkflowInstance.objects.get(pk=old.pk))
    new = Deleted.create("new", instance_id="same")
    assert new.pk != old.pk
    drain(5)
    if beat:
        renew([claimed.lease])
    gate.open()
    work.result()
    drain(5)
    assert drained(new).status == Status.WAITING
    (step,) = StepRecord.objects.filter(kind="do")
    assert (step.instance_id, step.output) == (new.pk, "new")
    assert orphans() == {}
    assert ConcurrencyLimit.objects.get().running == 0
    PendingEvent.objects.get().approve(by=None)
    assert drained(new).output == "new"


def test_nothing_is_left() -> None:
    """Steps, waits, decisions, events read and unread, history, runs before the present one; children stay, without a parent."""

    class Parent(Workflow[Any, Any]):
        class Meta:
            name = "lif-deleted-parent"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.start_workflow("left", Child, {"wait": 1})
            step.wait_for_event("x", type="x")
            step.wait_for_approval("ok", title="Ok?")
            return step.run_workflow("bound", Child, {"wait": 1})

    row = drained(Parent.create())
    row.restart()
    drained(row)
    row.send_event("x")
    drained(row)
    row.pending_events.get(status="open").approve(by=None)
    drained(row)
    row.send_event("y", "read by nobody")
    left, again, bound = sorted(children_of(row), key=lambda child: child.pk)
    delete_instance(row)
    drain(5)
    assert not WorkflowInstance.objects.filter(pk=row.pk).exists() and orphans() == {}
    for child, status in ((left, "waiting"), (again, "waiting"), (bound, "terminated")):
        child.refresh_from_db()
        assert (child.status, child.parent_step_id) == (status, None)


def test_an_event_that_commits_after_the_deletion() -> None:
    """Senders hold nothing: what they sent to an instance that is gone is dropped at delivery."""
    row = drained(Deleted.create("new"))
    gate = Gate()

    def send() -> None:
        with transaction.atomic():
            WorkflowInstance.objects.get(pk=row.pk).send_event("x", 1)
            gate.stop_here()

    if transaction.get_connection().vendor == "sqlite":  # one writer at a time: it is sent from what was read before
        delete_instance(WorkflowInstance.objects.get(pk=row.pk))
        SentEvent.objects.create(instance=row, run_number=1, kind="event", type="x", sent_at=row.created)
    else:
        sender = Task(send)
        gate.wait_until_reached()
        delete_instance(WorkflowInstance.objects.get(pk=row.pk))
        gate.open()
        sender.result()
    assert SentEvent.objects.count() == 1
    eventually(lambda: drain(0.01) == 0 and not SentEvent.objects.exists(), "the orphan is dropped")


@pytest.mark.parametrize("status", Status)
def test_in_every_status(status: str) -> None:
    row = Deleted.create("new")
    WorkflowInstance.objects.filter(pk=row.pk).update(status=status, wake_at=None)
    delete_instance(row)
    assert not WorkflowInstance.objects.exists() and orphans() == {}


def test_who_may(user_factory: UserFactory, caplog: pytest.LogCaptureFixture) -> None:
    """A right of its own, and an audit that outlives the history."""
    row = drained(Deleted.create("new", instance_id="one"))
    deleter = user_factory("deleter", permissions=[DELETE])
    operator = user_factory("operator", permissions=["durableflow.operate_workflowinstance"])
    assert row.available_actions(deleter) == {"delete"} and "delete" not in row.available_actions(operator)
    with caplog.at_level(logging.INFO, "durableflow.audit"):
        for stranger in (operator, AnonymousUser()):
            with pytest.raises(PermissionDenied, match="delete_workflowinstance"):
                delete_instance(row, by=stranger)
        with pytest.raises(ValueError, match="reason"):
            delete_instance(row, by=deleter, reason="\x00")
        with pytest.raises(RuntimeError), transaction.atomic():
            delete_instance(WorkflowInstance.objects.get(pk=row.pk), by=deleter)
            raise RuntimeError("rolled back")
        assert WorkflowInstance.objects.filter(pk=row.pk).exists() and not caplog.records
        pk = row.pk
        delete_instance(row, by=deleter, reason="on request", via="admin")
    (entry,) = caplog.records
    assert entry.getMessage() == "lif-deleted/one was deleted by deleter via admin. Reason: on request"
    told: Any = entry
    assert (told.instance, told.workflow, told.instance_id, told.actor, told.via) == (
        pk, "lif-deleted", "one", "deleter", "admin",
    )  # fmt: skip
    with pytest.raises(WorkflowInstance.DoesNotExist):
        delete_instance(row)


@pytest.mark.parametrize("_round", range(6))
def test_two_clicks_and_other_verbs_at_once(_round: int) -> None:
    """One deletes, the others are told that it is gone, or come first."""
    row = drained(Deleted.create("new"))
    rows = [WorkflowInstance.objects.get(pk=row.pk) for _ in range(5)]
    tasks = together(
        lambda: delete_instance(rows[0]),
        lambda: delete_instance(rows[1]),
        lambda: rows[2].restart(),
        lambda: rows[3].pause(),
        lambda: rows[4].send_event("x"),
    )
    deleted = [task.error for task in tasks[:2]]
    assert [error is None for error in deleted].count(True) == 1
    assert any(isinstance(error, WorkflowInstance.DoesNotExist) for error in deleted)
    for task in tasks[2:]:
        assert task.error is None or isinstance(task.error, WorkflowInstance.DoesNotExist), task.error
    drain(5)
    assert not WorkflowInstance.objects.exists() and orphans() == {}


@pytest.mark.postgresql_only
def test_with_a_decision_that_is_being_stored() -> None:
    """LIF-13: the deletion waits for it, and takes it along; the answer refers to a wait that is gone."""
    row = drained(Deleted.create("new"))
    pending, gate = row.pending_events.get(), Gate()

    def decide() -> None:
        with transaction.atomic():
            pending.decide(True, by=None)
            gate.stop_here()

    deciding = Task(decide)
    gate.wait_until_reached()
    deleting = Task(lambda: delete_instance(row))
    eventually(blocked, "the deletion waits")
    gate.open()
    deciding.result()
    deleting.result()
    drain(5)
    assert not WorkflowInstance.objects.exists() and orphans() == {}
