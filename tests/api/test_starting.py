"""Starting instances over REST."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.urls import reverse

from durableflow.core import codec
from durableflow.models import HistoryEntry, WorkflowInstance
from durableflow.models.creation import database
from tests.api.conftest import ORDERS, snapshot

pytestmark = pytest.mark.django_db


@pytest.fixture
def starter(client_of):
    return client_of("starter")


def post(client: Any, body: Any, key: str | None = None, url: str = ORDERS) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(url, body, format="json", headers=headers)


def raw(client: Any, text: str | bytes, url: str = ORDERS) -> Any:
    return client.generic("POST", url, text, content_type="application/json")


def test_a_start_says_where_the_instance_is(starter, people) -> None:
    response = post(starter, {"instance_id": "order-42", "params": {"cart_id": 42}})
    assert response.status_code == 201
    assert response.json() == {
        "workflow": "api-order",
        "instance_id": "order-42",
        "status": "queued",
        "url": "http://testserver/api/workflows/api-order/instances/order-42/",
    }
    assert response["Location"] == response.json()["url"]
    row = WorkflowInstance.objects.get()
    assert (row.params, row.created_by, row.trigger) == ({"cart_id": 42}, people("starter"), "api")
    entry = HistoryEntry.objects.get()
    assert (entry.type, entry.actor_name, entry.via) == ("workflow_queued", "starter", "api")
    assert starter.get(response.json()["url"]).status_code == 200


def test_everything_has_a_default(starter) -> None:
    response = starter.post(ORDERS)
    assert response.status_code == 201
    row = WorkflowInstance.objects.get()
    assert (row.params, row.priority, len(row.instance_id)) == (None, 1, 36)


def test_later_and_first(starter) -> None:
    """``start_at`` is a moment or a duration, ``priority`` a name."""
    moment = datetime.now(UTC).replace(microsecond=123456) + timedelta(days=2)
    assert post(starter, {"instance_id": "a", "start_at": moment.isoformat(), "priority": "high"}).status_code == 201
    assert post(starter, {"instance_id": "b", "start_at": "10 minutes", "priority": "low"}).status_code == 201
    first, second = WorkflowInstance.objects.order_by("instance_id")
    assert (first.wake_at, first.priority, first.claim_class) == (moment, 0, 1)
    assert second.wake_at - second.created == timedelta(minutes=10)
    assert (second.priority, second.claim_class) == (2, 5)


def test_how_long_it_is_kept(starter) -> None:
    """LIF-14: of its own; what it does not say is the workflow's."""
    assert post(starter, {"instance_id": "a", "retention": {"success": "1 hour", "error": 60}}).status_code == 201
    assert post(starter, {"instance_id": "b", "retention": {"error": None}}).status_code == 201
    first, second = WorkflowInstance.objects.order_by("instance_id")
    assert (first.retention_success, first.retention_error) == (timedelta(hours=1), timedelta(minutes=1))
    assert (second.retention_success, second.retention_error) == (None, None)
    assert starter.get(f"{ORDERS}a/").json()["retention"] == {"success": 3600.0, "error": 60.0}
    assert starter.get(f"{ORDERS}b/").json()["retention"] == {"success": None, "error": None}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"instance_id": "inv.2026-01"}, "instance_id"),
        ({"instance_id": "a/b"}, "instance_id"),
        ({"instance_id": "ü"}, "instance_id"),
        ({"instance_id": " x"}, "instance_id"),
        ({"instance_id": ".."}, "instance_id"),
        ({"instance_id": "x.json"}, "instance_id"),
        ({"instance_id": "latest"}, "instance_id"),
        ({"instance_id": ""}, "instance_id"),
        ({"instance_id": 7}, "instance_id"),
        ({"instance_id": None}, "instance_id"),
        ({"start_at": "1h"}, "start_at"),
        ({"start_at": "-1 hour"}, "start_at"),
        ({"start_at": True}, "start_at"),
        ({"start_at": "2026-12-01T08:00:00"}, "start_at"),
        ({"start_at": "2026-13-01T08:00:00Z"}, "start_at"),
        ({"start_at": "9999-12-31T23:00:00-12:00"}, "start_at"),
        ({"start_at": "20 years"}, "start_at"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": True}, "priority"),
        ({"param": {}}, "param"),
        ({"max_duration": 5}, "max_duration"),
        ({"retention": "30 days"}, "retention"),
        ({"retention": {"success": "1d"}}, "retention"),
        ({"retention": {"succes": "1 day"}}, "retention"),
        ({"retention": {"error": True}}, "retention"),
    ],
)
def test_bad_input_names_the_field_and_stores_nothing(body, field, starter) -> None:
    """SEC-14: an id that could not stand in a URL is refused with the rule; TIM-05: so is a duration that is none."""
    response = post(starter, body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert list(response.json()["fields"]) == [field]
    assert not any(snapshot())


@pytest.mark.parametrize("instance_id", ["a", "_", "A-1", "batch", "bulk", "delete", "x" * 100, "steps", "0"])
def test_every_accepted_id_works_in_every_url(instance_id, client_of) -> None:
    """SEC-14: open, act and reverse."""
    client = client_of("superuser")
    url = post(client, {"instance_id": instance_id}).json()["url"]
    assert url.endswith(reverse("durableflow-api:instance", args=["api-order", instance_id]))
    for part in ("", "steps/", "history/"):
        assert client.get(url + part).status_code == 200
    assert client.post(url + "terminate/").status_code == 200


@pytest.mark.parametrize("instance_id", ["inv.2026-01", "%C3%BC", "x.json", "%20x", "x" * 101, "%00", "latest"])
def test_impossible_ids_are_plain_404s(instance_id, client_of) -> None:
    """SEC-14: also on PostgreSQL, where a NUL character would be an error of the driver."""
    client = client_of("superuser")
    for workflow in ("api-order", instance_id):
        response = client.get(f"/api/workflows/{workflow}/instances/{instance_id}/")
        assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert client.get(f"/api/workflows/{instance_id}/").status_code == 404
    assert client.get(f"/api/workflows/{instance_id}/instances/").status_code == 404


@pytest.mark.parametrize("workflow", ["os.system", "django.core.management.call_command", "ApiOrder", "nothing"])
def test_only_registered_workflows_start(workflow, client_of) -> None:
    """SEC-08: a name is looked up, never imported; who may not start learns no names."""
    url = f"/api/workflows/{workflow}/instances/"
    response = post(client_of("starter"), {}, url=url)
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert post(client_of("stranger"), {}, url=url).status_code == 403
    assert not any(snapshot())


@pytest.mark.parametrize(
    "text",
    [
        '{"params": NaN}',
        '{"params": [-1e400]}',
        '{"params": {"a": [Infinity]}}',
        '{"params": -Infinity}',
        '{"params": "\\u0000"}',
        '{"params": {"\\u0000": 1}}',
        '{"params": "\\ud800"}',
        '{"instance_id": "\\u0000"}',
        "{",
        "",
        "[]",
        '"x"',
        "null",
        b"\xff\xfe",
        '{"params": ' + "[" * 200 + "]" * 200 + "}",
        '{"params": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"params": ' + "9" * 5000 + "}",
    ],
)
def test_what_cannot_be_stored_is_refused(text, starter) -> None:
    """SER-04: the same on both databases: never a 500, nothing stored."""
    response = raw(starter, text)
    if text == "":
        assert response.status_code == 201  # no body is an empty one
        return
    assert response.status_code == 400, response.content
    assert response.json()["code"] in ("invalid", "parse_error")
    assert not any(snapshot())


def test_large_numbers_and_texts_come_back(client_of) -> None:
    """SER-04, SER-01: what is accepted is stored exactly."""
    params = {"n": 10**400, "f": 1e16, "t": 'ä\n"\\ </script>', "e": [], "o": {}, "z": None, "$df": "tuple"}
    client = client_of("superuser")
    url = post(client, {"params": params}).json()["url"]
    assert WorkflowInstance.objects.get().params == params
    assert client.get(url).json()["params"] == params


def test_too_large_params(starter, settings) -> None:
    """SER-06: 413 with size and limit, for a value over the limit, an id over it, and a body over all limits."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LIMITS": {"params": 1000, "payload": 1000}}
    exact = "x" * 998
    assert post(starter, {"params": exact}).status_code == 201
    before = snapshot()
    for body in ({"params": exact + "x"}, {"instance_id": "x" * 101}, {"params": "x" * 5_000_000}):
        response = post(starter, body)
        assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert "1,001 bytes" in post(starter, {"params": exact + "x"}).json()["detail"]
    assert snapshot() == before


def test_only_json(starter) -> None:
    for content_type in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"):
        response = starter.generic("POST", ORDERS, "instance_id=x", content_type=content_type)
        assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")
    assert not any(snapshot())


def test_a_taken_id_does_not_say_whose_it_is(starter, order) -> None:
    """SEC-04, CON-01: 409, and nothing of the other row."""
    order("order-1", params={"secret": "s3cret"})
    before = snapshot()
    response = post(starter, {"instance_id": "order-1"})
    assert (response.status_code, response.json()["code"]) == (409, "already_exists")
    assert "creator" not in response.content.decode() and "s3cret" not in response.content.decode()
    assert snapshot() == before


def test_a_key_gives_the_first_answer_again(starter) -> None:
    """SEC-15: also with keys in another order, and after the end."""
    first = post(starter, {"instance_id": "order-1", "params": {"a": 1, "b": 2}}, "cart-1")
    assert first.status_code == 201
    WorkflowInstance.objects.update(status="complete", wake_at=None)
    before = snapshot()
    again = raw(starter, '{ "params": {"b": 2, "a": 1}, "instance_id": "order-1" }')
    assert again.status_code == 409  # without the key
    again = post(starter, {"params": {"b": 2, "a": 1}, "instance_id": "order-1"}, "cart-1")
    assert (again.status_code, again.json()) == (200, first.json())
    assert snapshot() == before


def test_a_key_without_an_id_starts_one_instance(starter) -> None:
    first, second = (post(starter, {"params": 1}, "k") for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert WorkflowInstance.objects.count() == 1


@pytest.mark.parametrize(
    "body", [{"params": 2}, {"params": 1, "priority": "low"}, {}, {"params": True}, {"params": 1.5}]
)
def test_a_key_with_another_body_is_422(body, starter) -> None:
    """SEC-15."""
    assert post(starter, {"params": 1}, "k").status_code == 201
    before = snapshot()
    response = post(starter, body, "k")
    assert (response.status_code, response.json()["code"]) == (422, "idempotency_conflict")
    assert snapshot() == before


def test_keys_are_per_user_and_workflow(client_of) -> None:
    """SEC-15: nobody meets another's key."""
    payments = "/api/workflows/api-payment/instances/"
    answers = [
        post(client_of("starter"), {"params": 1}, "k"),
        post(client_of("superuser"), {"params": 2}, "k"),
        post(client_of("starter"), {"params": 3}, "k", url=payments),
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 201]


def test_a_key_does_not_open_a_taken_id(starter, order) -> None:
    order("order-1")
    before = snapshot()
    assert post(starter, {"instance_id": "order-1"}, "k").json()["code"] == "already_exists"
    assert snapshot() == before


@pytest.mark.parametrize("key", ["x" * 256, "a\x00b", "a\x7f"])
def test_keys_that_cannot_be_kept(key, starter) -> None:
    response = post(starter, {}, key)
    assert (response.status_code, list(response.json()["fields"])) == (400, ["Idempotency-Key"])
    assert not any(snapshot())


@pytest.mark.django_db(transaction=True)
def test_parallel_starts_with_one_key(client_of, settings) -> None:
    """SEC-15: twenty at once start one instance, and all get the same answer."""
    clients = [client_of("starter") for _ in range(20)]

    def run(client: Any) -> Any:
        try:
            return post(client, {"params": {"a": 1}}, "cart-1")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(run, clients))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({json.dumps(answer.json(), sort_keys=True) for answer in answers}) == 1
    assert WorkflowInstance.objects.count() == 1
    assert HistoryEntry.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_parallel_starts_of_one_id(client_of) -> None:
    """CON-01: without a key one wins, the others learn that the id is taken."""
    clients = [client_of("starter") for _ in range(8)]

    def run(client: Any) -> int:
        try:
            return int(post(client, {"instance_id": "order-1"}).status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(run, clients)) == [201] + [409] * 7


@pytest.mark.django_db(transaction=True)
def test_a_refusal_inside_atomic_requests_stores_nothing(client_of, settings) -> None:
    """A project with ATOMIC_REQUESTS: answers are the same, a refused request leaves no half."""
    connection = connections[database()]
    before = connection.settings_dict["ATOMIC_REQUESTS"]
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        client = client_of("starter")
        assert post(client, {"instance_id": "a"}, "k").status_code == 201
        assert post(client, {"instance_id": "a"}).status_code == 409
        assert post(client, {"instance_id": "a", "params": 1}, "k").status_code == 422
        assert client.get(f"{ORDERS}a/?wait=0.05").status_code == 200
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = before
    assert WorkflowInstance.objects.count() == 1


def test_stored_text_is_the_codecs(starter) -> None:
    """SER-01: what REST stores is what ``create`` stores."""
    post(starter, {"params": {"b": 1, "a": 1e16}})
    with connections[database()].cursor() as cursor:
        cursor.execute("SELECT params FROM durableflow_workflowinstance")
        assert cursor.fetchone()[0] == codec.dumps({"b": 1, "a": 1e16})


@pytest.mark.parametrize("params", [None, 1, {}, {"account": []}, {"account": ""}])
def test_params_without_a_concurrency_key_are_refused(starter, params) -> None:
    """By one start as by a batch: 400, nothing is stored, and the key of the request is free still."""
    url = "/api/workflows/api-keyed/instances/"
    response = post(starter, {"params": params}, "one", url)
    assert (response.status_code, response.json()["code"], list(response.json()["fields"])) == (
        400,
        "invalid",
        ["params"],
    )
    assert "concurrency_key" in response.json()["detail"] and not WorkflowInstance.objects.exists()
    many = post(starter, {"instances": [{"params": params}]}, None, f"{url}batch/")
    assert list(many.json()["fields"]) == ["instances.0.params"]
    assert post(starter, {"params": {"account": "a"}}, "one", url).status_code == 201
