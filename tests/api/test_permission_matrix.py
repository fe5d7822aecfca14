"""Who may do what: every URL, every method, every kind of user (cases SEC-03, SEC-16)."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from durableflow.api import urls
from durableflow.models import PendingEvent
from tests.api.conftest import ROLES, snapshot

pytestmark = pytest.mark.django_db
EVERYBODY = dict.fromkeys(ROLES, 200) | {"anonymous": 403}
SEES = EVERYBODY | dict.fromkeys(("stranger", "starter", "decider", "planner"), 404)
REFUSED = dict.fromkeys(("creator", "viewer", "operator", "overrider", "remover"), 403)
OPERATES = SEES | REFUSED | {"operator": 200}
PLANS = EVERYBODY | dict.fromkeys(set(ROLES) - {"anonymous", "planner", "superuser"}, 404)
STARTS = dict.fromkeys(ROLES, 403) | {"starter": 201, "superuser": 201}
NOT_THERE = dict.fromkeys(ROLES, 404) | {"anonymous": 403}
SCHEDULE = {"workflow": "api-order", "name": "weekly", "cron": "0 9 * * MON"}
ONLY_LINK = dict.fromkeys(ROLES, 403)

# route: method: (body, role: status). Not logged in: 403 everywhere but for the probe, because session authentication comes first.
MATRIX: dict[str, dict[str, tuple[Any, dict[str, int]]]] = {
    "workflows": {"get": (None, EVERYBODY)},
    "workflow": {"get": (None, SEES | {"starter": 200})},
    "instances": {
        "get": (None, EVERYBODY),
        "post": ({"params": {}}, STARTS),
    },
    "batch": {"get": (None, NOT_THERE), "delete": (None, NOT_THERE), "post": ({"count": 2}, STARTS)},
    "batch-delete": {"post": ({"instance_ids": ["order-1"]}, EVERYBODY)},
    "bulk": {
        "get": (None, NOT_THERE),
        "delete": (None, NOT_THERE),
        "post": ({"action": "pause", "filter": {}}, EVERYBODY),
    },
    "instance": {"get": (None, SEES), "delete": (None, SEES | REFUSED | dict.fromkeys(("remover", "superuser"), 204))},
    "steps": {"get": (None, SEES)},
    "step-output": {"get": (None, SEES)},
    "complete-step": {"post": ({"output": 7}, SEES | REFUSED | {"overrider": 200})},
    "history": {"get": (None, SEES)},
    "history-stream": {"get": (None, {role: 501 if code == 200 else code for role, code in SEES.items()})},  # no ASGI
    "retry": {"post": ({}, OPERATES)},
    "pause": {"post": ({}, OPERATES)},
    "resume": {"post": ({}, OPERATES)},
    "restart": {"post": ({}, OPERATES)},
    "terminate": {"post": ({}, OPERATES)},
    "events": {"post": ({"type": "note"}, OPERATES | {"operator": 202, "superuser": 202})},
    "schedules": {
        "get": (None, PLANS | dict.fromkeys([role for role in ROLES if PLANS[role] == 404], 403)),
        "post": (SCHEDULE, dict.fromkeys(ROLES, 403) | {"planner": 201, "superuser": 201}),
    },
    "schedule": {
        "get": (None, PLANS),
        "patch": ({"cron": "0 3 * * *"}, PLANS),
        "delete": (None, PLANS | {"planner": 204, "superuser": 204}),
    },
    "pause-schedule": {"post": ({}, PLANS)},
    "resume-schedule": {"post": ({}, PLANS)},
    "run-schedule": {"post": ({}, PLANS | {"planner": 403, "superuser": 201})},
    "pending-events": {"get": (None, EVERYBODY)},
    "pending-event": {"get": (None, SEES | {"decider": 200})},
    "decide-pending-event": {
        "post": (
            {"approved": True, "data": {"amount": "5"}},
            OPERATES | {"operator": 403, "decider": 200},
        )
    },
    "health": {"get": (None, dict.fromkeys(ROLES, 200))},
    "schema": {"get": (None, EVERYBODY)},
    "decide": {
        "get": (None, ONLY_LINK | {"decider": 200, "anonymous": 302}),
        "post": (None, ONLY_LINK | {"decider": 400, "anonymous": 302}),
    },
}
# Verbs over many answer 200, and say for each what became of it.
ACTED = {"batch-delete": ("remover", "superuser"), "bulk": ("operator", "superuser")}
STATUS_FOR = {"retry": "errored", "resume": "paused"}
CASES = [(name, method, role) for name, methods in MATRIX.items() for method in methods for role in ROLES]
OTHERS = [
    (name, method)
    for name, methods in MATRIX.items()
    for method in ("put", "patch", "delete", "options", "post", "get")
    if name != "decide" and method not in methods
]


@pytest.fixture
def target(order, wait_of, step_of, schedule_of, people):
    """An instance of the creator's in the status that a route needs, with a step and an open approval."""

    def make(name: str) -> tuple[str, PendingEvent]:
        status = STATUS_FOR.get(name, "waiting")
        ended = {"finished": timezone.now()} if status == "errored" else {}
        row = order(status=status, **ended)
        step = step_of(row, raw_output=7)
        unfinished = step_of(row, "ship", status="pending", finished=None)
        wait = wait_of(row, form="tests.api.flows.RefundForm")
        wait.allow_requester = False
        wait.save()
        schedule = schedule_of()
        if name == "resume-schedule":
            schedule.pause()
        arguments: dict[str, list[Any]] = {
            "workflows": [],
            "schema": [],
            "health": [],
            "pending-events": [],
            "schedules": [],
            **{key: [schedule.pk] for key in ("schedule", "pause-schedule", "resume-schedule", "run-schedule")},
            **{key: [row.workflow] for key in ("batch", "batch-delete", "bulk")},
            "workflow": [row.workflow],
            "instances": [row.workflow],
            "complete-step": [row.workflow, row.instance_id, unfinished.pk],
            "step-output": [row.workflow, row.instance_id, step.pk],
            "pending-event": [wait.pk],
            "decide-pending-event": [wait.pk],
            "decide": [wait.decision_url(people("decider")).rstrip("/").rpartition("/")[2]],
        }
        found = arguments.get(name, [row.workflow, row.instance_id])
        return reverse(f"durableflow-api:{name}", args=found), wait

    return make


def test_the_matrix_knows_every_route() -> None:
    """SEC-03: a route that is added has to say here who may use it."""
    assert {pattern.name for pattern in urls.urlpatterns} == set(MATRIX)


@pytest.mark.parametrize(("name", "method", "role"), CASES)
def test_who_may_do_what(name, method, role, target, client_of) -> None:
    """SEC-03: foreign rows are 404, visible ones without the right 403; a refusal changes nothing."""
    url, _ = target(name)
    body, expected = MATRIX[name][method]
    client = client_of(role)
    before = snapshot()
    response = getattr(client, method)(url, body)
    assert response.status_code == expected[role], response.content
    if response.status_code >= 300 or method == "get" or role not in ACTED.get(name, ROLES):
        assert snapshot() == before
    else:
        assert snapshot() != before
    if response.status_code >= 400 and name != "decide":
        assert set(response.json()) >= {"code", "detail"}


@pytest.mark.parametrize(("name", "method"), OTHERS)
def test_only_commands_change_state(name, method, target, client_of) -> None:
    """SEC-16: no state is written, and a method that a route does not have is a 405 even for a superuser."""
    url, _ = target(name)
    before = snapshot()
    body = {"status": "complete", "output": 1, "params": 2, "steps": []}
    response = getattr(client_of("superuser"), method)(url, *([] if method == "get" else [body]))
    assert response.status_code == 405
    assert response.json()["code"] == "method_not_allowed"
    assert getattr(client_of("anonymous"), method)(url).status_code == 403
    assert snapshot() == before


@pytest.mark.parametrize("name", ["batch", "bulk"])
def test_an_instance_may_have_the_name_of_a_verb_over_many(name, client_of, order) -> None:
    """SEC-14: what is no POST is about that instance."""
    order(name)
    url = f"/api/workflows/api-order/instances/{name}/"
    assert client_of("viewer").get(f"{url}?wait=0").json()["instance_id"] == name
    assert client_of("operator").post(f"{url}pause/").json()["status"] == "paused"
    assert client_of("viewer").delete(url).status_code == 403
    assert client_of("remover").delete(url).status_code == 204
    assert client_of("viewer").get(url).status_code == 404


def test_inactive_users_are_nobody(client_of, people, order) -> None:
    """SEC-03: a session that outlives its user's account shows nothing."""
    order()
    client = client_of("viewer")
    user = people("viewer")
    user.is_active = False
    user.save()
    assert client.get("/api/workflows/api-order/instances/order-1/").status_code == 403


def test_a_token_works_as_a_session_does(people, order, db) -> None:
    """The project's own authentication is used: here tokens beside sessions; a bad token is told so."""
    order()
    token = Token.objects.create(user=people("viewer"))
    url = "/api/workflows/api-order/instances/order-1/"
    assert APIClient().get(url, headers={"Authorization": f"Token {token.key}"}).status_code == 200
    refused = APIClient().get(url, headers={"Authorization": "Token wrong"})
    assert (refused.status_code, refused.json()["code"]) == (403, "authentication_failed")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "workflows/api-order/instances/order-1/terminate/", {}),
        ("delete", "workflows/api-order/instances/order-1/", None),
        ("post", "workflows/api-order/instances/batch/", {"count": 1}),
        ("post", "workflows/api-order/instances/bulk/", {"action": "pause", "filter": {}}),
        ("patch", "schedules/{schedule}/", {"enabled": False}),
        ("delete", "schedules/{schedule}/", None),
    ],
)
def test_sessions_need_a_csrf_token(method, path, body, people, order, schedule_of) -> None:
    """SEC-01: a form on another site cannot act for a logged-in user."""
    order()
    url = f"/api/{path.format(schedule=schedule_of().pk)}"
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(people("superuser"))
    before = snapshot()
    assert getattr(client, method)(url, body, format="json").status_code == 403
    assert snapshot() == before
