"""A million instances that wait: what a claim and a list in the admin take beside them."""

from __future__ import annotations

import time
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.urls import reverse

from durableflow.engine.claims import claim
from durableflow.models import PendingEvent, WorkflowInstance
from tests.benchmarks import bulk
from tests.benchmarks.figures import median
from tests.benchmarks.workflows import Answered, Once, Short, Timed

FEW = 1_000
MANY = 1_000_000
FINISHED = 100_000
PENDING = 100_000
CLAIMS = 200
LOOKS = 5
WORKFLOWS: tuple[Any, ...] = (Answered, Once, Short, Timed)


def claim_million() -> dict[str, float]:
    """A claim when nothing is due, and one of many that find something, with a thousand and with a million instances
    that wait for a later moment; medians in milliseconds. ``ms`` is the slower of the two with a million."""
    bulk.fresh()
    waiting(FEW)
    few = _claims()
    fill()
    many = _claims()
    return {
        "ms": max(many),
        "empty_ms": many[0],
        "due_ms": many[1],
        "thousand_empty_ms": few[0],
        "thousand_due_ms": few[1],
    }


def admin_list_million() -> dict[str, Any]:
    """The lists of the admin with their usual filters, by a member of the staff; the slowest counts."""
    if WorkflowInstance.objects.order_by().count() < MANY:
        bulk.fresh()
        fill()
    client = Client()
    client.force_login(_staff())
    found = {url: median([_seconds(client, url) for _look in range(LOOKS)]) for url in pages()}
    slowest = max(found, key=lambda url: found[url])
    pages_ms = {url: round(1000 * seconds, 1) for url, seconds in found.items()}
    return {"ms": pages_ms[slowest], "slowest": slowest, "pages_ms": pages_ms}


def fill() -> None:
    """A million that wait, a hundred thousand that have ended, a hundred thousand open approvals."""
    waiting(MANY)
    _copies(
        FINISHED,
        "ended",
        status="CASE WHEN n %% 10 = 0 THEN 'errored' ELSE 'complete' END",
        wake_at="NULL",
        started=bulk.moment("-8 * n"),
        finished=bulk.moment("-7 * n"),
    )
    first = WorkflowInstance.objects.filter(status="waiting", instance_id__endswith=f"-{MANY}-1").earliest("id")
    opened: Any = PendingEvent(
        instance=first, run_number=1, kind="wait_for_approval", name="approve", types=[], count=1
    )
    opened.opened = first.created
    opened.save()
    bulk.clone(opened, PENDING, instance_id=f"{first.pk} + n", opened=bulk.moment("-8 * n"))
    bulk.analyze()


def waiting(count: int) -> None:
    """``count`` instances of all priorities that wait for moments after the next hour."""
    _copies(
        count,
        "bulk",
        status="'waiting'",
        priority="n %% 3",
        claim_class="2 * (n %% 3)",
        wake_at=bulk.moment("3600 + n"),
    )
    bulk.analyze()


def pages() -> list[str]:
    """The lists and the filters that people use."""
    instances = reverse("admin:durableflow_workflowinstance_changelist")
    pending = reverse("admin:durableflow_pendingevent_changelist")
    one = WorkflowInstance.objects.filter(status="waiting").earliest("id").workflow
    queries = (
        "",
        "?p=3",
        "?status__exact=waiting",
        "?status__exact=complete",
        "?status__exact=errored",
        "?status__exact=running",
        f"?workflow={one}",
        f"?workflow={one}&status__exact=waiting",
        "?created=hour",
        "?created=week",
        "?attention=mine",
        "?attention=needed",
        f"?q=bulk-{one}-{MANY}-77",
        "?q=nothing-of-this-name",
    )
    inbox = ("", "?show=open", "?show=decided", "?show=all", f"?q=bulk-{one}-{MANY}-77")
    return [*(instances + query for query in queries), *(pending + query for query in inbox)]


def _copies(count: int, name: str, **columns: str) -> None:
    """``count`` instances of all workflows, called ``name-WORKFLOW-COUNT-N``; ``columns``: see ``bulk.clone``."""
    for workflow in WORKFLOWS:
        row = workflow.create({"due": 0} if workflow is Timed else None)
        row.refresh_from_db()
        bulk.clone(
            row,
            count // len(WORKFLOWS),
            instance_id=f"'{name}-{row.workflow}-{count}-' || n",
            created=bulk.moment("-8 * n"),
            **columns,
        )
        row.delete()


def _claims() -> tuple[float, float]:
    """Milliseconds of a claim without and with due rows. The claimed rows are put back."""
    using = connection.alias
    empty = [_claim(using, 0) for _number in range(CLAIMS)]
    table = WorkflowInstance._meta.db_table
    keys = WorkflowInstance.objects.filter(status="waiting").order_by("id").values_list("pk", flat=True)[: 2 * CLAIMS]
    last = keys[len(keys) - 1]
    bulk.execute(f"UPDATE {table} SET wake_at = {bulk.moment('-60')} WHERE status = 'waiting' AND id <= %s", last)
    due = [_claim(using, 1) for _number in range(CLAIMS)]
    later = bulk.moment("7200")
    bulk.execute(
        f"UPDATE {table} SET wake_at = {later}, status = 'waiting', lease_token = NULL, owner = NULL WHERE id <= %s",
        last,
    )
    return median(empty), median(due)


def _claim(using: str, expected: int) -> float:
    began = time.perf_counter()
    found = claim(using)
    took = 1000 * (time.perf_counter() - began)
    if len(found) != expected:
        raise RuntimeError(f"The claim took {len(found)} instances, not {expected}.")
    return took


def _staff() -> Any:
    users: Any = get_user_model()._default_manager
    user, _created = users.get_or_create(username="staff", defaults={"is_staff": True})
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="durableflow"))
    return user


def _seconds(client: Client, url: str) -> float:
    began = time.perf_counter()
    response = client.get(url)
    took = time.perf_counter() - began
    if response.status_code != 200:
        raise RuntimeError(f"GET {url}: status {response.status_code}.")
    return took
