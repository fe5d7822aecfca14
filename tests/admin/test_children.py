"""Children of an instance as staff see them before they end it (design 7, 10)."""

from __future__ import annotations

import pytest
from django.urls import reverse

from durableflow.admin.bulk import GIVEN
from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models import WorkflowInstance
from tests.admin.acting import LIST, select, text_of, verb_url
from tests.admin.rows import S, make_instance, make_step
from tests.admin.test_rollback import page_of

pytestmark = pytest.mark.django_db
PAGE = "admin:durableflow_workflowinstance_change"


def test_terminate_says_what_becomes_of_children(login, operator, django_assert_max_num_queries) -> None:
    parent = make_instance()
    pages = make_step(parent, "pages", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None, remaining=12)
    for number in range(12):
        make_instance(workflow="page", instance_id=f"p{number}", parent_step=pages, on_parent_end="terminate")
    make_instance(workflow="page", instance_id="over", parent_step=pages, on_parent_end="terminate", status=S.COMPLETE)
    mail = make_step(parent, "mail", kind=StepKind.CHILD)
    make_instance(workflow="mail", instance_id="goes-on", parent_step=mail, on_parent_end="leave")
    client = login(operator)
    with django_assert_max_num_queries(30):
        page = text_of(client.get(verb_url("terminate", parent)))
    ending = page.split("Child workflows that end with it: ")[1].split("</li>")[0]
    assert ending.startswith("12 (") and ending.endswith("page/p9</a> and 2 more)")
    first = WorkflowInstance.objects.get(instance_id="p0")
    assert f'<a href="{reverse(PAGE, args=[first.pk])}">page/p0</a>, ' in ending and "page/p10" not in ending
    staying = page.split("Child workflows that go on: ")[1].split("</li>")[0]
    goes_on = WorkflowInstance.objects.get(instance_id="goes-on")
    assert staying == f'1 (<a href="{reverse(PAGE, args=[goes_on.pk])}">mail/goes-on</a>)' and "page/over" not in page


def test_a_restart_names_children_whose_ids_stay_taken(login, operator) -> None:
    """CHD-02: those of the steps that run again, whatever their status. Ids that derive from their calls are new in each run."""
    parent = make_instance()
    derived = make_step(parent, "derived", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None)
    for end in ("", "-2", "-r1", "-12-r3"):
        make_instance(workflow="page", instance_id=f"{'0a' * 16}{end}", parent_step=derived, on_parent_end="terminate")
    client, told = login(operator), "have their ids from the program keep them: "
    assert told not in text_of(client.get(verb_url("restart", parent)))
    step = make_step(parent, "mail", kind=StepKind.CHILD)
    make_instance(workflow="mail", instance_id="march", parent_step=step, status=S.COMPLETE)
    after = make_step(parent, "after")
    for address in (verb_url("restart", parent), f"{verb_url('restart_from', parent)}?step={step.pk}"):
        page = text_of(client.get(address))
        given = page.split(told)[1].split("</li>")[0]
        assert given.startswith("1 (<a href") and "mail/march</a>). The new run can start none" in given
    assert told not in text_of(client.get(f"{verb_url('restart_from', parent)}?step={after.pk}"))


def test_the_list_action_says_that_ids_of_children_stay_taken(login, operator) -> None:
    """CHD-02: of the present run; a child of an earlier one was in the way of that already."""
    client, parents = login(operator), [make_instance(status=S.COMPLETE, run_number=2) for _ in range(3)]
    for parent, run, instance_id in zip(parents, (2, 1, 2), ("0a" * 16, "january", "march"), strict=True):
        step = make_step(parent, "mail", kind=StepKind.CHILD, run_number=run)
        make_instance(workflow="mail", instance_id=instance_id, parent_step=step, status=S.COMPLETE)
    assert str(GIVEN) not in text_of(select(client, "restart", parents[:2]))
    assert str(GIVEN) in text_of(select(client, "restart", parents))
    for parent in parents:
        type(parent).objects.filter(pk=parent.pk).update(status=S.WAITING)
    assert str(GIVEN) not in text_of(select(client, "pause", parents))


def test_names_of_children_are_for_those_who_may_see_them(login, user_factory) -> None:
    """Design 9: the number is no secret to who may end the parent, the names are."""
    owner = user_factory("owner", permissions=["durableflow.operate_workflowinstance"], is_staff=True)
    parent = make_instance(created_by=owner)
    step = make_step(parent, "pages", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None)
    make_instance(workflow="page", instance_id="not-for-you", parent_step=step, on_parent_end="terminate")
    response = login(owner).get(verb_url("terminate", parent))
    page = text_of(response)
    assert response.status_code == 200 and "Child workflows that end with it: 1<" in page and "not-for-you" not in page


def test_the_list_action_says_how_many_children_end(login, operator) -> None:
    """The ones that are selected themselves are no news."""
    parents = [make_instance(), make_instance()]
    rows = []
    for number, parent in enumerate(parents):
        step = make_step(parent, "pages", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None)
        rows.append(make_instance(instance_id=f"ends-{number}", parent_step=step, on_parent_end="terminate"))
        make_instance(instance_id=f"goes-on-{number}", parent_step=step, on_parent_end="leave")
        make_instance(parent_step=step, on_parent_end="terminate", status=S.COMPLETE)
    client = login(operator)

    def said(action: str, *selected: WorkflowInstance) -> str:
        return text_of(client.post(LIST, {"action": action, "_selected_action": [row.pk for row in selected]}))

    page = said("terminate_selected", *parents)
    assert "2 child workflows end with them." in page and "2 child workflows go on." in page
    page = said("terminate_selected", *parents, rows[0])
    assert "1 child workflow ends with them." in page
    page = said("terminate_selected", rows[0])
    assert "ends with them" not in page and "go on." not in page
    for parent in parents:
        WorkflowInstance.objects.filter(pk=parent.pk).update(status=S.PAUSED, blocked="Why.")
    assert "end with them" not in said("resume_selected", *parents)


def test_an_instance_without_children_says_nothing_of_them(login, operator) -> None:
    page = text_of(login(operator).get(verb_url("terminate", make_instance())))
    assert "Child workflows" not in page


def test_a_join_has_no_attempts(login, operator) -> None:
    """What its record counts are its children."""
    parent = make_instance()
    make_step(parent, "pages", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None, attempts=23, remaining=3)
    page = page_of(login(operator), parent)
    assert "pages-1" in page and ">23<" not in page
