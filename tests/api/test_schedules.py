"""Schedules over REST (cases SCH-05, SCH-09, SEC-08; design 9)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from durableflow.api import starting
from durableflow.models import SkippedSlots, WorkflowInstance, WorkflowSchedule
from tests.api.conftest import ORDERS, snapshot

pytestmark = pytest.mark.django_db
URL = "/api/schedules/"
WEEKLY = {"workflow": "api-order", "name": "weekly", "cron": "0 9 * * MON", "timezone": "Europe/Berlin"}


@pytest.fixture
def planner(client_of):
    return client_of("planner")


def test_a_schedule_is_made_read_edited_and_deleted(planner) -> None:
    """Its next slot is after now, and follows each edit."""
    made = planner.post(URL, WEEKLY | {"params": {"n": 1}, "overlap": "skip", "catch_up": 3})
    assert made.status_code == 201, made.json()
    told = made.json()
    assert made["Location"] == told["url"] == f"http://testserver{URL}{told['id']}/"
    assert {name: told[name] for name in WEEKLY} == WEEKLY
    assert (told["params"], told["overlap"], told["catch_up"]) == ({"n": 1}, "skip", "3")
    assert (told["enabled"], told["declared"], told["problem"], told["skipped"]) == (True, False, "", [])
    slots = [datetime.fromisoformat(slot) for slot in told["upcoming"]]
    assert slots[0] == datetime.fromisoformat(told["next_slot"]) > timezone.now() and len(slots) == 5
    assert all(slot.weekday() == 0 for slot in slots) and slots == sorted(set(slots))
    edited = planner.patch(told["url"], {"cron": "0 18 * * *", "timezone": "UTC"}).json()
    assert datetime.fromisoformat(edited["next_slot"]).astimezone(UTC).hour == 18 and edited["params"] == {"n": 1}
    assert planner.get(told["url"]).json() == edited
    assert planner.delete(told["url"]).status_code == 204
    assert planner.get(told["url"]).status_code == 404 and not WorkflowSchedule.objects.exists()


def test_who_has_changed_a_schedule_is_logged(planner, caplog, django_capture_on_commit_callbacks) -> None:
    """A schedule has no history of its own: the audit log tells each change."""
    caplog.set_level(logging.INFO, "durableflow.audit")
    with django_capture_on_commit_callbacks(execute=True):
        url = planner.post(URL, WEEKLY).json()["url"]
        planner.patch(url, {"cron": "0 3 * * *"})
        planner.post(f"{url}pause/", {"reason": "stock-taking"})
        planner.delete(url)
    told = [record for record in caplog.records if record.name == "durableflow.audit"]
    assert [record.verb for record in told] == ["create", "edit", "pause", "delete"]
    assert {(record.actor, record.via) for record in told} == {("planner", "api")}
    assert told[2].reason == "stock-taking"


def test_everything_has_a_default(planner) -> None:
    told = planner.post(URL, {"workflow": "api-order", "name": "n", "cron": "*/5 * * * *"}).json()
    assert (told["timezone"], told["catch_up"], told["overlap"], told["params"]) == ("UTC", "latest", "allow", None)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "@foo"}, "cron"),
        ({"cron": ""}, "cron"),
        ({"cron": "0," * 200 + "0 9 * * MON"}, "cron"),
        ({"cron": None}, "cron"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": "../../etc/passwd"}, "timezone"),
        ({"catch_up": "all"}, "catch_up"),
        ({"catch_up": True}, "catch_up"),
        ({"catch_up": 1e9}, "catch_up"),
        ({"catch_up": 10**20}, "catch_up"),
        ({"overlap": "queue"}, "overlap"),
        ({"enabled": "yes"}, "enabled"),
        ({"name": "a b"}, "name"),
        ({"name": "schedule-2"}, "name"),
        ({"name": "x" * 61}, "name"),
        ({"next_slot": "2026-12-01T00:00:00Z"}, "next_slot"),
        ({"declared": True}, "declared"),
        ({"workflow": "os.system"}, "workflow"),
        ({"workflow": "django.core.management.call_command"}, "workflow"),
        ({"workflow": "tests.api.flows.ApiOrder"}, "workflow"),
        ({"workflow": "nowhere"}, "workflow"),
        ({"workflow": ["api-order"]}, "workflow"),
        ({"cron": "0 9 * * MON\0"}, "cron"),
    ],
)
def test_what_cannot_fire_is_refused(change, field, planner, schedule_of) -> None:
    """SCH-05, SEC-08: with the field; nothing is stored, nothing imported, and no edit brings it in either."""
    kept = schedule_of(name="kept")
    before = snapshot()
    for response in (planner.post(URL, WEEKLY | change), planner.patch(f"{URL}{kept.pk}/", change)):
        assert (response.status_code, response.json()["code"]) == (400, "invalid"), response.json()
        assert list(response.json()["fields"]) == [field], response.json()
        assert snapshot() == before


def test_params_that_cannot_be_stored(planner, schedule_of, settings) -> None:
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LIMITS": {"params": 100}}
    kept = schedule_of(name="kept")
    before = snapshot()
    for params in ("\0", "x" * 200):
        for response in (
            planner.post(URL, WEEKLY | {"params": params}),
            planner.patch(f"{URL}{kept.pk}/", {"params": params}),
        ):
            assert (response.status_code, list(response.json()["fields"])) == (400, ["params"])
            assert snapshot() == before


def test_a_name_is_taken_once(planner, schedule_of, monkeypatch) -> None:
    """A 409, also where another request has taken it after this one had looked."""
    schedule_of(name="weekly")
    before = snapshot()
    response = planner.post(URL, WEEKLY)
    assert (response.status_code, response.json()["code"]) == (409, "already_exists") and snapshot() == before
    with monkeypatch.context() as patch:
        patch.setattr(WorkflowSchedule, "validate_constraints", lambda self, **options: None)
        response = planner.post(URL, WEEKLY)
    assert (response.status_code, response.json()["code"]) == (409, "already_exists") and snapshot() == before
    assert planner.post(URL, WEEKLY | {"workflow": "api-payment"}).status_code == 201


def test_pause_and_resume(planner, schedule_of) -> None:
    """SCH-09: a paused one has no next slot, and nothing of the pause is made up for; a second click is a 409."""
    url = f"{URL}{schedule_of().pk}/"
    paused = planner.post(f"{url}pause/", {"reason": "stock-taking"})
    assert (paused.status_code, paused.json()["enabled"], paused.json()["upcoming"]) == (200, False, [])
    again = planner.post(f"{url}pause/")
    assert (again.status_code, again.json()["code"], again.json()["status"]) == (409, "invalid_transition", "paused")
    resumed = planner.post(f"{url}resume/").json()
    assert resumed["enabled"] and datetime.fromisoformat(resumed["next_slot"]) > timezone.now()
    assert planner.post(f"{url}resume/").status_code == 409
    assert planner.patch(url, {"enabled": False}).json()["next_slot"] is None
    for bad in ({"force": True}, {"reason": []}, []):
        assert planner.post(f"{url}resume/", bad).status_code == 400


def test_run_now(client_of, people, schedule_of) -> None:
    """Beside its slots, as the user, also while it is paused."""
    row = schedule_of(params={"n": 1})
    row.pause()
    response = client_of("superuser").post(f"{URL}{row.pk}/run/", {"reason": "month end"})
    assert response.status_code == 201, response.json()
    made = WorkflowInstance.objects.get()
    assert response.json()["instance_id"] == made.instance_id and response["Location"] == response.json()["url"]
    assert (made.params, made.schedule, made.scheduled_for, made.trigger) == ({"n": 1}, row, None, "api")
    assert made.created_by == people("superuser")


def run(client, row, key: str | None = None, **body: object):
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(f"{URL}{row.pk}/run/", body, headers=headers)


def test_a_key_runs_a_schedule_once(client_of, schedule_of) -> None:
    """SEC-15: the second click gets the first answer, also after the end; without a key each request starts one."""
    client, row = client_of("superuser"), schedule_of()
    first = run(client, row, "k", reason="month end")
    assert first.status_code == 201
    WorkflowInstance.objects.update(status="complete", wake_at=None)
    before = snapshot()
    again = run(client, row, "k", reason="month end")
    assert (again.status_code, again.json(), again["Location"]) == (200, first.json(), first["Location"])
    assert snapshot() == before
    assert [run(client, row, key).status_code for key in ("other", None, None)] == [201] * 3
    assert WorkflowInstance.objects.filter(schedule=row).count() == 4


def test_a_key_of_another_request_runs_nothing(client_of, people, schedule_of) -> None:
    """SEC-15: another reason, another schedule of the workflow, a start of the workflow; but another person's key is no matter."""
    client, row = client_of("superuser"), schedule_of()
    assert run(client, row, "k").status_code == 201
    assert client.post(ORDERS, {}, headers={"Idempotency-Key": "start"}).status_code == 201
    before = snapshot()
    refused = [
        run(client, row, "k", reason="other"),
        run(client, schedule_of(name="second"), "k"),
        run(client, row, "start"),
        client.post(ORDERS, {}, headers={"Idempotency-Key": "k"}),
    ]
    assert {(each.status_code, each.json()["code"]) for each in refused} == {(422, "idempotency_conflict")}
    WorkflowSchedule.objects.filter(name="second").delete()
    assert snapshot() == before
    too_long = run(client, row, "x" * 256)
    assert (too_long.status_code, list(too_long.json()["fields"])) == (400, ["Idempotency-Key"])
    WorkflowInstance.objects.update(created_by=people("starter"))
    assert run(client, row, "k").status_code == 201


def test_two_requests_with_one_key_meet(client_of, schedule_of, monkeypatch) -> None:
    """CON-01: the one that looked before the other had started its instance gets that instance."""
    client, row = client_of("superuser"), schedule_of()
    first = run(client, row, "k")
    look, looks = starting._first, []

    def late(*args: Any) -> Any:
        looks.append(args)
        return None if len(looks) == 1 else look(*args)

    monkeypatch.setattr(starting, "_first", late)
    again = run(client, row, "k")
    assert (again.status_code, again.json(), len(looks)) == (200, first.json(), 2)
    assert WorkflowInstance.objects.count() == 1


def test_a_key_of_a_person_who_may_start_nothing(client_of, people, schedule_of) -> None:
    """SEC-15: the right is asked for before the key."""
    row = schedule_of()
    assert run(client_of("superuser"), row, "k").status_code == 201
    WorkflowInstance.objects.update(created_by=people("planner"))
    assert run(client_of("planner"), row, "k").status_code == 403


def test_a_schedule_whose_workflow_is_gone_cannot_run(client_of, schedule_of) -> None:
    """SEC-08: a row that SQL has changed is looked up, never imported; it can be seen and paused."""
    row = schedule_of()
    WorkflowSchedule.objects.filter(pk=row.pk).update(workflow="os.system")
    client = client_of("superuser")
    response = client.post(f"{URL}{row.pk}/run/")
    assert (response.status_code, response.json()["code"]) == (409, "cannot_run")
    assert client.get(f"{URL}{row.pk}/").json()["workflow"] == "os.system"
    assert client.post(f"{URL}{row.pk}/pause/").status_code == 200
    assert not WorkflowInstance.objects.exists()


def test_declared_schedules_belong_to_the_code(client_of, schedule_of) -> None:
    """409: the next deploy would undo it. They can be paused, resumed and run."""
    url = f"{URL}{schedule_of(declared=True).pk}/"
    client = client_of("superuser")
    before = snapshot()
    for response in (client.patch(url, {"cron": "0 3 * * *"}), client.delete(url)):
        assert (response.status_code, response.json()["code"]) == (409, "declared")
        assert snapshot() == before
    assert client.patch(url, {"enabled": False}).json()["enabled"] is False
    assert client.post(f"{url}resume/").status_code == 200
    assert client.post(f"{url}run/").status_code == 201
    WorkflowSchedule.objects.update(workflow="taken-out")  # of the code: nobody declares it again
    assert client.delete(url).status_code == 204


def test_the_list_and_its_filters(planner, schedule_of) -> None:
    """SEC-12: page by page; by workflow and by whether they fire."""
    for index in range(3):
        schedule_of(name=f"a-{index}")
    schedule_of(name="b", workflow="api-payment").pause()
    first = planner.get(f"{URL}?page_size=3").json()
    rest = planner.get(first["next"]).json()
    assert [row["name"] for row in first["results"] + rest["results"]] == ["b", "a-2", "a-1", "a-0"]
    assert "params" not in first["results"][0]

    def named(query: str) -> list[str]:
        return [row["name"] for row in planner.get(f"{URL}?{query}").json()["results"]]

    assert named("workflow=api-payment") == ["b"] and named("workflow=nowhere") == []
    assert named("enabled=false") == ["b"] and len(named("enabled=true")) == 3
    assert planner.get(f"{URL}?name=b").json()["fields"].keys() == {"name"}
    assert len(named("enabled=")) == 4
    for wrong in ("enabled=maybe", "enabled=2"):
        response = planner.get(f"{URL}?{wrong}")
        assert (response.status_code, list(response.json()["fields"])) == (400, ["enabled"])


def test_skipped_slots_are_told(planner, schedule_of) -> None:
    """SCH-07: the latest first."""
    row = schedule_of()
    slot = datetime(2026, 11, 1, 2, tzinfo=UTC)
    for number, reason in enumerate(("overlap", "catch_up")):
        first = slot + timedelta(days=10 * number)
        SkippedSlots.objects.create(
            schedule=row, slot=first, last=first + timedelta(days=2), number=3, reason=reason, detail="d", at=first
        )
    told = planner.get(f"{URL}{row.pk}/").json()["skipped"]
    assert [(each["reason"], each["number"], each["slot"]) for each in told] == [
        ("catch_up", 3, "2026-11-11T02:00:00Z"), ("overlap", 3, "2026-11-01T02:00:00Z"),
    ]  # fmt: skip


@pytest.mark.parametrize("number", [0, 7, 2**63, 10**30])
def test_unknown_schedules(number, planner) -> None:
    """404 for every verb, also for numbers that no database has."""
    url = f"{URL}{number}/"
    answers = [planner.get(url), planner.patch(url, {}), planner.delete(url), planner.post(f"{url}pause/")]
    answers += [planner.post(f"{url}resume/"), planner.post(f"{url}run/")]
    assert [answer.status_code for answer in answers] == [404] * 6


def test_params_of_a_schedule_are_masked(planner, schedule_of, settings) -> None:
    """SEC-09: whatever stands under a key of ``REDACT``."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "REDACT": ("password",)}
    row = schedule_of(params={"password": "hunter2", "n": 1})
    assert planner.get(f"{URL}{row.pk}/").json()["params"] == {"password": "[REDACTED]", "n": 1}
