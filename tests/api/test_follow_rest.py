"""Following over REST by asking again and again, held until there is something (api.md; reference 12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from rest_framework.test import APIClient

from durableflow.core import hearing
from durableflow.models import WorkflowInstance, watching
from tests.integration.follow_flows import FollowedOrder, FollowedSteps
from tests.support.concurrency import Task, eventually
from tests.support.engine import drain_all

pytestmark = pytest.mark.django_db(transaction=True)
ORDERS = "/api/workflows/followed-order/instances/"


@pytest.fixture
def viewer(client_of: Callable[[str], APIClient]) -> APIClient:
    """Somebody who may see everything."""
    return client_of("viewer")


@pytest.fixture(autouse=True)
def _notices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MARK_EVERY", 3600.0)


def listened(row: WorkflowInstance) -> bool:
    """Whether somebody waits for notices of ``row``."""
    hub = hearing.hub_of("default")
    if hub is None or hub.deaf or hub._marks:
        return False
    row.refresh_from_db()
    return row.pk in hub._members and (connection.vendor == "sqlite" or row.followed_until is not None)


def test_what_is_there_comes_at_once(viewer: APIClient) -> None:
    """``?wait=`` holds nothing back."""
    row = FollowedOrder.create(instance_id="rest-1")
    body = viewer.get(f"{ORDERS}rest-1/history/?wait=60").json()
    assert [entry["type"] for entry in body["results"]] == ["workflow_queued"]
    assert (body["cursor"], body["ended"]) == (row.history.get().pk, False)


def test_the_next_entry_is_waited_for(viewer: APIClient) -> None:
    """Scenario L over REST: cursor by cursor, nothing twice, nothing missed, until it has ended."""
    row = FollowedOrder.create(instance_id="rest-2")
    seen: list[dict[str, Any]] = []

    def ask() -> None:
        body: dict[str, Any] = {"cursor": 0, "ended": False}
        while not body["ended"]:
            body = viewer.get(f"{ORDERS}rest-2/history/?after={body['cursor']}&wait=60").json()
            seen.extend(body["results"])

    task = Task(ask)
    eventually(lambda: listened(row), "listening")
    drain_all()
    eventually(lambda: [entry for entry in seen if entry["type"] == "wait_started"], "the wait")
    row.send_event("go", 1)
    drain_all()
    task.result()
    assert seen == viewer.get(f"{ORDERS}rest-2/history/").json()["results"]
    assert seen[-1]["type"] == "workflow_completed"


def test_types_are_waited_for(viewer: APIClient) -> None:
    """Other entries do not end the wait."""
    row = FollowedOrder.create(instance_id="rest-3")
    task = Task(lambda: viewer.get(f"{ORDERS}rest-3/history/?types=workflow_terminated&wait=60").json())
    eventually(lambda: listened(row), "listening")
    drain_all()
    assert not task.done
    row.terminate()
    body = task.result()
    assert ([entry["type"] for entry in body["results"]], body["ended"]) == (["workflow_terminated"], True)


def test_the_time_is_over(viewer: APIClient) -> None:
    """Then the list is empty, and the cursor stays."""
    row = FollowedOrder.create(instance_id="rest-4")
    last = row.history.get().pk
    body = viewer.get(f"{ORDERS}rest-4/history/?after={last}&wait=0.05").json()
    assert body == {"results": [], "cursor": last, "next": None, "ended": False}


def test_an_instance_that_has_ended_is_not_waited_for(viewer: APIClient) -> None:
    """Nothing would come."""
    row = FollowedSteps.create(1, instance_id="rest-5")
    drain_all()
    url = "/api/workflows/followed-steps/instances/rest-5/history/"
    body = viewer.get(f"{url}?after={row.history.latest('id').pk}&wait=60").json()
    assert (body["results"], body["ended"]) == ([], True)
    assert viewer.get(f"{url}?limit=1").json()["ended"] is False


def test_one_that_is_deleted_meanwhile(viewer: APIClient) -> None:
    """It is gone, like one that never was."""
    row = FollowedOrder.create(instance_id="rest-6")
    task = Task(lambda: viewer.get(f"{ORDERS}rest-6/history/?after={row.history.get().pk}&wait=60").status_code)
    eventually(lambda: listened(row), "listening")
    WorkflowInstance.objects.get(pk=row.pk).delete()
    assert task.result() == 404


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "inf", "x", ""])
def test_wrong_waits(wait: str, viewer: APIClient) -> None:
    """They are refused, not guessed."""
    FollowedOrder.create(instance_id="rest-7")
    response = viewer.get(f"{ORDERS}rest-7/history/?wait={wait}")
    assert (response.status_code, list(response.json()["fields"])) == (400, ["wait"])


def test_a_stream_needs_asgi(viewer: APIClient) -> None:
    """Without it the answer says what to do instead; who may not see the instance is told nothing."""
    FollowedOrder.create(instance_id="rest-8")
    response = viewer.get(f"{ORDERS}rest-8/history/stream/", headers={"accept": "text/event-stream"})
    assert (response.status_code, response.json()["code"]) == (501, "no_streaming")
    assert "?after=ID&wait=20" in response.json()["detail"]
