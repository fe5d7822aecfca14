"""Children of an instance as staff see them before they end it (design 7, 10)."""

from __future__ import annotations

import pytest

from durableflow.core.statuses import StepKind, StepStatus
from tests.admin.rows import S, make_instance, make_step
from tests.admin.test_rollback import page_of
from tests.admin.test_verbs import text_of, verb_url

pytestmark = pytest.mark.django_db


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
    assert "Child workflows that end with it: 12 (page/p0, page/p1," in page and "page/p9, …)" in page
    assert "page/over" not in page and "Child workflows that go on: 1 (mail/goes-on)" in page


def test_names_of_children_are_for_those_who_may_see_them(login, user_factory) -> None:
    """Design 9: the number is no secret to who may end the parent, the names are."""
    owner = user_factory("owner", permissions=["durableflow.operate_workflowinstance"], is_staff=True)
    parent = make_instance(created_by=owner)
    step = make_step(parent, "pages", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None)
    make_instance(workflow="page", instance_id="not-for-you", parent_step=step, on_parent_end="terminate")
    response = login(owner).get(verb_url("terminate", parent))
    page = text_of(response)
    assert response.status_code == 200 and "Child workflows that end with it: 1<" in page and "not-for-you" not in page


def test_an_instance_without_children_says_nothing_of_them(login, operator) -> None:
    page = text_of(login(operator).get(verb_url("terminate", make_instance())))
    assert "Child workflows" not in page


def test_a_join_has_no_attempts(login, operator) -> None:
    """What its record counts are its children."""
    parent = make_instance()
    make_step(parent, "pages", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None, attempts=23, remaining=3)
    page = page_of(login(operator), parent)
    assert "pages-1" in page and ">23<" not in page
