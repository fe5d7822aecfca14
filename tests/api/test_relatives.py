"""Parents and children over REST: a client can follow both ways (design 7, 9)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from durableflow.models import WorkflowInstance
from tests.api.conftest import ORDERS

pytestmark = pytest.mark.django_db
URL = f"{ORDERS}order-1/"
SERVER = "http://testserver"


def child_of(step: Any, order: Any, instance_id: str, **fields: Any) -> Any:
    row = order(instance_id, **fields)
    WorkflowInstance.objects.filter(pk=row.pk).update(parent_step=step, on_parent_end="terminate")
    return row


def test_a_client_follows_from_parent_to_child_and_back(client_of, order, step_of) -> None:
    parent = order()
    step = step_of(parent, "pages", kind="child", status="pending", finished=None, scope="pages-1", count=2)
    step_of(parent, "mail")
    child_of(step, order, "old", status="terminated")
    child_of(step, order, "page-2")
    client = client_of("viewer")
    assert client.get(URL).json()["parent"] is None
    first, second = client.get(f"{URL}steps/").json()["results"]
    assert first["child"] == {
        "workflow": "api-order",
        "instance_id": "page-2",
        "status": "waiting",
        "url": f"{SERVER}{ORDERS}page-2/",
    }
    assert second["child"] is None
    assert client.get(first["child"]["url"]).json()["parent"] == {
        "workflow": "api-order",
        "instance_id": "order-1",
        "step": "pages-1/pages-2",
        "url": f"{SERVER}{URL}",
    }


def test_relatives_that_are_not_for_the_user_are_null(client_of, order, step_of, people) -> None:
    """SEC-04."""
    hidden = order(created_by=people("viewer"))
    mine = child_of(step_of(hidden, kind="child"), order, "mine")
    child_of(step_of(mine, kind="child"), order, "hidden-child", created_by=people("viewer"))
    client = client_of("creator")
    assert client.get(f"{ORDERS}mine/").json()["parent"] is None
    (step,) = client.get(f"{ORDERS}mine/steps/").json()["results"]
    assert step["child"] is None


def test_children_cost_one_query_whatever_their_number(client_of, order, step_of) -> None:
    parent = order()
    client = client_of("viewer")

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(f"{URL}steps/").status_code == 200
        return len(captured)

    child_of(step_of(parent, kind="child"), order, "c-0")
    queries()
    few = queries()
    for number in range(1, 12):
        child_of(step_of(parent, kind="child", count=number + 1), order, f"c-{number}")
    assert queries() == few


def test_the_schema_knows_them(client_of) -> None:
    response = client_of("stranger").get("/api/schema/", headers={"Accept": "application/vnd.oai.openapi+json"})
    parts = response.json()["components"]["schemas"]
    assert {"workflow", "instance_id", "step", "url"} <= set(parts["ParentAnswer"]["properties"])
    assert {"workflow", "instance_id", "status", "url"} <= set(parts["ChildAnswer"]["properties"])
    assert "parent" in parts["InstanceAnswer"]["properties"] and "child" in parts["StepAnswer"]["properties"]
