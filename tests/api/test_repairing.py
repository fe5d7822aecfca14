"""Restart from a step, and results that a person gives, over REST (cases LIF-08, LIF-06; reference 11)."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from tests.api import flows
from tests.api.conftest import ORDERS, snapshot

pytestmark = pytest.mark.django_db
TOURS = "/api/workflows/api-tour/instances/"
URL = f"{ORDERS}order-1/"


@pytest.fixture
def tour(workflows: Harness, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``tour(mended=False)``: a tour as far as it comes."""
    monkeypatch.setattr(flows, "ran", [])
    monkeypatch.setattr(flows, "mended", [True])

    def make(*, mended: bool = True, whole: bool = False) -> Any:
        flows.mended[0] = mended
        row = workflows.run(flows.ApiTour, None, instance_id="tour-1")
        if whole:
            workflows.advance("1 hour")
        return row

    return make


def test_restart_from_a_step(tour, workflows, client_of) -> None:
    """What started before it is kept, it and the rest run again."""
    tour(whole=True)
    client = client_of("operator")
    body = {"from_step": {"name": "second"}, "reason": "wrong rate"}
    response = client.post(f"{TOURS}tour-1/restart/", body)
    assert (response.status_code, response.json()["status"]) == (200, "queued")
    workflows.run_due()
    workflows.advance("1 hour")
    seen = client.get(f"{TOURS}tour-1/").json()
    assert (seen["status"], seen["run_number"]) == ("complete", 2)
    assert seen["output"] == {"first": "first 1", "second": "second 2", "legs": ["a 2", "b 2"]}
    entry = next(
        entry for entry in client.get(f"{TOURS}tour-1/history/").json()["results"] if entry["reason"] == "wrong rate"
    )
    assert (entry["type"], entry["actor"], entry["via"]) == ("workflow_queued", "operator", "api")
    assert entry["data"]["from_step"] == "second-1"


def test_restart_from_a_sleep_and_from_the_start(tour, workflows, client_of) -> None:
    tour(whole=True)
    client = client_of("operator")
    assert client.post(f"{TOURS}tour-1/restart/", {"from_step": {"name": "nap", "kind": "sleep"}}).status_code == 200
    workflows.run_due()
    assert client.get(f"{TOURS}tour-1/").json()["status"] == "waiting"
    assert flows.ran.count("second") == 1
    assert client.post(f"{TOURS}tour-1/restart/", {"from_step": None}).status_code == 200
    workflows.run_due()
    assert flows.ran.count("second") == 2


def test_a_step_in_several_branches_needs_its_scope(tour, client_of) -> None:
    """An ambiguous name is refused, and the answer says what there is; with the scope it is known."""
    tour(whole=True)
    client = client_of("operator")
    before = snapshot()
    refused = client.post(f"{TOURS}tour-1/restart/", {"from_step": {"name": "leg"}})
    assert (refused.status_code, list(refused.json()["fields"])) == (400, ["from_step"])
    assert "several" in refused.json()["detail"] and snapshot() == before
    steps = client.get(f"{TOURS}tour-1/steps/").json()["results"]
    scope = next(step["scope"] for step in steps if step["name"] == "leg")
    accepted = client.post(f"{TOURS}tour-1/restart/", {"from_step": {"name": "leg", "scope": scope}})
    assert accepted.status_code == 200, accepted.json()


@pytest.mark.parametrize(
    ("from_step", "field"),
    [
        ({"name": "third"}, "from_step"),
        ({"name": "first", "count": 2}, "from_step"),
        ({"name": "first", "kind": "sleep"}, "from_step"),
        ({"name": "first", "scope": "elsewhere"}, "from_step"),
        ({"name": "first", "count": 0}, "from_step.count"),
        ({"name": "first", "count": "x"}, "from_step.count"),
        ({"name": "first", "kind": "walk"}, "from_step.kind"),
        ({"name": "first", "number": 1}, "from_step.number"),
        ({"name": ""}, "from_step.name"),
        ({"count": 1}, "from_step.name"),
        ("first", "from_step"),
    ],
)
def test_what_names_no_step_changes_nothing(from_step, field, tour, client_of) -> None:
    """Design 12: 400 with the field."""
    tour()
    before = snapshot()
    response = client_of("operator").post(f"{TOURS}tour-1/restart/", {"from_step": from_step})
    assert (response.status_code, list(response.json()["fields"])) == (400, [field]), response.json()
    assert snapshot() == before


def read_before(view: Any, *args: Any) -> WorkflowInstance:
    """The instance as it was in its first run."""
    row = WorkflowInstance.objects.get()
    row.run_number = 1
    return row


def test_a_restart_that_comes_twice_restarts_once(tour, workflows, client_of, monkeypatch) -> None:
    """LIF-06: a worker may have taken the new run already, which can be restarted again; with its number the run is meant."""
    row = tour()
    client, url = client_of("operator"), f"{TOURS}tour-1/restart/"
    body = {"run_number": 1, "from_step": {"name": "second"}}
    assert client_of("viewer").post(url, {"run_number": 9}).status_code == 403
    assert client.post(url, body).status_code == 200
    gone = client.post(url, {"run_number": 1, "from_step": {"name": "nap", "kind": "sleep"}})
    assert gone.status_code == 409, "queued, and of another run"
    workflows.run_due()
    before = snapshot()
    response = client.post(url, body)
    assert (response.status_code, response.json()["code"], response.json()["status"]) == (
        *(409, "invalid_transition"),
        "waiting",
    )
    assert "run 1 was meant" in response.json()["detail"] and snapshot() == before
    unknown = client.post(url, {"run_number": 1, "from_step": {"name": "not there"}})
    assert unknown.status_code == 409, "the steps of another run are not asked for"
    with monkeypatch.context() as patch:
        patch.setattr("durableflow.api.base.ApiView.instance", read_before)  # somebody was quicker than the lock
        assert client.post(url, {"run_number": 1}).status_code == 409
    for wrong in (0, "x", 2**31):
        assert list(client.post(url, {"run_number": wrong}).json()["fields"]) == ["run_number"]
    assert client.post(url, {"run_number": 2}).status_code == 200
    row.refresh_from_db()
    assert row.run_number == 3


def test_right_and_state_are_told_before_the_step(order, client_of) -> None:
    """LIF-06, SEC-03: 403 and 409 whatever the step is called."""
    order(status="queued")
    body = {"from_step": {"name": "nowhere"}}
    assert client_of("viewer").post(f"{URL}restart/", body).status_code == 403
    response = client_of("operator").post(f"{URL}restart/", body)
    assert (response.status_code, response.json()["status"]) == (409, "queued")


def test_a_person_gives_a_step_its_result(tour, workflows, client_of) -> None:
    """The run goes on as if the body had returned it."""
    tour(mended=False)
    client = client_of("overrider")
    (step,) = client.get(f"{TOURS}tour-1/steps/?status=failed").json()["results"]
    assert client.get(f"{TOURS}tour-1/").json()["available_actions"] == ["complete_step"]
    response = client.post(f"{TOURS}tour-1/steps/{step['id']}/complete/", {"output": [1, None], "reason": "by phone"})
    assert (response.status_code, response.json()["status"]) == (200, "queued")
    workflows.run_due()
    workflows.advance("1 hour")
    assert client.get(f"{TOURS}tour-1/").json()["output"]["second"] == [1, None]
    again = client.post(f"{TOURS}tour-1/steps/{step['id']}/complete/", {"output": 2})
    assert (again.status_code, again.json()["code"]) == (409, "invalid_transition")
    told = client.get(f"{TOURS}tour-1/history/?types=step_completed").json()["results"]
    assert [(entry["actor"], entry["via"], entry["reason"]) for entry in told if entry["reason"]] == [
        ("overrider", "api", "by phone"),
    ]


def test_which_results_are_refused(order, step_of, client_of, settings) -> None:
    """None of them changes anything; a step of another instance does not exist here."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LIMITS": {"output": 100}}
    row, other = order(status="waiting"), order("order-2")
    failing, done = step_of(row, "a", status="pending", finished=None), step_of(row, "b")
    nap, foreign = step_of(row, "c", kind="sleep", status="pending", finished=None), step_of(other, "a")
    client = client_of("overrider")
    before = snapshot()

    def complete(step: int, body: Any) -> tuple[int, str]:
        response = client.post(f"{URL}steps/{step}/complete/", body)
        return response.status_code, response.json()["code"]

    assert complete(failing.pk, {}) == (400, "invalid")
    assert complete(failing.pk, {"output": 1, "status": "complete"}) == (400, "invalid")
    assert complete(failing.pk, {"output": "x" * 200}) == (413, "too_large")
    assert complete(failing.pk, {"output": "\0"}) == (400, "invalid")
    assert complete(failing.pk, {"output": 1, "reason": []}) == (400, "invalid")
    assert complete(done.pk, {"output": 1}) == (409, "invalid_transition")
    assert complete(nap.pk, {"output": 1}) == (400, "invalid")
    assert complete(foreign.pk, {"output": 1}) == (404, "not_found")
    assert complete(10**30, {"output": 1}) == (404, "not_found")
    assert snapshot() == before
    ended = order("order-3", status="complete", finished=timezone.now())
    step = step_of(ended)
    response = client.post(f"{ORDERS}order-3/steps/{step.pk}/complete/", {"output": 1})
    assert (response.status_code, response.json()["status"]) == (409, "complete")
