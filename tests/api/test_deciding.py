"""Deciding pending events over REST (design 8; cases EVT-10, EVT-13, SEC-05, SEC-10)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from durableflow.models import PendingEvent, SentEvent
from tests.api.conftest import snapshot

pytestmark = pytest.mark.django_db
FORM = "tests.api.flows.RefundForm"
GOOD = {"approved": True, "data": {"amount": "600.00"}}


@pytest.fixture
def decider(client_of):
    return client_of("decider")


def decide(client: Any, wait: PendingEvent, body: Any) -> Any:
    return client.post(f"/api/pending-events/{wait.pk}/decide/", body, format="json")


def test_a_decision(decider, people, order, wait_of) -> None:
    wait = wait_of(order(), form=FORM)
    response = decide(decider, wait, {"approved": True, "data": {"amount": "600.00"}, "comment": "fine"})
    assert response.status_code == 200
    body = response.json()
    wait.refresh_from_db()
    assert body.pop("at") == wait.decided_at.isoformat().replace("+00:00", "Z")
    assert body == {
        "approved": True, "by": "decider", "via": "api", "comment": "fine",
        "data": {"amount": "600.00", "day": None, "tags": [], "note": ""},
    }  # fmt: skip
    assert (wait.status, wait.decided_by, wait.data["amount"]) == ("received", people("decider"), Decimal("600.00"))
    sent = SentEvent.objects.get()
    assert (sent.kind, sent.pending_event, sent.sent_by_name, sent.via) == ("decision", wait, "decider", "api")
    shown = decider.get(f"/api/pending-events/{wait.pk}/").json()
    assert (shown["status"], shown["may_decide"], shown["decision"]["by"]) == ("received", False, "decider")


def test_a_rejection(decider, order, wait_of) -> None:
    wait = wait_of(order(), form=FORM)
    response = decide(decider, wait, {"approved": False, "comment": "no"})
    assert (response.status_code, response.json()["approved"], response.json()["data"]) == (200, False, None)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, ["approved"]),
        ({"approved": None}, ["approved"]),
        ({"approved": "true"}, ["approved"]),
        ({"approved": 1}, ["approved"]),
        ({"approve": True}, ["approve"]),
        ({"approved": True}, ["amount"]),
        ({"approved": True, "data": {"amount": "x"}}, ["amount"]),
        ({"approved": True, "data": {"amount": "1", "amuont": "2"}}, ["amuont"]),
        ({"approved": True, "data": {"amount": ["1"]}}, ["amount"]),
        ({"approved": True, "data": {"amount": {}}}, ["amount"]),
        ({"approved": True, "data": {"amount": 1, "day": 5}}, ["day"]),
        ({"approved": True, "data": {"amount": 1, "tags": ["c"]}}, ["tags"]),
        ({"approved": True, "data": {"amount": 1, "tags": [["a"]]}}, ["tags"]),
        ({"approved": True, "data": {"amount": 1, "note": "\0"}}, ["note"]),
        ({"approved": True, "data": [1]}, ["data"]),
        ({"approved": True, "data": "x"}, ["data"]),
        ({"approved": False, "data": {"amount": 1}}, ["data"]),
        ({"approved": True, "data": {"amount": 1}, "comment": "x" * 10_001}, ["comment"]),
        ({"approved": True, "data": {"amount": 1}, "comment": "\0"}, ["comment"]),
    ],
)
def test_bad_decisions_name_the_field_and_store_nothing(body, fields, decider, order, wait_of) -> None:
    wait = wait_of(order(), form=FORM)
    before = snapshot()
    response = decide(decider, wait, body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid"), response.content
    assert list(response.json()["fields"]) == fields
    assert snapshot() == before


def test_the_forms_own_words_are_given(decider, order, wait_of) -> None:
    wait = wait_of(order(), form=FORM)
    response = decide(decider, wait, {"approved": True, "data": {"amount": "x"}})
    assert response.json() == {
        "code": "invalid", "detail": "amount: Enter a number.", "fields": {"amount": ["Enter a number."]},
    }  # fmt: skip


def test_json_numbers_and_lists_suit_the_form(decider, order, wait_of) -> None:
    wait = wait_of(order(), form=FORM)
    body = {"approved": True, "data": {"amount": 600.1, "day": "2026-12-01", "tags": ["a", "b"], "note": None}}
    response = decide(decider, wait, body)
    assert response.json()["data"] == {"amount": "600.1", "day": "2026-12-01", "tags": ["a", "b"], "note": ""}


def test_a_wait_without_a_form_takes_no_data(decider, order, wait_of) -> None:
    wait = wait_of(order())
    assert list(decide(decider, wait, {"approved": True, "data": {"x": 1}}).json()["fields"]) == ["data"]
    assert decide(decider, wait, {"approved": True, "data": {}}).status_code == 200


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("powerful", [True, False])
def test_the_requester_is_barred(approved, powerful, client_of, people, order, wait_of) -> None:
    """SEC-05: who started it does not decide it, a superuser neither."""
    role = "superuser" if powerful else "decider"
    wait = wait_of(order(created_by=people(role)), allow_requester=False)
    before = snapshot()
    response = decide(client_of(role), wait, {"approved": approved})
    assert (response.status_code, response.json()["code"]) == (403, "requester_barred")
    assert snapshot() == before
    assert client_of(role).get("/api/pending-events/?mine=true").json()["results"] == []


def test_the_second_answer_learns_who_and_when(client_of, decider, order, wait_of) -> None:
    """EVT-10: the first answer wins."""
    row = order()
    wait = wait_of(row, "first", form=FORM)
    first = decide(decider, wait, GOOD).json()
    following = wait_of(row, "second")
    before = snapshot()
    for role in ("decider", "superuser"):
        response = decide(client_of(role), wait, {"approved": False})
        body = response.json()
        assert (response.status_code, body["code"], body["by"]) == (409, "already_decided", "decider")
        assert body["at"] == first["at"]
        assert body["current"] == f"http://testserver/api/pending-events/{following.pk}/"
    assert snapshot() == before


def test_waits_that_are_over(decider, order, wait_of) -> None:
    """EVT-13, design 8: an answer is bound to its wait; a late one opens nothing."""
    row = order()
    late = wait_of(row, "late", deadline=timezone.now() - timedelta(seconds=1))
    gone = wait_of(row, "gone", status="timed_out")
    cancelled = wait_of(row, "cancelled", status="cancelled")
    stale = wait_of(row, "stale", status="cancelled")
    PendingEvent.objects.filter(pk=stale.pk).update(run_number=7)
    waiting = wait_of(row, "waiting")
    before = snapshot()
    for wait, code in ((late, "timed_out"), (gone, "timed_out"), (cancelled, "cancelled"), (stale, "stale")):
        response = decide(decider, wait, {"approved": True})
        assert (response.status_code, response.json()["code"]) == (409, code)
        assert response.json()["current"].endswith(f"/{waiting.pk}/")
    assert snapshot() == before


def test_an_event_cannot_be_decided(client_of, order, wait_of) -> None:
    wait = wait_of(order(), "outcome", types=["paid"])
    response = decide(client_of("superuser"), wait, {"approved": True})
    assert (response.status_code, response.json()["code"]) == (409, "invalid_transition")


def test_the_right_comes_before_the_form(client_of, order, wait_of) -> None:
    """SEC-03: who may not decide learns nothing about the form."""
    wait = wait_of(order(), form=FORM)
    assert decide(client_of("viewer"), wait, {"approved": True, "data": {"amount": "x"}}).status_code == 403


@pytest.mark.django_db(transaction=True)
def test_two_people_at_once(client_of, order, wait_of) -> None:
    """EVT-10: exactly one answer is stored per round, the other is told so."""
    row = order()
    for number in range(20):
        wait = wait_of(row, f"wait {number}")
        clients = [(client_of("decider"), True), (client_of("superuser"), False)]

        def run(pair: tuple[Any, bool], wait: PendingEvent = wait) -> Any:
            try:
                return decide(pair[0], wait, {"approved": pair[1]})
            finally:
                connections.close_all()

        with ThreadPoolExecutor(2) as pool:
            answers = sorted(pool.map(run, clients), key=lambda answer: answer.status_code)
        assert [answer.status_code for answer in answers] == [200, 409]
        assert answers[1].json()["by"] == answers[0].json()["by"]
        wait.refresh_from_db()
        assert wait.approved is answers[0].json()["approved"]
        assert wait.sent_events.count() == 1
