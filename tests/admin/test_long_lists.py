"""Pages of long lists: the keys are found first, by an index alone, and are the rows that the filters mean (OPS-05)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from durableflow.models import PendingEvent, WorkflowInstance
from tests.admin.rows import make_instance
from tests.conftest import UserFactory

pytestmark = pytest.mark.django_db
LIST = "admin:durableflow_workflowinstance_changelist"
PER_PAGE = 50
S = WorkflowInstance.Status


@pytest.fixture
def staff(user_factory: UserFactory, login: Any) -> Client:
    """Somebody who views everything and decides."""
    rights = ["view_workflowinstance", "view_pendingevent", "decide_pendingevent"]
    return login(user_factory("staff", is_staff=True, permissions=[f"durableflow.{name}" for name in rights]))


@pytest.fixture
def rows() -> None:
    """Instances of two workflows: waiting with one, two or no open approvals, failed, blocked, overdue."""
    now = timezone.now()
    for number in range(66):
        row = make_instance(workflow=("checkout", "refund")[number % 2])
        for name in ("first", "second")[: number % 3]:
            PendingEvent.objects.create(instance=row, run_number=1, kind="wait_for_approval", name=name, opened=now)
        make_instance(workflow="refund", status=S.ERRORED)
    make_instance(status=S.PAUSED, blocked="Why.")
    make_instance(wake_at=now - timedelta(hours=1))
    make_instance(wake_at=now + timedelta(hours=1))


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, 135),
        ({"workflow": "refund", "status__exact": "errored"}, 66),
        ({"attention": "mine"}, 44),
        ({"attention": "mine", "workflow": "checkout"}, 22),
        ({"attention": "mine", "status__exact": "errored"}, 0),
        ({"attention": "needed"}, 68),
        ({"attention": "needed", "workflow": "checkout"}, 2),
        ({"attention": "needed", "q": "no-such-id"}, 0),
    ],
)
def test_a_page_shows_the_newest_that_match(staff: Client, query: dict[str, str], found: int, page: int) -> None:
    """OPS-05, SEC-12: each once, the newest first, whatever filters are put together."""
    shown = staff.get(reverse(LIST), {**query, "p": str(page)}).context["cl"]
    matching = sorted(shown.queryset.values_list("pk", flat=True), reverse=True)
    assert shown.result_count == len(matching) == found
    first = PER_PAGE * (page - 1) if found > PER_PAGE else 0
    assert [row.pk for row in shown.result_list] == matching[first : first + PER_PAGE]


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    "query", [{"workflow": "refund", "status__exact": "errored"}, {"attention": "mine"}, {"attention": "needed"}]
)
def test_whole_rows_are_read_by_their_keys_alone(staff: Client, query: dict[str, str]) -> None:
    """Design 11: a statement that filters or sorts asks for keys, which indexes hold; for whole rows PostgreSQL prefers
    to read a table of a million from its newest row on."""
    with CaptureQueriesContext(connection) as captured:
        staff.get(reverse(LIST), query)
    whole = [each["sql"] for each in captured if "progress_start" in each["sql"]]
    assert len(whole) == 1
    condition = whole[0].partition(" WHERE ")[2].partition(" ORDER BY ")[0]
    assert condition.startswith('"durableflow_workflowinstance"."id" IN (')
    assert condition.count('"') == 4, condition


def test_what_could_not_be_undone_needs_attention(staff: Client) -> None:
    """One that is terminated and has something left to undo; not one that was undone, or was not to be."""
    for instance_id, rollback in (
        ("left", {"outcome": "failed", "failed": ["book-1"]}),
        ("undone", {"outcome": "complete", "failed": []}),
        ("plain", None),
    ):
        make_instance(instance_id=instance_id, status=S.TERMINATED, rollback=rollback)
    shown = staff.get(reverse(LIST), {"attention": "needed"}).context["cl"]
    assert [row.instance_id for row in shown.result_list] == ["left"] and shown.result_count == 1


@pytest.mark.usefixtures("rows")
def test_who_waits_on_me_is_found_from_the_waits(staff: Client) -> None:
    """Design 11: the page walks the waits by instance and stops when it is full; from the side of the instances it would
    look at each of a million."""
    with CaptureQueriesContext(connection) as captured:
        staff.get(reverse(LIST), {"attention": "mine"})
    keys = [each["sql"] for each in captured if "DISTINCT" in each["sql"]]
    assert len(keys) == 1
    assert ' FROM "durableflow_pendingevent" ' in keys[0] and keys[0].endswith("LIMIT 44")
