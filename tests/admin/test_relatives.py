"""Parents and children: staff get from each to the other (design 7, 9; CHD-02)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models import StepRecord, WorkflowInstance
from tests.admin.acting import LIST
from tests.admin.rows import S, make_instance, make_step
from tests.admin.test_rollback import page_of

pytestmark = pytest.mark.django_db
OPEN: dict[str, Any] = {"kind": StepKind.CHILD, "status": StepStatus.PENDING, "finished": None}


def address_of(instance: WorkflowInstance) -> str:
    return reverse("admin:durableflow_workflowinstance_change", args=[instance.pk])


def make_child(step: StepRecord, instance_id: str, **fields: Any) -> WorkflowInstance:
    return make_instance(
        workflow="page", instance_id=instance_id, parent_step=step, on_parent_end="terminate", **fields
    )


def join_of(parent: WorkflowInstance, *names: str, **fields: Any) -> StepRecord:
    """A join with a child of each name."""
    join = make_step(parent, "pages", remaining=len(names), attempts=len(names), **{**OPEN, **fields})
    for count, name in enumerate(names, start=1):
        make_child(make_step(parent, "pages", scope="pages-1", count=count, **OPEN), name)
    return join


def listed(client: Client, **query: Any) -> list[str]:
    response = client.get(LIST, query)
    assert response.status_code == 200
    return [row.instance_id for row in response.context["cl"].result_list]


def test_the_row_of_a_child_links_to_it_also_while_it_is_open(login, viewer) -> None:
    parent = make_instance()
    join_of(parent, "p1", "p2")
    failed = make_child(
        make_step(parent, "cover", kind=StepKind.CHILD, status=StepStatus.FAILED), "c1", status=S.ERRORED
    )
    page = page_of(login(viewer), parent)
    for child in (*WorkflowInstance.objects.filter(workflow="page"), failed):
        assert f'<a href="{address_of(child)}">{child.label}</a>' in page
    drawn = page.split(f'<a href="{address_of(failed)}">page/c1</a>')[1][:200]
    assert "df-bad" in drawn and "Failed" in drawn, "with its status"


def test_a_child_that_was_started_anew_comes_first(login, viewer) -> None:
    parent = make_instance()
    step = make_step(parent, "cover", **OPEN)
    old, new = make_child(step, "old", status=S.TERMINATED), make_child(step, "new")
    page = page_of(login(viewer), parent)
    assert 0 < page.index(address_of(new)) < page.index(address_of(old))


def test_a_child_links_to_the_step_of_its_parent_on_whichever_page_that_is(login, viewer) -> None:
    parent = make_instance()
    for number in range(205):
        make_step(parent, f"step {number}", seq=number + 1)
    step = make_step(parent, "pages", scope="pages-1", count=2, seq=300, **OPEN)
    child = make_child(step, "p2")
    client = login(viewer)
    page = page_of(client, child)
    link = f"{address_of(parent)}?step={step.pk}#step-{step.pk}"
    assert f'<dt>Parent</dt><dd><a href="{link}">{parent.label}, step pages-1/pages-2</a></dd>' in page
    shown = client.get(link).content.decode()
    assert f'id="step-{step.pk}"' in shown and "Steps 201 to 206 of 206" in shown
    for wrong in ("x", "0", "9" * 18, "9" * 40):
        assert "Steps 1 to 200" in client.get(address_of(parent), {"step": wrong}).content.decode()


def test_relatives_that_are_not_for_the_user_are_not_named(login, requester) -> None:
    """Design 9, SEC-04: neither way, nor by the list's filter."""
    hidden = make_instance(workflow="secret", instance_id="parent")
    mine = make_child(make_step(hidden, "private step", **OPEN), "mine", created_by=requester)
    own_step = make_step(mine, "below", **OPEN)
    make_instance(workflow="secret", instance_id="child", parent_step=own_step, on_parent_end="terminate")
    client = login(requester)
    page = page_of(client, mine)
    assert "secret" not in page and "private step" not in page and "<dt>Parent</dt>" not in page
    response = client.get(LIST, {"children_of": hidden.steps.get().pk})
    assert "secret" not in response.content.decode() and "private step" not in response.content.decode()
    assert [row.pk for row in response.context["cl"].result_list] == []
    assert listed(client, children_of=own_step.pk) == []


def test_a_join_links_the_list_of_its_children(login, viewer) -> None:
    parent = make_instance()
    join = join_of(parent, "p1", "p2", "p3")
    other = make_step(parent, "pages", count=2, remaining=1, **OPEN)
    make_child(make_step(parent, "pages", scope="pages-2", count=1, **OPEN), "other")
    single = make_step(parent, "cover", **OPEN)
    make_child(single, "c1")
    WorkflowInstance.objects.filter(instance_id="p2").update(status=S.COMPLETE)
    client = login(viewer)
    assert f"{LIST}?children_of={join.pk}" in page_of(client, parent)
    assert listed(client, children_of=join.pk) == ["p3", "p2", "p1"]
    assert listed(client, children_of=join.pk, status__exact="waiting") == ["p3", "p1"]
    assert listed(client, children_of=other.pk) == ["other"]
    assert listed(client, children_of=single.pk) == ["c1"]
    page = client.get(LIST, {"children_of": join.pk}).content.decode()
    assert f"{parent.label}, pages-1" in page, "it says whose children they are"
    for wrong in ("x", "0", "9" * 40, str(make_step(parent, "do").pk)):
        assert listed(client, children_of=wrong) == []
    assert "children_of" not in client.get(LIST).content.decode(), "offered only where a link has asked for it"


def test_children_can_be_left_out_of_the_list(login, viewer) -> None:
    """One parent can put hundreds of them on top."""
    parent = make_instance(instance_id="parent")
    join_of(parent, "p1", "p2")
    client = login(viewer)
    assert listed(client, parent="without") == ["parent"]
    assert listed(client, parent="only") == ["p2", "p1"]
    assert listed(client) == listed(client, parent="nonsense") == ["p2", "p1", "parent"]


def test_the_page_of_a_parent_costs_the_same_for_any_number_of_children(login, viewer) -> None:
    client = login(viewer)

    def queries(number: int) -> int:
        parent = make_instance()
        join_of(parent, *(f"{parent.pk}-{name}" for name in range(number)))
        with CaptureQueriesContext(connection) as captured:
            page_of(client, parent)
        return len(captured)

    queries(1)
    assert queries(25) == queries(1)
