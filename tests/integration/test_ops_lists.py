"""Lists ask the database in a way that its indexes can answer (design 4 "Claim", 11)."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection

from durableflow.admin.filters import needs_attention
from durableflow.core import clock
from durableflow.core.statuses import StepKind
from durableflow.models import PendingEvent, WorkflowInstance
from tests.integration.conftest import StoppedClock

pytestmark = pytest.mark.django_db


def _many_waits() -> None:
    """Approvals of others, and what the planner knows of them: on an empty table each index would serve as well."""
    now = clock.host_now()
    instance = WorkflowInstance.objects.create(workflow="w", instance_id="i", created=now)
    kind = StepKind.WAIT_FOR_APPROVAL
    PendingEvent.objects.bulk_create(
        PendingEvent(
            instance=instance,
            run_number=1,
            kind=kind,
            name=f"n{number}",
            opened=now,
            permission="a.b" if number % 2 else "",
        )
        for number in range(2000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _conditions(queryset: Any) -> list[str]:
    """The lines of the plan that say what an index is asked for, where an index is taken whenever one serves."""
    with connection.cursor() as cursor:
        # A table that is almost empty would also be read as a whole in the order of an index; a bitmap has a condition.
        for kind in ("seqscan", "indexscan", "indexonlyscan"):
            cursor.execute(f"SET LOCAL enable_{kind} = off")
    return [line for line in queryset.explain().splitlines() if "Index Cond" in line]


@pytest.mark.postgresql_only
@pytest.mark.parametrize(
    "rows",
    [
        lambda: WorkflowInstance.objects.due().order_by(),
        lambda: WorkflowInstance.objects.overdue().order_by(),
        lambda: needs_attention("default"),
    ],
)
def test_the_index_of_due_rows_is_asked_for_the_time(rows: Any) -> None:
    """A volatile clock could only be compared row by row."""
    assert any("wake_at <=" in condition for condition in _conditions(rows()))


def test_due_and_overdue_count_by_the_clock(stopped_clock: StoppedClock) -> None:
    """Due from its moment on, overdue a minute later, of whatever class it is."""
    for number, (priority, seconds) in enumerate([(0, 0), (1, 30), (2, 90)]):
        WorkflowInstance.objects.create(
            workflow="w",
            instance_id=f"i{number}",
            created=stopped_clock.now,
            wake_at=stopped_clock.now,
            claim_class=2 * priority + 1,
        )
        stopped_clock.advance(seconds)
    assert WorkflowInstance.objects.due().count() == 3
    assert {row.instance_id for row in WorkflowInstance.objects.overdue()} == {"i0", "i1", "i2"}
    late = WorkflowInstance.objects.create(
        workflow="w", instance_id="late", created=stopped_clock.now, wake_at=stopped_clock.now
    )
    assert late in WorkflowInstance.objects.due()
    assert late not in WorkflowInstance.objects.overdue()


@pytest.mark.postgresql_only
@pytest.mark.parametrize("permitted", [False, True])
def test_visible_waits_are_found_by_indexes(permitted: bool) -> None:
    """For who may not see all, each reason to see a wait has its own index: an OR would read all there ever were."""
    _many_waits()
    user: Any = get_user_model().objects.create_user("rita")
    if permitted:
        user.user_permissions.add(Permission.objects.get(codename="start_workflowinstance"))
        user = get_user_model().objects.get(pk=user.pk)
    conditions = " ".join(_conditions(PendingEvent.objects.visible_to(user)))
    for column in ("created_by_id", "decided_by_id", "user_id"):
        assert f"{column} = {user.pk}" in conditions
    if permitted:
        for queryset in (PendingEvent.objects.visible_to(user), PendingEvent.objects.decidable_by(user)):
            assert "permission)::text = 'durableflow.start_workflowinstance'" in " ".join(_conditions(queryset))


def _terminated(name: str, rollback: Any) -> WorkflowInstance:
    return WorkflowInstance.objects.create(
        workflow="w",
        instance_id=name,
        created=clock.host_now(),
        status=WorkflowInstance.Status.TERMINATED,
        rollback=rollback,
    )


def test_what_could_not_be_undone_needs_attention() -> None:
    """A terminated instance alone says by its rollback that something is left to do."""
    _terminated("plain", None)
    _terminated("undone", {"outcome": "complete", "failed": []})
    left = _terminated("left", {"outcome": "failed", "failed": ["book-1"]})
    assert list(WorkflowInstance.objects.not_undone()) == [left]
    assert list(WorkflowInstance.objects.failed()) == [left]
    assert [row[0] for row in needs_attention("default").values_list("pk")] == [left.pk]


def test_what_could_not_be_undone_is_found_by_an_index() -> None:
    """Design 11: among a million that were terminated."""
    rows = WorkflowInstance.objects.not_undone().order_by("-pk").values_list("pk", flat=True)[:10]
    if connection.vendor == "postgresql":
        _conditions(rows)
        with connection.cursor() as cursor:
            for kind in ("indexscan", "indexonlyscan"):
                cursor.execute(f"SET LOCAL enable_{kind} = on")
            cursor.execute("SET LOCAL enable_sort = off")
    assert "durableflow_not_undone" in rows.explain()
