"""Sending events over REST (cases EVT-08, EVT-14, EVT-16)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from durableflow.models import SentEvent
from tests.api.conftest import ORDERS, snapshot

pytestmark = pytest.mark.django_db
URL = f"{ORDERS}order-1/events/"


@pytest.fixture
def operator(client_of):
    return client_of("operator")


def post(client: Any, body: Any, key: str | None = None) -> Any:
    return client.post(URL, body, format="json", headers={} if key is None else {"Idempotency-Key": key})


def test_an_accepted_event(operator, people, order, wait_of) -> None:
    wait_of(order(), "outcome", types=["payment_settled", "payment_failed"])
    response = post(operator, {"type": "payment_settled", "payload": {"amount": 5}})
    row = SentEvent.objects.get()
    assert response.status_code == 202
    assert response.json() == {
        "id": row.pk, "duplicate": False, "status": "waiting", "waiting_for": ["payment_failed", "payment_settled"],
    }  # fmt: skip
    assert (row.payload, row.sent_by, row.sent_by_name, row.via) == (
        {"amount": 5},
        people("operator"),
        "operator",
        "api",
    )


def test_a_type_that_nobody_waits_for_is_kept_and_told(operator, order, wait_of) -> None:
    """EVT-08: exact match only; the answer lists what is waited for now."""
    row = order()
    wait_of(row, "outcome", types=["approved"])
    response = post(operator, {"type": "Approved"})
    assert (response.status_code, response.json()["waiting_for"]) == (202, ["approved"])
    sent = SentEvent.objects.get()
    assert (sent.type, sent.consumed_by) == ("Approved", "")


@pytest.mark.parametrize("status", ["complete", "errored", "terminated"])
def test_an_ended_instance_takes_no_events(status, operator, order) -> None:
    """EVT-14: 409 with the status, nothing stored."""
    order(status=status, finished=timezone.now())
    before = snapshot()
    response = post(operator, {"type": "note"})
    assert response.status_code == 409
    assert (response.json()["code"], response.json()["status"]) == ("invalid_transition", status)
    assert f"api-order/order-1 is {status}" in response.json()["detail"]
    assert snapshot() == before


def test_an_unknown_instance_takes_no_events(operator, db) -> None:
    """EVT-14."""
    assert post(operator, {"type": "note"}).status_code == 404
    assert not any(snapshot())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"type": ""},
        {"type": "a b"},
        {"type": "-x"},
        {"type": None},
        {"type": 1},
        {"type": "a", "data": 1},
        {"type": "a", "payload": "\0"},
    ],
)
def test_bad_events(body, operator, order) -> None:
    order()
    before = snapshot()
    response = post(operator, body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert snapshot() == before


def test_too_large_payloads(operator, order) -> None:
    """SER-06."""
    order()
    before = snapshot()
    for body in (
        {"type": "a", "payload": "x" * 1024 * 1024},
        {"type": "a", "payload": "x" * 7_000_000},
        {"type": "x" * 101},
    ):
        response = post(operator, body)
        assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert snapshot() == before


def test_a_key_makes_an_event_safe_to_repeat(operator, order) -> None:
    """EVT-16: the same event under the same key is the first one, also after the end; another one is a 409."""
    row = order()
    first = post(operator, {"type": "note", "payload": {"a": 1}}, "evt_1").json()
    again = post(operator, {"type": "note", "payload": {"a": 1}}, "evt_1")
    assert (again.status_code, again.json()) == (202, first | {"duplicate": True})
    for other in ({"type": "note", "payload": {"a": 2}}, {"type": "other", "payload": {"a": 1}}):
        response = post(operator, other, "evt_1")
        assert (response.status_code, response.json()["code"]) == (409, "idempotency_conflict")
    type(row).objects.update(status="complete", finished=timezone.now())
    again = post(operator, {"type": "note", "payload": {"a": 1}}, "evt_1")
    assert (again.status_code, again.json()["id"], again.json()["status"]) == (202, first["id"], "complete")
    assert SentEvent.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_parallel_deliveries_are_one_event(client_of, order) -> None:
    """EVT-16: a provider that delivers eight times at once; each sees the same id, one of them is the first."""
    order()
    clients = [client_of("operator") for _ in range(8)]

    def run(client: Any) -> Any:
        try:
            return post(client, {"type": "note", "payload": [1]}, "evt_1")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(run, clients))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(answer.json()["duplicate"] for answer in answers) == [False] + [True] * 7
    assert SentEvent.objects.count() == 1
