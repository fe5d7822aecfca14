"""Reading instances over REST: detail, steps, outputs, history; what is masked (cases SEC-09, SER-03, SER-04)."""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, connections
from django.utils import timezone

from durableflow.models import PendingEvent, SentEvent, WorkflowInstance
from durableflow.models.watching import ThreadWatch
from tests.api.conftest import ORDERS, queries_of

pytestmark = pytest.mark.django_db
URL = f"{ORDERS}order-1/"
MASK = "[REDACTED]"
MOMENT = datetime(2026, 12, 1, 8, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def viewer(client_of):
    return client_of("viewer")


def test_the_detail_says_what_an_instance_waits_for(viewer, order, wait_of) -> None:
    row = order(params={"cart_id": 42})
    wait = wait_of(row, title="Ship it?")
    body = viewer.get(URL).json()
    assert body["waiting_for"] == [
        {
            "pending_event": wait.pk,
            "name": "approval",
            "count": 1,
            "kind": "wait_for_approval",
            "types": [],
            "title": "Ship it?",
            "deadline": wait.deadline.isoformat().replace("+00:00", "Z"),
        }
    ]
    assert body["reason"].startswith("Waits for a decision in approval-1 until 20")
    assert (body["status"], body["blocked"], body["error"], body["progress"]) == ("waiting", False, None, None)
    assert (body["params"], body["created_by"], body["trigger"], body["priority"]) == (
        {"cart_id": 42},
        "creator",
        "code",
        "normal",
    )
    assert body["available_actions"] == []
    assert viewer.get(body["steps_url"]).status_code == viewer.get(body["history_url"]).status_code == 200


def test_available_actions_are_those_that_work_now(client_of, order) -> None:
    order(status="errored", finished=timezone.now())
    assert client_of("operator").get(URL).json()["available_actions"] == ["restart", "retry"]
    assert client_of("remover").get(URL).json()["available_actions"] == ["delete"]
    WorkflowInstance.objects.update(status="waiting", finished=None)
    assert client_of("operator").get(URL).json()["available_actions"] == [
        *("pause", "restart", "send_event", "terminate"),
    ]
    assert client_of("viewer").get(URL).json()["available_actions"] == []


def test_a_wait_past_its_deadline_is_over(viewer, order, wait_of) -> None:
    """Design 8: it reads as timed out even if no worker was up."""
    wait_of(order(), deadline=timezone.now() - timedelta(seconds=1))
    assert viewer.get(URL).json()["waiting_for"] == []
    assert viewer.get(f"{URL}steps/").json()["results"][0]["wait"]["status"] == "timed_out"


def test_times_keep_their_digits(viewer, order, step_of, settings) -> None:
    """SER-03: microseconds and offsets, whatever the project's formats are."""
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "DATETIME_FORMAT": "%Y"}
    output = {
        "at": MOMENT,
        "time": time(8, 0, 0, 7),
        "date": date(2026, 12, 1),
        "delta": timedelta(days=-1, microseconds=7),
        "decimal": Decimal("1.10"),
        "uuid": uuid.UUID(int=1),
        "bytes": b"\xff",
        "tuple": (1, 2),
        "set": {3},
        1: "int key",
    }
    step = step_of(order(output=output, created=MOMENT), raw_output=output)
    expected = {
        "at": "2026-12-01T08:00:00.123456+00:00",
        "time": "08:00:00.000007",
        "date": "2026-12-01",
        "delta": "-P0DT23H59M59.999993S",
        "decimal": "1.10",
        "uuid": "00000000-0000-0000-0000-000000000001",
        "bytes": "/w==",
        "tuple": [1, 2],
        "set": [3],
        "1": "int key",
    }
    body = viewer.get(URL).json()
    assert body["output"] == expected
    assert body["created"] == "2026-12-01T08:00:00.123456Z"
    assert viewer.get(f"{URL}steps/{step.pk}/output/").json()["output"] == expected


def test_numbers_that_json_does_not_have(viewer, order) -> None:
    """SER-04: shown as text, so that the answer stays JSON."""
    order(output=[float("nan"), float("inf"), {"a": -float("inf")}])
    assert viewer.get(URL).json()["output"] == ["NaN", "Infinity", {"a": "-Infinity"}]


def test_one_unreadable_row_spoils_nothing_else(viewer, order, step_of, entry_of) -> None:
    """SER-04, OPS-13: lists and pages go on, the bad value says why."""
    row = order()
    step_of(row)
    entry_of(row, "step_completed", kind="do", step="charge-1")
    order("order-2")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE durableflow_workflowinstance SET params = '{', error = 'x', progress = '' WHERE id = %s", [row.pk]
        )
        cursor.execute("UPDATE durableflow_steprecord SET output = '[', error = '{'")
        cursor.execute("UPDATE durableflow_historyentry SET data = '{'")
    assert len(viewer.get(ORDERS).json()["results"]) == 2
    body = viewer.get(URL).json()
    assert body["params"].startswith("<unreadable")
    assert body["error"]["type"] == "Unreadable"
    step = viewer.get(f"{URL}steps/").json()["results"][0]
    assert step["error"]["type"] == "Unreadable"
    assert viewer.get(step["output_url"]).json()["output"].startswith("<unreadable")
    assert viewer.get(f"{URL}history/").status_code == 200


SECRET = "tok_9f8e7d6c"


def test_sensitive_steps_are_masked_everywhere(client_of, order, step_of, entry_of) -> None:
    """SEC-09: output, error and traceback, in every answer, for everybody; also where another step's error quotes the output."""
    error = {"type": "ValueError", "message": f"bad {SECRET}", "traceback": f"... {SECRET}", "step": "use-1"}
    row = order(status="errored", finished=timezone.now(), error_data=error)
    step_of(row, "token", sensitive=True, raw_output={"token": SECRET, "n": [SECRET.encode()]})
    step_of(
        row,
        "login",
        sensitive=True,
        status="failed",
        error_data={**error, "message": "pass hunter2", "step": "login-1"},
    )
    step_of(row, "use", status="failed", error_data=error)
    entry_of(row, "step_completed", kind="do", step="token-1", data={"attempt": 1, "started": MOMENT, "output": SECRET})
    entry_of(
        row,
        "attempt_errored",
        kind="do",
        step="login-1",
        data={"attempt": 1, "error": {**error, "message": "pass hunter2"}},
    )
    entry_of(row, "attempt_errored", kind="do", step="use-1", data={"attempt": 1, "error": error})
    entry_of(row, "workflow_errored", data={"error": error})
    entry_of(row, "workflow_paused", data={"blocked": f"because of {SECRET}"})
    for role in ("viewer", "superuser"):
        client = client_of(role)
        steps = client.get(f"{URL}steps/")
        urls = [URL, f"{URL}history/", ORDERS, *(step["output_url"] for step in steps.json()["results"])]
        for answer in (steps, *(client.get(url) for url in urls)):
            text = answer.content.decode()
            assert SECRET not in text and "hunter2" not in text
    token, login, use = steps.json()["results"]
    assert client.get(token["output_url"]).json() == {
        "id": token["id"], "label": "token-1", "status": "complete", "sensitive": True, "output": MASK,
    }  # fmt: skip
    assert login["error"] == {"type": "ValueError", "message": MASK, "traceback": "", "step": "login-1"}
    assert use["error"]["message"] == f"bad {MASK}"
    assert client.get(URL).json()["error"]["message"] == f"bad {MASK}"
    assert f"bad {MASK}" in client.get(URL).json()["reason"]


def test_a_blocked_reason_is_masked_too(viewer, order, step_of) -> None:
    """SEC-09."""
    row = order(status="paused", blocked=f"SuspensionSwallowed: {SECRET}")
    step_of(row, "token", sensitive=True, raw_output=SECRET)
    body = viewer.get(URL).json()
    assert body["blocked"] is True
    assert SECRET not in body["reason"] and "SuspensionSwallowed" in body["reason"]


def test_redacted_keys(client_of, order, step_of, wait_of, entry_of, settings) -> None:
    """SEC-09: keys named in the settings, at any depth, without regard to case."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "REDACT": ["password", "Card_Number"]}
    value = {"user": "ada", "PASSWORD": SECRET, "list": [{"card_number": [SECRET]}], "ok": "password"}
    row = order(params=value, output=value, progress=value)
    step = step_of(row, raw_output=(value,))
    wait = wait_of(row, context=value, data=value, approved=True, status="received", decided_by_name="ada", via="api",
                   decided_at=timezone.now())  # fmt: skip
    entry_of(row, "workflow_paused", data=value)
    client = client_of("superuser")
    for url in (URL, f"{URL}steps/{step.pk}/output/", f"{URL}history/", f"/api/pending-events/{wait.pk}/"):
        answer = client.get(url)
        assert SECRET not in answer.content.decode()
        assert MASK in answer.content.decode()
    assert client.get(URL).json()["params"] == {
        "user": "ada", "PASSWORD": MASK, "list": [{"card_number": MASK}], "ok": "password",
    }  # fmt: skip


def test_steps_come_page_by_page_in_their_order(viewer, order, step_of) -> None:
    """SEC-12: each once; the number of queries does not grow with the number of steps."""
    row = order()
    for number in range(25):
        step_of(row, f"step {number}")
    url, names = f"{URL}steps/?page_size=10", []
    while url:
        body = viewer.get(url).json()
        names += [step["name"] for step in body["results"]]
        url = body["next"]
    assert names == [f"step {number}" for number in range(25)]
    assert queries_of(viewer, f"{URL}steps/?page_size=5") == queries_of(viewer, f"{URL}steps/?page_size=25") < 12


def test_steps_of_another_instance_are_not_found(viewer, order, step_of) -> None:
    """SEC-04: an id is looked up below its own instance alone."""
    order()
    step = step_of(order("order-2"), raw_output=1)
    for number in (step.pk, 0, 10**30):
        assert viewer.get(f"{URL}steps/{number}/output/").status_code == 404


def test_history_expands_a_step_that_succeeded_at_once(viewer, order, entry_of) -> None:
    row = order()
    done = entry_of(row, "step_completed", kind="do", step="charge-1", data={"started": MOMENT, "attempt": 1})
    body = viewer.get(f"{URL}history/").json()
    assert [entry["type"] for entry in body["results"]] == [
        "workflow_queued", "step_started", "attempt_started", "attempt_completed", "step_completed",
    ]  # fmt: skip
    assert [entry["id"] for entry in body["results"][1:]] == [done.pk] * 4
    assert body["results"][1]["at"] == "2026-12-01T08:00:00.123456Z"
    assert body["results"][0]["actor"] == "creator"
    assert (body["cursor"], body["next"]) == (done.pk, None)


def test_the_cursor_of_the_history_misses_nothing(viewer, order, entry_of) -> None:
    """Design 2: the cursor is the last stored entry that was looked at, also where a filter shows none of it."""
    row = order()
    for number in range(1, 8):
        entry_of(row, "step_completed", kind="do", step=f"s-{number}", data={"started": MOMENT, "attempt": 1})
        entry_of(row, "sleep_started", kind="sleep", step=f"z-{number}")
    url, seen = f"{URL}history/?types=attempt_started,sleep_started&limit=3", []
    while url:
        body = viewer.get(url).json()
        assert len(body["results"]) <= 3
        seen += [(entry["type"], entry["step"]) for entry in body["results"]]
        cursor, url = body["cursor"], body["next"]
    assert len(seen) == len(set(seen)) == 14
    again = viewer.get(f"{URL}history/?after={cursor}").json()
    assert (again["results"], again["cursor"]) == ([], cursor)
    late = entry_of(row, "workflow_completed")
    assert [entry["id"] for entry in viewer.get(f"{URL}history/?after={cursor}").json()["results"]] == [late.pk]


@pytest.mark.parametrize(
    "query",
    [
        "after=-1",
        "after=1.5",
        "after=x",
        f"after={10**30}",
        "types=nothing",
        "types=",
        "types=,",
        "limit=0",
        "limit=1e9",
    ],
)
def test_wrong_history_queries(query, viewer, order) -> None:
    order()
    response = viewer.get(f"{URL}history/?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "invalid")


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "inf", "x", ""])
def test_wrong_waits(wait, viewer, order) -> None:
    order()
    response = viewer.get(f"{URL}?wait={wait}")
    assert (response.status_code, list(response.json()["fields"])) == (400, ["wait"])


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "waiting"},
        {"status": "waiting", "wake_at": datetime(2100, 1, 1, tzinfo=UTC)},
        {"status": "paused", "blocked": "x"},
        {"status": "complete"},
        {"status": "errored"},
        {"status": "terminated"},
    ],
)
def test_an_instance_at_rest_is_answered_at_once(fields, viewer, order, monkeypatch) -> None:
    order(**fields)
    monkeypatch.setattr(ThreadWatch, "wait", lambda self, most: pytest.fail("it waited"))
    assert viewer.get(f"{URL}?wait=60").json()["status"] == fields["status"]


@pytest.mark.parametrize(
    "fields", [{"status": "running"}, {"status": "queued"}, {"status": "waiting", "wake_at": MOMENT.replace(year=2020)}]
)
def test_the_wait_goes_on_until_something_happens(fields, viewer, order, monkeypatch) -> None:
    order(**fields)
    looks = []

    def end(self: ThreadWatch, most: float) -> None:
        looks.append(most)
        if len(looks) == 3:
            WorkflowInstance.objects.update(status="complete", wake_at=None)

    monkeypatch.setattr(ThreadWatch, "wait", end)
    assert viewer.get(f"{URL}?wait=60").json()["status"] == "complete"
    assert len(looks) == 3


def test_an_event_on_its_way_is_waited_for(viewer, order, monkeypatch) -> None:
    """Who has just decided gets the answer of what follows, not of what was."""
    row = order()
    SentEvent.objects.create(instance=row, run_number=1, type="note", sent_at=timezone.now())
    monkeypatch.setattr(ThreadWatch, "wait", lambda self, most: SentEvent.objects.update(delivered=True))
    assert viewer.get(f"{URL}?wait=60").json()["status"] == "waiting"


@pytest.mark.django_db(transaction=True)
def test_a_wait_sees_what_another_process_commits(viewer, order) -> None:
    order(status="running")
    answers: list[Any] = []

    def look() -> None:
        try:
            answers.append(viewer.get(f"{URL}?wait=30").json())
        finally:
            connections.close_all()

    thread = threading.Thread(target=look)
    thread.start()
    WorkflowInstance.objects.update(status="complete", output={"a": 1})
    thread.join(25)
    assert [answer["output"] for answer in answers] == [{"a": 1}]


def test_a_deleted_instance_ends_the_wait(viewer, order, monkeypatch) -> None:
    order(status="running")
    monkeypatch.setattr(ThreadWatch, "wait", lambda self, most: WorkflowInstance.objects.all().delete())
    assert viewer.get(f"{URL}?wait=60").status_code == 404
    assert not PendingEvent.objects.exists()
