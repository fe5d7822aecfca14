"""People, rows and clients for the tests of the API."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from durableflow.models import (
    HistoryEntry,
    PendingEvent,
    SentEvent,
    SkippedSlots,
    StepRecord,
    WorkflowInstance,
    WorkflowSchedule,
)
from tests.api.flows import ApiOrder
from tests.conftest import UserFactory

ROLES = (
    *("anonymous", "stranger", "creator", "viewer", "starter", "operator", "decider"),
    *("overrider", "remover", "planner", "superuser"),
)
PERMISSIONS = {
    "viewer": ["view_workflowinstance"],
    "starter": ["start_workflowinstance"],
    "operator": ["view_workflowinstance", "operate_workflowinstance"],
    "decider": ["decide_pendingevent"],
    "overrider": ["view_workflowinstance", "override_workflowinstance"],
    "remover": ["view_workflowinstance", "delete_workflowinstance"],
    "planner": [f"{action}_workflowschedule" for action in ("view", "add", "change", "delete")],
}
ORDERS = "/api/workflows/api-order/instances/"
RowFactory = Callable[..., Any]


@pytest.fixture
def people(user_factory: UserFactory) -> Callable[[str], User]:
    """``people("viewer")``: one user per role, made when first asked for."""
    made: dict[str, User] = {}

    def find(role: str) -> User:
        if role not in made:
            permissions = [f"durableflow.{name}" for name in PERMISSIONS.get(role, ())]
            made[role] = user_factory(role, permissions=permissions, is_superuser=role == "superuser")
        return made[role]

    return find


@pytest.fixture
def client_of(people: Callable[[str], User]) -> Callable[[str], APIClient]:
    """``client_of("viewer")``: a client that is logged in as that role (``anonymous``: not at all)."""

    def make(role: str) -> APIClient:
        client = APIClient()
        client.default_format = "json"
        if role != "anonymous":
            client.force_login(people(role))
        return client

    return make


@pytest.fixture
def order(people: Callable[[str], User]) -> RowFactory:
    """``order(status="errored")``: an instance that the creator has started."""

    def make(instance_id: str = "order-1", *, params: Any = None, created_by: User | None = None, **fields: Any) -> Any:
        row = ApiOrder.create(params, instance_id=instance_id, created_by=created_by or people("creator"))
        status = fields.get("status", "waiting")
        values = {"status": status, "wake_at": None, **fields}
        WorkflowInstance.objects.filter(pk=row.pk).update(**values)
        row.refresh_from_db()
        return row

    return make


@pytest.fixture
def wait_of() -> RowFactory:
    """``wait_of(instance)``: an open approval of it, with its step; ``types=[...]`` makes it a wait for events."""

    def make(instance: Any, name: str = "approval", *, types: list[str] | None = None, **fields: Any) -> PendingEvent:
        kind = "wait_for_event" if types else "wait_for_approval"
        seq = instance.steps.count() + 1
        step = StepRecord.objects.create(
            instance=instance,
            run_number=instance.run_number,
            kind=kind,
            name=name,
            seq=seq,
            execution=1,
            status="pending",
            started=timezone.now(),
        )
        values: dict[str, Any] = {
            "kind": kind,
            "name": name,
            "types": types or [],
            "opened": timezone.now(),
            "deadline": timezone.now() + timedelta(days=3),
            **fields,
        }
        row: PendingEvent = PendingEvent.objects.create(
            instance=instance, run_number=instance.run_number, step=step, **values
        )
        return row

    return make


@pytest.fixture
def step_of() -> RowFactory:
    """``step_of(instance, "charge", raw_output=1)``: a finished step of it."""

    def make(instance: Any, name: str = "charge", **fields: Any) -> StepRecord:
        now = timezone.now()
        values: dict[str, Any] = {
            "kind": "do",
            "status": "complete",
            "attempts": 1,
            "started": now,
            "finished": now + timedelta(seconds=1),
            **fields,
        }
        seq = instance.steps.count() + 1
        return StepRecord.objects.create(
            instance=instance, run_number=instance.run_number, name=name, seq=seq, execution=1, **values
        )

    return make


@pytest.fixture
def entry_of() -> RowFactory:
    """``entry_of(instance, "step_completed", step="charge-1", kind="do", data={...})``: an entry of its history."""

    def make(instance: Any, type: str, **fields: Any) -> HistoryEntry:
        return HistoryEntry.objects.create(
            instance=instance, run_number=instance.run_number, type=type, **{"at": timezone.now(), **fields}
        )

    return make


@pytest.fixture
def schedule_of(db: None) -> RowFactory:
    """``schedule_of(name="nightly")``: a schedule of the orders; ``declared=True``: as if it stood in their code."""

    def make(*, declared: bool = False, **fields: Any) -> WorkflowSchedule:
        row = WorkflowSchedule(**{"workflow": "api-order", "name": "nightly", "cron": "0 2 * * *", **fields})
        row.save()
        if declared:
            WorkflowSchedule.objects.filter(pk=row.pk).update(declared=True)
            row.refresh_from_db()
        return row

    return make


def snapshot() -> list[Any]:
    """All that our tables hold: equal before and after means that nothing was stored."""
    tables = (WorkflowInstance, StepRecord, PendingEvent, SentEvent, HistoryEntry, WorkflowSchedule, SkippedSlots)
    return [list(table.objects.order_by("pk").values()) for table in tables]


def queries_of(client: APIClient, url: str) -> int:
    """How many queries a GET of ``url`` needs."""
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return len(captured)
