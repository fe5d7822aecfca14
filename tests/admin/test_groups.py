"""Groups on the page of an instance: what has become of their members, and the way to those that failed (design 7, 10)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from durableflow.core import failures
from durableflow.core.failures import REDACTED
from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models import StepRecord, WorkflowInstance
from tests.admin.rows import S, make_instance, make_step
from tests.admin.test_rollback import page_of

pytestmark = pytest.mark.django_db


def make_map(number: int, failed: tuple[int, ...] = (), name: str = "export table", **fields: Any) -> StepRecord:
    """A map over so many items; those in ``failed`` have failed."""
    instance = fields.pop("instance", None) or make_instance(
        **{"status": S.ERRORED, "finished": timezone.now(), **fields}
    )
    group = make_step(instance, name, kind=StepKind.MAP, status=StepStatus.FAILED if failed else StepStatus.COMPLETE)
    StepRecord.objects.bulk_create(
        StepRecord(
            instance=instance,
            run_number=1,
            scope=f"{name}-1",
            kind=StepKind.DO,
            name=name,
            count=count,
            seq=group.seq + count,
            execution=1,
            status=StepStatus.FAILED if count in failed else StepStatus.COMPLETE,
            attempts=1,
        )
        for count in range(1, number + 1)
    )
    return group


def row_of(page: str, step: StepRecord) -> str:
    """The table's row of one step."""
    return page.split(f'<tr id="step-{step.pk}">')[1].split("</tr>")[0]


def test_a_map_says_how_many_failed_and_leads_to_them_across_pages(login, viewer) -> None:
    group = make_map(300, (9, 109, 209))
    client, instance = login(viewer), group.instance
    page = page_of(client, instance)
    row = row_of(page, group)
    assert "297 complete, 3 failed" in row
    address = reverse("admin:durableflow_workflowinstance_change", args=[instance.pk])
    for count in (9, 109, 209):
        step = instance.steps.get(count=count, kind="do")
        link = f"?step={step.pk}#step-{step.pk}"
        assert f'<a href="{link}">export table-1/export table-{count}</a>' in row
        assert f'id="step-{step.pk}"' in client.get(address + link).content.decode()


def test_the_failed_steps_can_be_shown_alone(login, viewer, monkeypatch) -> None:
    monkeypatch.setattr("durableflow.admin.page.STEPS_ON_PAGE", 4)
    group = make_map(300, (9, 109, 209, 220, 230, 240, 250))
    client = login(viewer)
    assert "and 2 more</a>" in row_of(page_of(client, group.instance), group)
    address = reverse("admin:durableflow_workflowinstance_change", args=[group.instance.pk])
    first = client.get(address, {"only": "failed"}).content.decode()
    assert "Steps 1 to 4 of 8" in first and "export table-1/export table-9<" in first
    assert "export table-1/export table-8<" not in first
    following = re.search(r'href="(\?[^"#]*)#df-steps">Later steps', first)
    assert following is not None
    second = client.get(address + following[1].replace("&amp;", "&")).content.decode()
    assert "Steps 5 to 8 of 8" in second and "export table-1/export table-250<" in second
    assert "There are none in this run." in client.get(address, {"only": "open"}).content.decode()
    assert "Steps 1 to 4 of 301" in client.get(address, {"only": "nonsense"}).content.decode()


def test_a_gather_counts_the_steps_of_its_branches_and_no_groups(login, viewer) -> None:
    instance = make_instance()
    group = make_step(instance, "a/b", kind=StepKind.GATHER, status=StepStatus.PENDING, finished=None)
    make_step(instance, "draft", scope="a%2Fb-1[1]")
    inner = make_step(
        instance, "pages", kind=StepKind.MAP, scope="a%2Fb-1[2]", status=StepStatus.PENDING, finished=None
    )
    for count, status in enumerate((StepStatus.COMPLETE, StepStatus.STARTED, StepStatus.CANCELLED), start=1):
        make_step(instance, "pages", scope="a%2Fb-1[2]/pages-1", count=count, status=status)
    other = make_step(instance, "other", kind=StepKind.GATHER)
    page = page_of(login(viewer), instance)
    assert "Steps in its branches: 2 complete, 1 unfinished, 1 cancelled" in row_of(page, group)
    assert '<p class="df-members">1 complete, 1 unfinished, 1 cancelled' in row_of(page, inner)
    assert "df-members" not in row_of(page, other)


def test_a_join_tells_of_its_children(login, viewer) -> None:
    parent = make_instance()
    join = make_step(parent, "pages", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None, remaining=1)
    for count, status in enumerate((StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.PENDING), start=1):
        make_step(parent, "pages", scope="pages-1", count=count, kind=StepKind.CHILD, status=status)
    row = row_of(page_of(login(viewer), parent), join)
    assert "1 complete, 1 failed, 1 unfinished" in row and "pages-1/pages-2</a>" in row


def test_groups_cost_the_same_for_any_number_of_groups_and_members(login, viewer) -> None:
    client = login(viewer)

    def queries(names: list[str], number: int) -> int:
        instance = make_instance()
        for name in names:
            make_map(number, (1,), name, instance=instance)
        with CaptureQueriesContext(connection) as captured:
            page_of(client, instance)
        return len(captured)

    queries(["a"], 1)
    assert queries(["a", "b", "c"], 20) == queries(["a"], 1)


def failed_with(error: Exception, **fields: Any) -> WorkflowInstance:
    described = failures.describe(error)
    return make_instance(status=S.ERRORED, finished=timezone.now(), error_data=described, **fields)


def group_of(number: int) -> ExceptionGroup[Exception]:
    return ExceptionGroup(
        "many branches failed", [ValueError(f"item {count} is broken") for count in range(7, 7 + number)]
    )


def test_the_reason_names_the_first_error_of_a_group(login, viewer) -> None:
    client = login(viewer)
    assert "Failed: ValueError: item 7 is broken, and 2 more" in page_of(client, failed_with(group_of(3)))
    alone = page_of(client, failed_with(group_of(1)))
    assert '<span class="df-reason">Failed: ValueError: item 7 is broken</span>' in alone
    nested = ExceptionGroup("outer", [group_of(2), KeyError("x")])
    assert "Failed: ValueError: item 7 is broken, and 2 more" in page_of(client, failed_with(nested))
    many = page_of(client, failed_with(group_of(1_200)))
    assert "Failed: ValueError: item 7 is broken, and 1,199 more" in many, "also where not all of them are kept"


def test_the_reason_masks_the_first_error_of_a_group(login, viewer) -> None:
    """SEC-09: what a sensitive step raised, and what another error quotes of its output."""
    first = ValueError("secret of the step")
    first.__dict__["durableflow_step"] = "get token-1"
    for error in (first, ValueError("bad tok-4711-secret")):
        instance = failed_with(ExceptionGroup("two", [error, KeyError("x")]))
        make_step(instance, "get token", sensitive=True, raw_output="tok-4711-secret")
        page = page_of(login(viewer), instance)
        reason = page.split('<span class="df-reason">')[1].split("</span>")[0]
        assert "secret" not in reason and REDACTED in reason and "and 1 more" in reason
