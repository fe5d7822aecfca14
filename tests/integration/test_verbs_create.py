"""``create`` and ``get_or_create`` (LIF-12, api.md)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.utils import timezone

from durableflow import (
    CodecError,
    InstanceAlreadyExists,
    LimitExceeded,
    Priority,
    Retention,
    Step,
    Workflow,
    WorkflowEvent,
    drain,
)
from durableflow.models import HistoryEntry, WorkflowInstance
from tests.conftest import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class Made(Workflow[Any, Any]):
    class Meta:
        name = "verbs-made"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        if event.params == "fail":
            raise ValueError("no")
        return [event.params, event.instance_id, event.workflow, event.run_number, event.timestamp]


class Other(Workflow[Any, Any]):
    class Meta:
        name = "verbs-other"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return "other"


class Bounded(Workflow[Any, Any]):
    class Meta:
        name = "verbs-bounded"
        max_duration = "1 hour"

    def run(self, event: WorkflowEvent[Any], step: Step) -> None:
        """Nothing."""


def stored() -> int:
    return WorkflowInstance.objects.count() + HistoryEntry.objects.count()


@pytest.mark.parametrize("end", ["queued", "complete", "errored", "terminated"])
def test_an_id_is_taken_once(end: str) -> None:
    """LIF-12: also after the end, as long as it is kept; the error names it, and nothing is replaced."""
    row = Made.create("fail" if end == "errored" else {"n": 1}, instance_id="x")
    if end in ("complete", "errored"):
        drain()
    if end == "terminated":
        row.terminate()
    row.refresh_from_db()
    assert row.status == end
    before = WorkflowInstance.objects.values().get()
    with pytest.raises(InstanceAlreadyExists) as taken:
        Made.create({"n": 2}, instance_id="x")
    assert (taken.value.workflow, taken.value.instance_id) == ("verbs-made", "x")
    again, created = Made.get_or_create({"n": 3}, instance_id="x")
    assert (again.pk, created, again.params) == (row.pk, False, row.params)
    assert WorkflowInstance.objects.values().get() == before
    assert Other.create(instance_id="x").pk != row.pk, "ids are per workflow"


def test_what_run_gets(user_factory: UserFactory) -> None:
    ada = user_factory("ada")
    row = Made.create({"n": 1}, instance_id="order-1", created_by=ada, priority=Priority.HIGH)
    assert (row.status, row.trigger, row.created_by, row.created_by_name) == (Status.QUEUED, "code", ada, "ada")
    assert (row.priority, row.claim_class, row.wake_at) == (Priority.HIGH, 1, row.created)
    entry = row.history.get()
    assert (entry.type, entry.actor, entry.via, entry.at) == ("workflow_queued", ada, "code", row.created)
    drain()
    row.refresh_from_db()
    assert row.output == [{"n": 1}, "order-1", "verbs-made", 1, row.created]
    assert row.started is not None and row.finished is not None and row.created <= row.started <= row.finished
    assert [entry.type for entry in row.history.all()] == ["workflow_queued", "workflow_started", "workflow_completed"]


def test_ids_of_our_own_are_uuids() -> None:
    first, second = Made.create(), Made.create()
    assert first.instance_id != second.instance_id and len(first.instance_id) == 36
    assert first.seed != second.seed and first.created_by is None
    assert Made.create(created_by=AnonymousUser()).created_by is None


@pytest.mark.parametrize("given", [timedelta(hours=1), "1 hour", 3600, "moment"])
def test_a_start_in_the_future(given: Any) -> None:
    soon = timezone.now() + timedelta(hours=1)
    row = Made.create(start_at=soon if given == "moment" else given)
    assert row.wake_at is not None and abs((row.wake_at - soon).total_seconds()) < 60
    assert drain() == 0
    WorkflowInstance.objects.update(wake_at=row.created)
    drain()
    row.refresh_from_db()
    assert row.status == Status.COMPLETE


def test_a_start_in_the_past_is_now() -> None:
    row = Made.create(start_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert row.wake_at == row.created, "it goes ahead of nobody, and is not overdue at once"
    assert Bounded.create(start_at=datetime(2020, 1, 1, tzinfo=UTC)).deadline_at > timezone.now()
    drain()
    row.refresh_from_db()
    assert row.status == Status.COMPLETE


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"instance_id": "a b"}, ValueError),
        ({"instance_id": ""}, ValueError),
        ({"instance_id": "latest"}, ValueError),
        ({"instance_id": "-a"}, ValueError),
        ({"instance_id": "a" * 101}, LimitExceeded),
        ({"instance_id": 5}, (TypeError, ValueError)),
        ({"params": object()}, CodecError),
        ({"params": {"x": "\0"}}, CodecError),
        ({"params": "x" * 1_100_000}, LimitExceeded),
        ({"start_at": datetime(2030, 1, 1)}, ValueError),
        ({"start_at": "1h"}, ValueError),
        ({"start_at": -1}, ValueError),
        ({"start_at": datetime(9999, 12, 31, 23, tzinfo=UTC)}, ValueError),
        ({"start_at": datetime.max.replace(tzinfo=timezone.get_fixed_timezone(-60))}, ValueError),
        ({"priority": 7}, ValueError),
        ({"unknown": 1}, TypeError),
        ({"concurrency_key": "x"}, TypeError),
    ],
)
def test_bad_input_stores_nothing(options: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        Made.create(**options)
    assert stored() == 0


def test_retention_and_lookups() -> None:
    row = Made.create(retention=Retention(success="1 day"), instance_id="x")
    row.refresh_from_db()
    assert row.retention == Retention(success="1 day") and row.retention_error is None
    assert Made.get("x").pk == row.pk
    with pytest.raises(WorkflowInstance.DoesNotExist):
        Made.get("y")
    with pytest.raises(WorkflowInstance.DoesNotExist):
        Other.get("x")
    assert Other.create().retention is None
    assert [found.pk for found in Made.instances()] == [row.pk]
    assert WorkflowInstance.objects.for_workflow("verbs-other").count() == 1


def test_the_vocabulary_of_lists() -> None:
    """api.md: active, finished, failed, due, overdue."""
    rows = {status: Made.create(instance_id=f"i-{status}") for status in Status}
    for status, row in rows.items():
        WorkflowInstance.objects.filter(pk=row.pk).update(status=status, wake_at=None)
    WorkflowInstance.objects.filter(status="paused").update(blocked="why")
    late = Made.create(instance_id="late")
    WorkflowInstance.objects.filter(pk=late.pk).update(wake_at=timezone.now() - timedelta(minutes=2))

    def ids(queryset: Any) -> set[str]:
        return {row.instance_id.removeprefix("i-") for row in queryset}

    ends = {"complete", "errored", "terminated"}
    assert ids(WorkflowInstance.objects.finished()) == ends
    assert ids(WorkflowInstance.objects.active()) == {*map(str, Status)} - ends | {"late"}
    assert ids(WorkflowInstance.objects.failed()) == {"errored", "paused"}
    assert ids(WorkflowInstance.objects.due()) == ids(WorkflowInstance.objects.overdue()) == {"late"}
    assert Made.create().pk in {row.pk for row in WorkflowInstance.objects.due()}
    assert WorkflowInstance.objects.overdue().count() == 1
