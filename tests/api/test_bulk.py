"""Verbs over many instances over REST (cases SEC-13, SEC-04, LIF-06)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from durableflow.api import bulk
from durableflow.models import HistoryEntry, WorkflowInstance
from tests.api.conftest import ORDERS, snapshot
from tests.api.flows import ApiRenamed

pytestmark = pytest.mark.django_db
BULK = f"{ORDERS}bulk/"
ENDS = {status: {"finished": timezone.now()} for status in ("complete", "errored", "terminated")}


@pytest.fixture
def operator(client_of):
    return client_of("operator")


@pytest.fixture
def rows(order):
    """``rows("errored", 3)``: so many in that status; a-0, a-1, a-2."""

    def make(status: str, number: int, name: str = "a", **fields: object) -> None:
        for index in range(number):
            order(f"{name}-{index}", status=status, **ENDS.get(status, {}), **fields)

    return make


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        ("retry", "errored", "queued"),
        ("pause", "waiting", "paused"),
        ("resume", "paused", "queued"),
        ("terminate", "waiting", "terminated"),
        ("restart", "complete", "queued"),
    ],
)
def test_each_verb(action, before, after, operator, rows) -> None:
    """SEC-13: done and skipped are told; who, why and through which door stands in each history."""
    rows(before, 3)
    rows("rolling_back", 1, "b")
    named = ["a-2", "a-0", "b-0", "a-2", "unknown"]
    response = operator.post(BULK, {"action": action, "instance_ids": named, "reason": "deploy"})
    assert response.status_code == 200, response.json()
    told = response.json()
    assert (told["done"], told["remaining"]) == (2, 0)
    assert [(each["instance_id"], each["code"]) for each in told["skipped"]] == [
        ("unknown", "not_found"), ("b-0", "invalid_transition"),
    ]  # fmt: skip
    assert "rolling_back" in told["skipped"][1]["detail"]
    found = dict(WorkflowInstance.objects.values_list("instance_id", "status"))
    assert found == {"a-0": after, "a-1": before, "a-2": after, "b-0": "rolling_back"}
    entries = HistoryEntry.objects.filter(reason="deploy").values_list("actor_name", "via")
    assert list(entries) == [("operator", "api")] * 2
    again = operator.post(BULK, {"action": action, "instance_ids": ["a-0"]}).json()
    assert (again["done"], again["skipped"][0]["code"]) == (0, "invalid_transition")


def test_a_filter_finds_them(operator, rows) -> None:
    """The names and the rules of the list's query."""
    rows("errored", 2)
    rows("errored", 1, "b")
    rows("waiting", 1, "a-w")
    body = {"action": "retry", "filter": {"status": ["errored"], "search": "a-"}}
    assert operator.post(BULK, body).json() | {"cursor": 0} == {"done": 2, "skipped": [], "remaining": 0, "cursor": 0}
    both = {"action": "terminate", "filter": {"status": "errored,waiting", "created_after": "2026-01-01T00:00:00Z"}}
    told = operator.post(BULK, both).json()
    assert (told["done"], [each["instance_id"] for each in told["skipped"]]) == (1, ["b-0"])
    none = operator.post(BULK, {"action": "retry", "filter": {"search": "zzz"}}).json()
    assert none == {"done": 0, "skipped": [], "remaining": 0, "cursor": None}


def test_more_than_one_request_can_handle(operator, rows, monkeypatch) -> None:
    """``cursor`` goes on after those that refuse as well, so that a loop over ``remaining`` ends."""
    monkeypatch.setattr(bulk, "MAX_BULK", 2)
    rows("complete", 3)
    rows("waiting", 2, "w")
    body: dict[str, object] = {"action": "pause", "filter": {}}
    counts = []
    while True:
        told = operator.post(BULK, body).json()
        counts.append((told["done"], len(told["skipped"]), told["remaining"]))
        if not told["remaining"]:
            break
        body["after"] = told["cursor"]
    assert counts == [(0, 2, 3), (1, 1, 1), (1, 0, 0)]


@pytest.mark.parametrize("by", ["filter", "ids"])
def test_a_request_ends_before_its_server_ends_it(by, operator, rows, monkeypatch) -> None:
    """What is done is told, and the same request with ``after`` goes on; ids that nobody has are told once."""
    monkeypatch.setattr(bulk, "BUDGET", 0.0)
    monkeypatch.setattr(bulk, "AT_ONCE", 2)
    rows("waiting", 3)
    rows("complete", 2, "c")
    named = {"instance_ids": ["unknown", "c-1", "a-2", "a-0", "a-1", "c-0"]}
    body: dict[str, Any] = {"action": "pause", **(named if by == "ids" else {"filter": {}})}
    counts, skipped = [], []
    while True:
        told = operator.post(BULK, body).json()
        counts.append((told["done"], told["remaining"]))
        skipped += [each["instance_id"] for each in told["skipped"]]
        if not told["remaining"]:
            break
        body["after"] = told["cursor"]
    assert counts == [(2, 3), (1, 1), (0, 0)]
    assert skipped == [*(["unknown"] if by == "ids" else []), "c-0", "c-1"]


def test_each_is_a_transaction_of_its_own(operator, rows, monkeypatch) -> None:
    """What was done stays done when the request fails half way, also where the project makes requests atomic."""
    rows("waiting", 3)
    original = WorkflowInstance.pause

    def fails_late(self: WorkflowInstance, **said: Any) -> None:
        if self.instance_id == "a-2":
            raise RuntimeError("the process dies")
        original(self, **said)

    monkeypatch.setattr(WorkflowInstance, "pause", fails_late)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with pytest.raises(RuntimeError, match="dies"):
        operator.post(BULK, {"action": "pause", "filter": {}})
    assert sorted(WorkflowInstance.objects.values_list("status", flat=True)) == ["paused", "paused", "waiting"]


def test_only_what_the_user_sees(client_of, people, order) -> None:
    """SEC-04: foreign instances are neither changed nor counted, by name or by filter; one's own need the right."""
    order("mine", created_by=people("stranger"))
    order("theirs")
    before = snapshot()
    client = client_of("stranger")
    named = client.post(BULK, {"action": "terminate", "instance_ids": ["mine", "theirs", "unknown"]}).json()
    told = {each["instance_id"]: (each["code"], each["detail"]) for each in named["skipped"]}
    assert told["theirs"] == told["unknown"] and told["unknown"][0] == "not_found"
    assert told["mine"][0] == "permission_denied"
    found = client.post(BULK, {"action": "terminate", "filter": {}}).json()
    assert (found["done"], [each["instance_id"] for each in found["skipped"]]) == (0, ["mine"])
    assert snapshot() == before


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"instance_ids": ["a"]}, ["action"]),
        ({"action": "delete", "filter": {}}, ["action"]),
        ({"action": ["retry"], "filter": {}}, ["action"]),
        ({"action": "complete_step", "filter": {}}, ["action"]),
        ({"action": "retry"}, []),
        ({"action": "retry", "filter": {}, "instance_ids": ["a"]}, []),
        ({"action": "retry", "instance_ids": ["a"], "after": "x"}, ["after"]),
        ({"action": "retry", "instance_ids": []}, ["instance_ids"]),
        ({"action": "retry", "instance_ids": ["a"] * 1001}, ["instance_ids"]),
        ({"action": "retry", "instance_ids": ["a/b"]}, ["instance_ids.0"]),
        ({"action": "terminate", "filter": {}, "rollback": True}, ["rollback"]),
        ({"action": "retry", "filter": {"statsu": "errored"}}, ["filter"]),
        ({"action": "retry", "filter": {"status": "broken"}}, ["filter.status"]),
        ({"action": "retry", "filter": {"status": []}}, ["filter"]),
        ({"action": "retry", "filter": {"status": None}}, ["filter"]),
        *[({"action": "retry", "filter": {"status": text}}, ["filter"]) for text in ("", " ", ",", ["errored", ""])],
        ({"action": "retry", "filter": {"search": " "}}, ["filter"]),
        ({"action": "retry", "filter": {"created_after": ""}}, ["filter"]),
        ({"action": "retry", "filter": {"created_after": "yesterday"}}, ["filter.created_after"]),
        ({"action": "retry", "filter": "status=errored"}, ["filter"]),
        ({"action": "retry", "filter": {}, "after": -1}, ["after"]),
        ({"action": "retry", "filter": {}, "reason": "\0"}, ["reason"]),
    ],
)
def test_a_mistake_changes_nothing(body, fields, operator, rows) -> None:
    """A filter that is ignored would mean all of them."""
    rows("errored", 1)
    before = snapshot()
    response = operator.post(BULK, body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert list(response.json().get("fields", {})) == fields, response.json()
    assert snapshot() == before


def test_a_workflow_that_was_renamed(operator, client_of, people) -> None:
    """Under each of its names all its instances are meant; where two have one id, that of the name in the address."""
    for instance_id in ("a", "b", "c"):
        ApiRenamed.create(instance_id=instance_id, created_by=people("creator"))
    WorkflowInstance.objects.filter(instance_id__in=("a", "c")).update(workflow="api-former")
    ApiRenamed.create(instance_id="c-new", created_by=people("creator"))
    WorkflowInstance.objects.filter(instance_id="c-new").update(instance_id="c")
    body = {"action": "pause", "instance_ids": ["a", "b", "c"]}
    assert operator.post("/api/workflows/api-former/instances/bulk/", body).json()["done"] == 3
    assert WorkflowInstance.objects.get(workflow="api-former", instance_id="c").status == "paused"
    assert WorkflowInstance.objects.get(workflow="api-renamed", instance_id="c").status == "queued"
    url = "/api/workflows/api-renamed/instances/batch/"
    told = client_of("remover").post(f"{url}delete/", {"instance_ids": ["a", "c"]}).json()
    assert told == {"deleted": ["a", "c"], "errors": []}
    left = set(WorkflowInstance.objects.values_list("workflow", "instance_id"))
    assert left == {("api-renamed", "b"), ("api-former", "c")}
    former = "/api/workflows/api-former/instances/batch/"
    again = client_of("starter").post(former, {"instances": [{"instance_id": "c"}, {"instance_id": "d"}]}).json()
    assert [each["instance_id"] for each in again["created"]] == ["d"] and again["errors"][0]["code"] == "exists"


def test_unknown_workflows(operator) -> None:
    url = "/api/workflows/nowhere/instances/bulk/"
    assert operator.post(url, {"action": "retry", "filter": {}}).status_code == 404
