"""Decision links (SEC-06): for one person, who logs in; looking changes nothing."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import unquote

import pytest
from django.http import HttpResponse
from django.utils import timezone

from durableflow.core import clock
from durableflow.models import PendingEvent
from tests.admin.rows import make_instance, make_wait, snapshot

pytestmark = pytest.mark.django_db


def path_of(wait: PendingEvent, user, **expires) -> str:
    url = wait.decision_url(user, **expires)
    assert url.startswith("http://testserver/durableflow/decide/")
    return url.removeprefix("http://testserver")


def text_of(response: HttpResponse) -> str:
    return re.sub(r"\s+", " ", response.content.decode())


@pytest.fixture
def wait(customer) -> PendingEvent:
    """A wait that a person without staff status decides."""
    return make_wait(make_instance(), title="Ship the order?", users=[customer], context={"total": 7})


def test_link_shows_and_then_decides_once(login, customer, wait) -> None:
    """SEC-06: HEAD and GET change nothing, POST decides once, also for people who are not staff."""
    path, client = path_of(wait, customer), login(customer)
    before = snapshot()
    assert client.head(path).status_code == 200
    for _ in range(2):
        response = client.get(path)
        assert response.status_code == 200 and "Ship the order?" in text_of(response)
    assert snapshot() == before
    response = client.post(path, {"decision": "approve", "comment": "go"})
    assert (response.status_code, response["Location"]) == (302, path)
    wait.refresh_from_db()
    assert (wait.approved, wait.decided_by, wait.via, wait.comment) == (True, customer, "link", "go")
    assert "by <strong>customer</strong>" in text_of(client.get(path))
    before = snapshot()
    again = client.post(path, {"decision": "reject", "comment": "no"})
    assert again.status_code == 409 and "by <strong>customer</strong>" in text_of(again)
    assert snapshot() == before


def test_link_asks_for_a_login_and_comes_back(client, customer, wait) -> None:
    """A bot, or a person in a fresh browser, sees no data and decides nothing."""
    path = path_of(wait, customer)
    before = snapshot()
    for response in (client.get(path), client.post(path, {"decision": "approve"})):
        assert response.status_code == 302
        assert unquote(response["Location"]) == f"/accounts/login/?next={unquote(path)}"
    assert snapshot() == before


def test_link_is_for_one_person(login, superuser, customer, wait) -> None:
    """Somebody else, a superuser too, gets 403 without data."""
    path, client = path_of(wait, customer), login(superuser)
    before = snapshot()
    for response in (client.get(path), client.post(path, {"decision": "approve"})):
        assert response.status_code == 403 and "Ship the order?" not in text_of(response)
    assert snapshot() == before


def test_right_is_checked_when_the_link_is_used(login, customer, wait) -> None:
    """Design 8: who lost the right gets 403, without data."""
    path = path_of(wait, customer)
    wait.users.clear()
    before = snapshot()
    for response in (login(customer).get(path), login(customer).post(path, {"decision": "approve"})):
        assert response.status_code == 403 and "Ship the order?" not in text_of(response)
    assert snapshot() == before


def test_requester_cannot_decide_by_link(login, customer, wait) -> None:
    """SEC-05: the rule about the requester holds for links too."""
    PendingEvent.objects.filter(pk=wait.pk).update(allow_requester=False)
    type(wait.instance).objects.filter(pk=wait.instance_id).update(created_by=customer)
    path = path_of(wait, customer)
    assert login(customer).post(path, {"decision": "approve"}).status_code == 403


def test_expired_link(login, customer, wait) -> None:
    """410, without data."""
    path = path_of(wait, customer, expires="1 minute")
    client = login(customer)
    before = snapshot()
    with clock.stop(timezone.now() + timedelta(minutes=2)):
        for response in (client.get(path), client.post(path, {"decision": "approve"})):
            assert response.status_code == 410 and "Ship the order?" not in text_of(response)
    assert snapshot() == before


@pytest.mark.parametrize(
    "change", [lambda t: t[:-1] + ("A" if t[-1] != "A" else "B"), lambda t: "x" + t, lambda t: "x"]
)
def test_tampered_link(login, customer, wait, change) -> None:
    """403, without data, logged in or not."""
    start, token, _end = path_of(wait, customer).rsplit("/", 2)
    before = snapshot()
    for client in (login(customer), login(None)):
        for response in (
            client.get(f"{start}/{change(token)}/"),
            client.post(f"{start}/{change(token)}/", {"decision": "approve"}),
        ):
            assert response.status_code == 403 and "Ship the order?" not in text_of(response)
    assert snapshot() == before


def test_link_to_a_wait_that_is_gone(login, customer, wait) -> None:
    """410 after a purge."""
    path = path_of(wait, customer)
    wait.instance.delete()
    assert login(customer).get(path).status_code == 410


@pytest.mark.parametrize("method", ["put", "patch", "delete", "options"])
def test_link_takes_two_methods(login, customer, wait, method) -> None:
    """405 for others."""
    response = getattr(login(customer), method)(path_of(wait, customer))
    assert response.status_code == 405 and response["Allow"] == "GET, HEAD, POST"


def test_link_needs_the_csrf_token(login, customer, wait) -> None:
    """SEC-01: a foreign site cannot post the form."""
    path, client = path_of(wait, customer), login(customer, csrf=True)
    before = snapshot()
    assert client.post(path, {"decision": "approve"}).status_code == 403
    assert snapshot() == before
    client.get(path)
    token = client.cookies["csrftoken"].value
    assert client.post(path, {"decision": "approve", "csrfmiddlewaretoken": token}).status_code == 302


def test_link_page_keeps_its_address_private(login, customer, wait) -> None:
    """The token stands in the address: no caching, no foreign referrers, no search engines."""
    response = login(customer).get(path_of(wait, customer))
    assert response["Referrer-Policy"] == "same-origin"
    assert "no-store" in response["Cache-Control"] and "noindex" in response["X-Robots-Tag"]
