"""The session with curl of the documentation: two people, their tokens, and the engine behind (api.md)."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from durableflow.testing import Harness
from tests.conftest import UserFactory

API = "/api/workflows"
ORDER = f"{API}/api-checkout/instances/order-42/"


def with_token(user: Any) -> APIClient:
    client = APIClient()
    client.default_format = "json"
    client.credentials(HTTP_AUTHORIZATION=f"Token {Token.objects.create(user=user).key}")
    return client


@pytest.fixture
def customer_api(user_factory: UserFactory) -> APIClient:
    permissions = ["durableflow.start_workflowinstance", "durableflow.operate_workflowinstance"]
    return with_token(user_factory("bob", permissions=permissions))


@pytest.fixture
def boss_api(user_factory: UserFactory) -> APIClient:
    return with_token(user_factory("ada", groups=["managers"]))


def test_a_checkout(workflows: Harness, customer_api: APIClient, boss_api: APIClient) -> None:
    """Start, watch, be barred, be refused, decide, be late, be too late."""
    start = {"instance_id": "order-42", "params": {"cart_id": 42}}
    started = customer_api.post(f"{API}/api-checkout/instances/", start, headers={"Idempotency-Key": "cart-42"})
    assert started.status_code == 201
    assert started.json() == {
        "workflow": "api-checkout", "instance_id": "order-42", "status": "queued", "url": f"http://testserver{ORDER}",
    }  # fmt: skip
    workflows.run_due()

    seen = customer_api.get(f"{ORDER}?wait=20").json()
    assert (seen["status"], seen["progress"]) == ("waiting", None)
    (wait,) = seen["waiting_for"]
    assert (wait["name"], bool(wait["deadline"])) == ("manager approval", True)
    decide = f"/api/pending-events/{wait['pending_event']}/decide/"
    mine = boss_api.get("/api/pending-events/?mine=true").json()["results"]
    assert [row["id"] for row in mine] == [wait["pending_event"]]

    barred = customer_api.post(decide, {"approved": True})
    assert (barred.status_code, barred.json()["code"]) == (403, "requester_barred")
    wrong = boss_api.post(decide, {"approved": True, "data": {"amount": "x"}})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid")
    assert wrong.json()["fields"] == {"amount": ["Enter a number."]}
    decided = boss_api.post(decide, {"approved": True, "data": {"amount": "600.00"}})
    assert (decided.status_code, decided.json()["approved"], decided.json()["by"]) == (200, True, "ada")
    again = boss_api.post(decide, {"approved": True, "data": {"amount": "600.00"}})
    assert (again.status_code, again.json()["code"], again.json()["by"]) == (409, "already_decided", "ada")
    assert again.json()["at"]

    workflows.run_due()
    done = customer_api.get(f"{ORDER}?wait=20").json()
    assert (done["status"], done["output"]) == ("complete", {"state": "paid", "by": "ada"})
    retry = customer_api.post(f"{ORDER}retry/")
    assert (retry.status_code, retry.json()["code"], retry.json()["status"]) == (409, "invalid_transition", "complete")
    repeated = customer_api.post(f"{API}/api-checkout/instances/", start, headers={"Idempotency-Key": "cart-42"})
    assert (repeated.status_code, repeated.json()) == (200, started.json())


def test_a_settlement(workflows: Harness, customer_api: APIClient, user_factory: UserFactory) -> None:
    """A provider delivers an event twice; the workflow gets it once (EVT-16)."""
    payments = f"{API}/api-payment/instances/"
    customer_api.post(payments, {"instance_id": "order-7"})
    workflows.run_due()
    event = {"type": "payment_settled", "payload": {"amount": 5}}
    answers = [
        customer_api.post(f"{payments}order-7/events/", event, headers={"Idempotency-Key": "evt_1"}) for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json()["waiting_for"] == ["payment_failed", "payment_settled"]
    workflows.run_due()
    assert customer_api.get(f"{payments}order-7/").json()["output"] == {"amount": 5}
    late = customer_api.post(f"{payments}order-7/events/", {"type": "payment_failed"})
    assert (late.status_code, late.json()["status"]) == (409, "complete")
