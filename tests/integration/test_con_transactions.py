"""Starting and sending inside the caller's transaction; columns that writers must not bring back (CON-03, CON-09)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.test import Client, override_settings
from django.urls import path

from durableflow import InstanceAlreadyExists, InvalidTransition, Step, Workflow, WorkflowEvent, drain
from durableflow.core import dispatch
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.models import HistoryEntry, PendingEvent, SentEvent, WorkflowInstance
from tests.support.concurrency import Gate, Task

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class Order(Workflow[dict[str, Any], Any]):
    """Looks for the row that was made with it, then waits for an event."""

    class Meta:
        name = "con-order"

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> Any:
        found = step.do("look", lambda: Group.objects.filter(pk=event.params["order"]).exists())
        return [found, step.wait_for_event("paid", type="paid").payload]


class Rollback(Exception):
    """Ends a block."""


@pytest.fixture
def hints() -> Any:
    """The hints that were given."""
    given: list[str] = []
    listener: Callable[[str], None] = given.append
    dispatch._listeners.append(listener)
    yield given
    dispatch._listeners.remove(listener)


def make(instance_id: str = "order-1") -> WorkflowInstance:
    order = Group.objects.create(name=instance_id)
    return Order.create({"order": order.pk}, instance_id=instance_id)


def empty() -> bool:
    return not any(table._default_manager.exists() for table in (WorkflowInstance, HistoryEntry, SentEvent, Group))


def test_it_starts_after_the_commit_and_sees_everything(hints: list[str]) -> None:
    """CON-03 (a): nothing before; then the first step sees the order."""
    inside = Gate()

    def place() -> int:
        with transaction.atomic():
            row = make()
            assert row.pk is not None and row.instance_id == "order-1" and row.status == Status.QUEUED
            if connection.vendor == "postgresql":
                inside.stop_here()
            return row.pk

    caller = Task(place)
    if connection.vendor == "postgresql":  # SQLite has one writer: a drain would only wait
        inside.wait_until_reached()
        assert drain(0.1) == 0 and hints == []
        assert not WorkflowInstance.objects.exists()
        inside.open()
    pk = caller.result()
    assert hints == ["default"]
    row = WorkflowInstance.objects.get(pk=pk)
    drain()
    row.send_event("paid", 1)
    drain()
    row.refresh_from_db()
    assert row.output == [True, 1]


def test_a_rollback_leaves_nothing(hints: list[str]) -> None:
    """CON-03 (b): no instance, no history, no hint; the id is free."""
    with pytest.raises(Rollback), transaction.atomic():
        make()
        raise Rollback
    assert empty() and hints == []
    assert drain() == 0
    make()


def test_a_savepoint_that_rolls_back_starts_nothing(hints: list[str]) -> None:
    """CON-03: the outer transaction goes on; what the savepoint made is gone, hint and id too."""
    with transaction.atomic():
        User.objects.create_user("outer")
        with pytest.raises(Rollback), transaction.atomic():
            make()
            raise Rollback
        with transaction.atomic():
            row = make("order-2")
    assert User.objects.filter(username="outer").exists()
    assert list(WorkflowInstance.objects.values_list("instance_id", flat=True)) == ["order-2"]
    assert hints == ["default"]
    drain()
    row.refresh_from_db()
    assert row.status == Status.WAITING


def test_an_event_belongs_to_the_transaction(hints: list[str]) -> None:
    """CON-03: sent in a block that rolls back, it was never sent; a decision likewise."""
    row = make()
    drain()
    hints.clear()
    with pytest.raises(Rollback), transaction.atomic():
        row.send_event("paid", 1)
        raise Rollback
    with transaction.atomic():
        with pytest.raises(Rollback), transaction.atomic():
            row.send_event("paid", 2)
            raise Rollback
    assert not SentEvent.objects.exists() and hints == []
    with transaction.atomic():
        row.send_event("paid", 3)
        assert hints == []
    assert hints == ["default"]
    drain()
    row.refresh_from_db()
    assert row.output == [True, 3]


def test_a_decision_belongs_to_the_transaction() -> None:
    class Ask(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.wait_for_approval("ok", title="Ok?").approved

    row = Ask.create()
    drain()
    pending = PendingEvent.objects.get()
    with pytest.raises(Rollback), transaction.atomic():
        pending.approve(by=None)
        raise Rollback
    drain()
    pending.refresh_from_db()
    row.refresh_from_db()
    assert (pending.status, row.status) == ("open", Status.WAITING)
    assert not SentEvent.objects.exists()
    with transaction.atomic():
        pending.reject(by=None)
    drain()
    row.refresh_from_db()
    assert row.output is False


@pytest.mark.parametrize("verb", ["terminate", "retry", "resume"])
def test_a_verb_belongs_to_the_transaction(verb: str) -> None:
    row = make()
    before = {"terminate": "queued", "retry": "errored", "resume": "paused"}[verb]
    WorkflowInstance.objects.update(status=before, wake_at=None)
    with pytest.raises(Rollback), transaction.atomic():
        getattr(row, verb)()
        raise Rollback
    row.refresh_from_db()
    assert row.status == before and not HistoryEntry.objects.exclude(data__contains="trigger").exists()


def test_a_taken_id_leaves_the_callers_transaction_usable() -> None:
    """Design 9: no error that poisons the block."""
    make()
    with transaction.atomic():
        with pytest.raises(InstanceAlreadyExists):
            Order.create({"order": 0}, instance_id="order-1")
        User.objects.create_user("after")
        row, created = Order.get_or_create({"order": 0}, instance_id="order-1")
        assert not created and row.params != {"order": 0}
    assert User.objects.filter(username="after").exists()


def view(request: HttpRequest) -> JsonResponse:
    row = make()
    if request.GET.get("fail"):
        raise Rollback
    return JsonResponse({"instance_id": row.instance_id, "seen": WorkflowInstance.objects.count()})


urlpatterns = [path("place/", view)]


@pytest.mark.parametrize("fail", [False, True])
def test_atomic_requests(fail: bool, hints: list[str]) -> None:
    """CON-03: a view whose transaction is the request's."""
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        with override_settings(ROOT_URLCONF=__name__):
            client = Client(raise_request_exception=False)
            response = client.get("/place/", {"fail": "1"} if fail else {})
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert response.status_code == (500 if fail else 200)
    if fail:
        assert empty() and hints == []
    else:
        assert response.json() == {"instance_id": "order-1", "seen": 1}
        assert hints == ["default"] and drain() == 1


def test_a_hint_that_fails_reaches_nobody(hints: list[str]) -> None:
    """CON-04: the row is the truth; the look finds it."""

    def broken(using: str) -> None:
        raise RuntimeError("no broker")

    dispatch._listeners.insert(0, broken)
    try:
        row = make()
        row.send_event("paid", 1)
    finally:
        dispatch._listeners.remove(broken)
    assert hints == ["default", "default"]
    drain()
    row.refresh_from_db()
    assert row.output == [True, 1]


def test_waiting_inside_a_transaction_is_refused() -> None:
    """Design 12: result() could never see the end; drain() could run what is not committed."""
    row = make()
    with transaction.atomic():
        with pytest.raises(RuntimeError, match=r"atomic\(\) on 'default'"):
            row.result(timeout=0.01)
        with pytest.raises(RuntimeError, match=r"atomic\(\) on 'default'"):
            drain()
    drain()
    row.terminate()
    with transaction.atomic(), pytest.raises(Exception, match="terminated"):
        row.result()
    finished = Order.create({"order": 1})
    WorkflowInstance.objects.filter(pk=finished.pk).update(status="complete", output="out", wake_at=None)
    with transaction.atomic():
        assert finished.result() == "out"


def test_result_waits_no_longer_than_it_may() -> None:
    row = make()
    with pytest.raises(TimeoutError, match="is queued"):
        row.result(timeout=0.02)


def test_result_sees_the_end_that_another_thread_makes() -> None:
    row = make()
    row.send_event("paid", 1)
    waiting = Task(lambda: WorkflowInstance.objects.get(pk=row.pk).result(timeout=60))
    drain()
    assert waiting.result() == [True, 1]


def test_writers_change_their_own_columns_only() -> None:
    """CON-09: what others changed while an executor held its claim survives everything that the executor writes."""
    seen: list[Any] = []

    class Busy(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.do("edit", edit)
            step.set_progress({"at": 50})
            step.do("more", lambda: None)
            return "out"

    def edit() -> None:
        WorkflowInstance.objects.update(
            priority=2,
            retention_success=timedelta(days=5),
            concurrency_key="k",
            request_key="r",
            request_digest="d",
            code_version=0,
        )
        row.send_event("note", 1)
        seen.append(WorkflowInstance.objects.get(pk=row.pk).woken)

    row = Busy.create()
    (claimed,) = claim("default")
    execute(claimed, renew=False)
    row.refresh_from_db()
    assert (row.priority, row.retention_success, row.concurrency_key, row.request_key) == (
        2,
        timedelta(days=5),
        "k",
        "r",
    )
    assert (row.status, row.output, row.progress) == (Status.COMPLETE, "out", {"at": 50})
    assert row.sent_events.count() == 1 and seen == [False]


def test_verbs_change_their_own_columns_only() -> None:
    """CON-09: an operator's page was loaded long ago; the verb writes nothing that it has read then."""
    row = make()
    drain()
    stale = WorkflowInstance.objects.get(pk=row.pk)
    WorkflowInstance.objects.update(priority=2, progress="new", execution=9)
    row.send_event("paid", 1)
    stale.terminate()
    assert (stale.priority, stale.progress, stale.execution) == (2, "new", 9), "and the caller's object is fresh"
    row.refresh_from_db()
    assert (row.priority, row.progress, row.execution) == (2, "new", 9)
    with pytest.raises(InvalidTransition):
        WorkflowInstance.objects.get(pk=row.pk).terminate()
