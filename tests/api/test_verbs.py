"""Pause, resume, retry, terminate and restart over REST (cases SEC-10, LIF-03, LIF-06, LIF-17)."""

from __future__ import annotations

import pytest
from django.utils import timezone

from durableflow.models import HistoryEntry, WorkflowInstance
from tests.api.conftest import ORDERS, snapshot

pytestmark = pytest.mark.django_db
URL = f"{ORDERS}order-1/"
ENDED = ("complete", "errored", "terminated")
REFUSED = [
    *(("retry", status) for status in ("queued", "running", "waiting", "paused", "complete", "terminated")),
    *(("pause", status) for status in ("waiting_for_pause", "paused", "rolling_back", *ENDED)),
    *(("resume", status) for status in ("queued", "running", "waiting", "rolling_back", *ENDED)),
    *(("restart", status) for status in ("queued", "rolling_back")),
    *(("terminate", status) for status in ("rolling_back", *ENDED)),
]


@pytest.mark.parametrize(("verb", "before", "after"), [
    ("retry", "errored", "queued"), ("resume", "paused", "queued"), ("terminate", "waiting", "terminated"),
    ("restart", "complete", "queued"), ("restart", "running", "queued"),
    ("pause", "waiting", "paused"), ("pause", "running", "waiting_for_pause"), ("resume", "waiting_for_pause", "running"),
])  # fmt: skip
def test_verbs_leave_a_trace(verb, before, after, client_of, people, order) -> None:
    """SEC-10: who, when, why and through which door."""
    order(status=before, finished=timezone.now() if before in ENDED else None)
    response = client_of("operator").post(f"{URL}{verb}/", {"reason": "told so"})
    assert response.status_code == 200
    assert response.json() == {
        "workflow": "api-order", "instance_id": "order-1", "status": after, "url": f"http://testserver{URL}",
    }  # fmt: skip
    entry = HistoryEntry.objects.latest("id")
    assert (entry.actor, entry.actor_name, entry.via, entry.reason) == (
        people("operator"),
        "operator",
        "api",
        "told so",
    )
    shown = client_of("operator").get(f"{URL}history/").json()["results"][-1]
    assert (shown["actor"], shown["via"], shown["reason"]) == ("operator", "api", "told so")


@pytest.mark.parametrize(("verb", "status"), REFUSED)
def test_a_verb_that_does_not_fit_changes_nothing(verb, status, client_of, order) -> None:
    """409 names the status; a second click is such a verb."""
    order(status=status, finished=timezone.now() if status in ENDED else None)
    before = snapshot()
    response = client_of("operator").post(f"{URL}{verb}/")
    assert response.status_code == 409
    assert response.json()["code"] == "invalid_transition"
    assert response.json()["status"] == status
    assert f"is {status}" in response.json()["detail"]
    assert snapshot() == before


@pytest.mark.parametrize("verb", ["retry", "pause", "resume", "terminate", "restart"])
@pytest.mark.parametrize(
    "body", [{"force": True}, {"reason": 5.5 * 10**9, "x": 1}, {"reason": "\0"}, {"reason": []}, []]
)
def test_bad_bodies(verb, body, client_of, order) -> None:
    order(status="waiting")
    before = snapshot()
    response = client_of("operator").post(f"{URL}{verb}/", body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert snapshot() == before


def test_termination_closes_the_waits(client_of, order, wait_of) -> None:
    """LIF-03: a later decision is told so."""
    wait = wait_of(order())
    assert client_of("operator").post(f"{URL}terminate/").status_code == 200
    response = client_of("decider").post(f"/api/pending-events/{wait.pk}/decide/", {"approved": True})
    assert (response.status_code, response.json()["code"]) == (409, "cancelled")
    assert WorkflowInstance.objects.get().status == "terminated"


@pytest.mark.parametrize("verb", ["delete", "batch", "status", "bulk", "complete"])
def test_verbs_that_do_not_exist(verb, client_of, order) -> None:
    order()
    assert client_of("superuser").post(f"{URL}{verb}/").status_code == 404


def test_terminate_with_rollback(client_of, order) -> None:
    """LIF-17: with the flag what was done is undone first; on other verbs the flag is no known field."""
    row = order(status="waiting")
    row.steps.create(
        run_number=1,
        kind="do",
        name="flight",
        seq=1,
        execution=1,
        status="complete",
        attempts=1,
        config={"rollback": True},
    )
    client = client_of("operator")
    for verb in ("retry", "resume", "pause", "restart"):
        response = client.post(f"{URL}{verb}/", {"rollback": True})
        assert response.status_code == 400 and "rollback" in response.json()["fields"]
    assert client.post(f"{URL}terminate/", {"rollback": "yes"}).status_code == 400
    response = client.post(f"{URL}terminate/", {"rollback": True, "reason": "called off"})
    assert (response.status_code, response.json()["status"]) == (200, "rolling_back")
    shown = client.get(URL).json()
    assert (shown["status"], shown["rollback"], shown["available_actions"]) == ("rolling_back", None, [])
    (step,) = client.get(f"{URL}steps/").json()["results"]
    assert step["rollback"] == {"status": "pending", "attempts": 0, "error": None, "next_attempt_at": None}
    history = client.get(f"{URL}history/?types=rollback_started").json()["results"]
    assert [(entry["type"], entry["reason"]) for entry in history] == [("rollback_started", "called off")]
    assert client.post(f"{URL}terminate/").status_code == 409


def test_what_came_of_a_rollback(client_of, order) -> None:
    """LIF-16: what could not be undone is named, and ``retry`` is offered only then."""
    failed = {"outcome": "failed", "failed": ["flight-1"]}
    row = order(status="errored", finished=timezone.now(), rollback=failed)
    client = client_of("operator")
    shown = client.get(URL).json()
    assert (shown["rollback"], shown["available_actions"]) == (failed, ["restart", "retry"]) and "flight-1" in shown[
        "reason"
    ]
    WorkflowInstance.objects.filter(pk=row.pk).update(rollback={"outcome": "complete", "failed": []})
    shown = client.get(URL).json()
    assert (shown["rollback"], shown["available_actions"]) == ({"outcome": "complete", "failed": []}, ["restart"])
    response = client.post(f"{URL}retry/")
    assert (response.status_code, response.json()["code"]) == (409, "invalid_transition")
    assert "has been undone" in response.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (f"{ORDERS}order-1/pause/", {"reason": 5}, "reason"),
        (f"{ORDERS}order-1/restart/", {"from_step": {"name": "approval", "scope": 1.5}}, "from_step.scope"),
        (f"{ORDERS}batch/delete/", {"instance_ids": ["order-1"], "reason": 0}, "reason"),
        ("/api/schedules/", {"workflow": "api-order", "name": 7, "cron": "0 0 * * *"}, "name"),
    ],
)
def test_a_number_is_no_text(path, body, field, client_of, order) -> None:
    order()
    before = snapshot()
    response = client_of("superuser").post(path, body)
    assert (response.status_code, list(response.json()["fields"])) == (400, [field])
    assert snapshot() == before
