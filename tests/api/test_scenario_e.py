"""Scenario E over REST: starting, the life cycle with the real verbs, deleting (reference 26, E1 and E4; E6 is in test_batch).

Cases LIF-02, LIF-06, LIF-07, LIF-12.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections

from durableflow import drain
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from tests.api import flows

pytestmark = pytest.mark.django_db
STORIES = "/api/workflows/api-story/instances/"
URL = f"{STORIES}s-1/"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "ran", [])
    monkeypatch.setattr(flows, "inside", [])


@pytest.fixture
def client(client_of) -> Any:
    return client_of("superuser")


def status_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["status"]


def test_e1_start_and_ask(workflows: Harness, client) -> None:
    """Without an id a UUID comes back with the status; an unknown id is a clean error; the same id again is a 409 (LIF-12)."""
    started = client.post(STORIES)
    assert status_of(started) == (201, "queued") and len(started.json()["instance_id"]) == 36
    workflows.run_due()
    assert status_of(client.get(started.json()["url"])) == (200, "waiting")
    missing = client.get(f"{STORIES}nobody/")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    workflows.advance("1 hour")
    again = client.post(STORIES, {"instance_id": started.json()["instance_id"]})
    assert (again.status_code, again.json()["code"]) == (409, "already_exists")


def test_e4_pause_and_resume(workflows: Harness, client) -> None:
    """In a sleep at once; in a running step when its body has ended, whose result is kept."""
    client.post(STORIES, {"instance_id": "s-1"})
    workflows.run_due()
    assert status_of(client.post(f"{URL}pause/")) == (200, "paused")
    assert status_of(client.post(f"{URL}pause/")) == (409, "paused")
    workflows.advance("2 hours")
    assert status_of(client.post(f"{URL}resume/")) == (200, "queued")
    assert status_of(client.post(f"{URL}resume/")) == (409, "queued")
    seen: list[tuple[int, str]] = []
    flows.inside.append(lambda: seen.append(status_of(client.post(f"{URL}pause/", {"reason": "stop"}))))
    workflows.run_due()
    assert status_of(client.get(URL)) == (200, "waiting") and not seen, "the nap had an hour left"
    workflows.advance("1 hour")
    assert seen == [(200, "waiting_for_pause")]
    shown = client.get(URL).json()
    assert (shown["status"], flows.ran) == ("paused", ["one", "two"])
    assert shown["available_actions"] == ["delete", "restart", "resume", "send_event", "terminate"]
    told = client.get(f"{URL}history/").json()["results"]
    assert [entry["type"] for entry in told if entry["reason"] == "stop"] == [
        "workflow_waiting_for_pause", "workflow_paused",
    ]  # fmt: skip
    client.post(f"{URL}resume/")
    workflows.run_due()
    assert client.get(URL).json()["output"] == ["one 1", "two 1", "three 1"]
    for verb in ("pause", "resume", "terminate", "retry"):
        assert status_of(client.post(f"{URL}{verb}/")) == (409, "complete")


def test_e4_terminate_and_restart_while_a_body_runs(workflows: Harness, client) -> None:
    """LIF-07: what the old body gives is dropped; only the new run counts."""
    client.post(STORIES, {"instance_id": "s-1"})
    workflows.run_due()
    seen: list[tuple[int, str]] = []
    flows.inside.append(lambda: seen.append(status_of(client.post(f"{URL}restart/"))))
    workflows.advance("1 hour")
    assert seen == [(200, "queued")] and client.get(URL).json()["run_number"] == 2
    flows.inside.append(lambda: seen.append(status_of(client.post(f"{URL}terminate/"))))
    workflows.advance("1 hour")
    assert seen[1:] == [(200, "terminated")]
    assert status_of(client.get(URL)) == (200, "terminated") and client.get(URL).json()["output"] is None
    assert "three" not in flows.ran
    assert status_of(client.post(f"{URL}restart/")) == (200, "queued")
    assert status_of(client.post(f"{URL}restart/")) == (409, "queued")


def test_e4_delete_while_a_body_runs(workflows: Harness, client) -> None:
    """LIF-13: the id is free at once, and the old body harms the new instance in nothing."""
    client.post(STORIES, {"instance_id": "s-1"})
    workflows.run_due()
    seen: list[int] = []

    def anew() -> None:
        seen.append(client.delete(URL).status_code)
        seen.append(client.post(STORIES, {"instance_id": "s-1"}).status_code)

    flows.inside.append(anew)
    workflows.advance("1 hour")
    assert seen == [204, 201]
    workflows.run_due()
    workflows.advance("1 hour")
    assert client.get(URL).json()["output"] == ["one 2", "two 2", "three 1"]
    client.delete(URL)
    assert client.get(URL).status_code == client.delete(URL).status_code == 404


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("moment", ["before", "beside"])
def test_lif_02_terminate_in_the_instant_of_the_end(moment, client_of, people) -> None:
    """Either 200 and terminated, or 409 and complete: never 200 and complete."""
    client = client_of("superuser")
    client.post("/api/workflows/api-quick/instances/", {"instance_id": "q"})
    url = "/api/workflows/api-quick/instances/q/"
    running, go = threading.Event(), threading.Event()
    flows.gates[:] = [running, go]

    def work() -> None:
        try:
            drain(seconds=0.1)
        finally:
            connections.close_all()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert running.wait(30)
        if moment == "beside":
            go.set()  # the body returns while the request is on its way
        answer = status_of(client.post(f"{url}terminate/"))
    finally:
        go.set()
        worker.join()
    status = WorkflowInstance.objects.get().status
    if moment == "before":
        assert (answer, status) == ((200, "terminated"), "terminated")
    else:
        assert (answer, status) in [((200, "terminated"), "terminated"), ((409, "complete"), "complete")]
