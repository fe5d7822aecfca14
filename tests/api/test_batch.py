"""Starting and deleting several instances at once over REST (cases BAT-01, SEC-04, SEC-13; scenario E6)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from durableflow.models import HistoryEntry, WorkflowInstance
from tests.api.conftest import ORDERS, snapshot

pytestmark = pytest.mark.django_db
BATCH = f"{ORDERS}batch/"
DELETE = f"{ORDERS}batch/delete/"


@pytest.fixture
def starter(client_of):
    return client_of("starter")


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [entry["instance_id"] for entry in found]


def test_some_ids_exist_and_some_are_repeated(starter, order) -> None:
    """E6, BAT-01: the others are created, in the order of the entries; what is there stays as it is."""
    order("b", params={"old": True})
    before = WorkflowInstance.objects.filter(instance_id="b").values().get()
    entries = [{"instance_id": each} for each in ("z", "b", "a", "z")] + [{"params": {"n": 1}, "priority": "high"}]
    response = starter.post(BATCH, {"instances": entries})
    assert response.status_code == 201
    told = response.json()
    assert ids(told["created"])[:2] == ["z", "a"] and len(told["created"]) == 3
    assert told["created"][0] == {
        "workflow": "api-order", "instance_id": "z", "status": "queued", "url": f"http://testserver{ORDERS}z/",
    }  # fmt: skip
    assert [(error["index"], error["instance_id"], error["code"]) for error in told["errors"]] == [
        (1, "b", "exists"), (3, "z", "repeated"),
    ]  # fmt: skip
    assert WorkflowInstance.objects.filter(instance_id="b").values().get() == before
    own = WorkflowInstance.objects.get(instance_id=told["created"][2]["instance_id"])
    assert (own.params, own.priority, own.trigger, own.created_by_name) == ({"n": 1}, 0, "api", "starter")
    entry = HistoryEntry.objects.get(instance=own)
    assert (entry.type, entry.actor_name, entry.via) == ("workflow_queued", "starter", "api")


def test_a_number_of_equal_ones(starter) -> None:
    """E6: generated ids, shared options."""
    body = {"count": 3, "params": {"n": 1}, "start_at": "1 hour", "priority": "low", "retention": {"success": "1 day"}}
    response = starter.post(BATCH, body)
    assert response.status_code == 201 and response.json()["errors"] == []
    assert len(set(ids(response.json()["created"]))) == 3
    for row in WorkflowInstance.objects.all():
        assert (row.params, row.priority, row.retention_success) == ({"n": 1}, 2, timedelta(days=1))
        assert row.wake_at - row.created == timedelta(hours=1)


def test_a_batch_that_comes_again_starts_nothing(starter) -> None:
    """BAT-01: the batch is the door that is safe to repeat."""
    body = {"instances": [{"instance_id": f"order-{number}"} for number in range(100)]}
    assert starter.post(BATCH, body).status_code == 201
    before = snapshot()
    again = starter.post(BATCH, body)
    assert (again.status_code, again.json()["created"], len(again.json()["errors"])) == (200, [], 100)
    assert snapshot() == before
    refused = starter.post(BATCH, body, headers={"Idempotency-Key": "k"})
    assert (refused.status_code, list(refused.json()["fields"])) == (400, ["Idempotency-Key"])


def test_a_large_batch_takes_as_few_queries_as_a_small_one(starter) -> None:
    counts = []
    for number in (2, 100):
        with CaptureQueriesContext(connection) as captured:
            assert starter.post(BATCH, {"count": number, "params": {"n": number}}).status_code == 201
        counts.append(len(captured))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"instances": [{"instance_id": "a"}, {"instance_id": "a/b"}]}, ["instances.1.instance_id"]),
        ({"instances": [{"instance_id": "x" * 101}, {"instance_id": "a"}]}, ["instances.0.instance_id"]),
        ({"instances": [{"priority": "urgent"}, {"retention": 5}]}, ["instances.0.priority", "instances.1.retention"]),
        ({"instances": [{"params": "\0"}]}, ["instances.0.params"]),
        ({"instances": [{"params": "x" * 2000}]}, ["instances.0.params"]),
        ({"instances": [{"instance_id": "a", "param": 1}]}, ["instances.0.param"]),
        ({"instances": [{"instance_id": "a"}, "b"]}, ["instances.1"]),
        ({"instances": [None]}, ["instances.0"]),
        ({"instances": [{}] * 101}, ["instances"]),
        ({"instances": []}, ["instances"]),
        ({"instances": {"instance_id": "a"}}, ["instances"]),
        ({"instances": [{}], "count": 1}, None),
        ({"instances": [{}], "params": 1}, ["params"]),
        ({}, None),
        ([], None),
        ({"count": 101}, ["count"]),
        ({"count": 0}, ["count"]),
        ({"count": "many"}, ["count"]),
        ({"count": 1, "params": "\0"}, ["params"]),
        ({"count": 1, "instance_id": "a"}, ["instance_id"]),
        ({"instances": [{}], "rollback": True}, ["rollback"]),
    ],
)
def test_a_batch_with_a_mistake_starts_nothing(body, fields, starter, settings) -> None:
    """E6: all or nothing, and each mistake is named by the place of its entry."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LIMITS": {"params": 1000}}
    response = starter.post(BATCH, body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert list(response.json().get("fields", {})) == (fields or []), response.json()
    assert not any(snapshot())


def test_a_batch_is_as_large_as_a_request(starter, settings) -> None:
    """413 before it is read as a whole."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LIMITS": {"params": 1000, "payload": 1000}}
    response = starter.post(BATCH, {"instances": [{"params": "x" * 900}] * 100})
    assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert not any(snapshot())


def test_a_taken_id_does_not_say_whose_it_is(starter, order) -> None:
    """SEC-04: the answer is the same for ids of one's own and of others."""
    order("theirs")
    starter.post(BATCH, {"instances": [{"instance_id": "mine"}]})
    errors = starter.post(BATCH, {"instances": [{"instance_id": "theirs"}, {"instance_id": "mine"}]}).json()["errors"]
    assert errors[0]["detail"] == errors[1]["detail"] and "creator" not in json.dumps(errors)


def test_unknown_workflows_are_not_looked_up(starter, client_of) -> None:
    """SEC-08: a registered name or nothing; who may not start anything learns no names."""
    for name in ("os.system", "django.core.management.call_command", "nowhere"):
        assert starter.post(f"/api/workflows/{name}/instances/batch/", {"count": 1}).status_code == 404
        assert client_of("viewer").post(f"/api/workflows/{name}/instances/batch/", {"count": 1}).status_code == 403


@pytest.mark.django_db(transaction=True)
def test_batches_that_overlap_at_the_same_moment(client_of) -> None:
    """BAT-01: each id once, no 500, no half batch, in whatever order the two name their ids."""
    numbers = [f"order-{number}" for number in range(60)]
    clients = [client_of("starter") for _ in range(4)]
    orders = [numbers, numbers[::-1], numbers[30:] + numbers[:30], numbers[20:]]

    def send(client: Any, wanted: list[str]) -> Any:
        try:
            return client.post(BATCH, {"instances": [{"instance_id": each} for each in wanted]})
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(send, clients, orders))
    assert {answer.status_code for answer in answers} <= {200, 201}
    created = [each for answer in answers for each in ids(answer.json()["created"])]
    assert sorted(created) == sorted(numbers)
    for answer, wanted in zip(answers, orders, strict=True):
        assert len(answer.json()["created"]) + len(answer.json()["errors"]) == len(wanted)
    assert WorkflowInstance.objects.count() == HistoryEntry.objects.count() == 60


def test_several_are_deleted(client_of, order, step_of, wait_of) -> None:
    """E4: an id that stands there twice is deleted once, one that is missing is told; ids are free again."""
    for name in ("a", "b", "c"):
        row = order(name)
        step_of(row)
        wait_of(row)
    client = client_of("remover")
    response = client.post(DELETE, {"instance_ids": ["b", "a", "b", "gone"], "reason": "test data"})
    assert (response.status_code, response.json()["deleted"]) == (200, ["b", "a"])
    assert [(error["instance_id"], error["code"]) for error in response.json()["errors"]] == [("gone", "not_found")]
    assert list(WorkflowInstance.objects.values_list("instance_id", flat=True)) == ["c"]
    assert client_of("starter").post(ORDERS, {"instance_id": "a"}).status_code == 201


def test_what_may_not_be_deleted_is_told(client_of, people, order) -> None:
    """SEC-04: foreign ids are as unknown ones; without the right to delete one's own stay."""
    order("mine", created_by=people("stranger"))
    order("theirs")
    before = snapshot()
    answer = client_of("stranger").post(DELETE, {"instance_ids": ["mine", "theirs", "unknown"]}).json()
    assert answer["deleted"] == []
    told = {error["instance_id"]: (error["code"], error["detail"]) for error in answer["errors"]}
    assert told["mine"][0] == "permission_denied"
    assert told["theirs"] == told["unknown"] == ("not_found", "There is no such workflow instance.")
    assert snapshot() == before


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"instance_ids": []},
        {"instance_ids": ["order-1", "a/b"]},
        {"instance_ids": "order-1"},
        {"instance_ids": ["order-1"] * 101},
        {"instance_ids": [1]},
        {"instance_ids": ["order-1"], "force": True},
        {"instance_ids": ["order-1"], "reason": "\0"},
    ],
)
def test_a_bad_id_deletes_nothing(body, client_of, order) -> None:
    order()
    before = snapshot()
    response = client_of("remover").post(DELETE, body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert snapshot() == before
    assert client_of("remover").post("/api/workflows/nowhere/instances/batch/delete/", body).status_code == 400
