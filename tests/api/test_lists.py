"""Lists over REST: what they hold, how they are filtered and cut into pages (cases SEC-04, SEC-12)."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from durableflow.core import clock, registry
from durableflow.models import WorkflowInstance
from tests.api.conftest import ORDERS, queries_of
from tests.api.flows import ApiOrder

pytestmark = pytest.mark.django_db
AT = datetime(2026, 12, 1, tzinfo=UTC)


def ids(response) -> list[str]:
    assert response.status_code == 200, response.content
    return [row["instance_id"] for row in response.json()["results"]]


def test_everybody_sees_their_own(client_of, people, order) -> None:
    """SEC-04: lists, filters, searches and pages start from what the user may see."""
    for number in range(3):
        order(f"mine-{number}")
        order(f"theirs-{number}", created_by=people("superuser"))
    creator = client_of("creator")
    assert ids(creator.get(ORDERS)) == ["mine-2", "mine-1", "mine-0"]
    assert ids(creator.get(f"{ORDERS}?search=theirs")) == []
    assert ids(creator.get(f"{ORDERS}?status=waiting&page_size=2")) == ["mine-2", "mine-1"]
    assert "count" not in creator.get(ORDERS).json()
    assert ids(client_of("stranger").get(ORDERS)) == []
    assert len(ids(client_of("viewer").get(ORDERS))) == 6


def test_foreign_and_unknown_ids_are_the_same(client_of, people, order, step_of, wait_of) -> None:
    """SEC-04: nothing in the answers tells them apart."""
    foreign = order("foreign", created_by=people("superuser"))
    step = step_of(foreign)
    wait = wait_of(foreign)
    client = client_of("creator")
    for parts in ("", "steps/", f"steps/{step.pk}/output/", "history/"):
        assert client.get(f"{ORDERS}foreign/{parts}").content == client.get(f"{ORDERS}unknown/{parts}").content
    for verb in ("retry", "resume", "terminate", "events"):
        answers = [
            client.post(f"{ORDERS}{name}/{verb}/", {"type": "x"} if verb == "events" else {})
            for name in ("foreign", "unknown")
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].content == answers[1].content
    assert client.get(f"/api/pending-events/{wait.pk}/").content == client.get("/api/pending-events/999999/").content
    decide = {"approved": True}
    assert (
        client.post(f"/api/pending-events/{wait.pk}/decide/", decide).content
        == client.post("/api/pending-events/999999/decide/", decide).content
    )


def test_lists_leave_the_big_columns_out(client_of, order, django_assert_max_num_queries) -> None:
    """Design 2: a list reads no params and outputs, and asks no more for more rows."""
    for number in range(10):
        order(f"order-{number}", params={"secret": number})
    client = client_of("viewer")
    with django_assert_max_num_queries(6) as captured:
        body = client.get(ORDERS).json()
    assert not {"params", "output", "error", "progress"} & set(body["results"][0])
    assert captured.captured_queries
    for query in captured.captured_queries:
        assert '"params"' not in query["sql"] and '"output"' not in query["sql"]
    assert queries_of(client, f"{ORDERS}?page_size=1") == len(captured.captured_queries)


def test_filters(client_of, order) -> None:
    order("a-1", status="waiting", created=AT)
    order("a-2", status="complete", created=AT + timedelta(days=1))
    order("b-1", status="errored", created=AT + timedelta(days=2))
    client = client_of("viewer")
    assert ids(client.get(f"{ORDERS}?status=waiting")) == ["a-1"]
    assert ids(client.get(f"{ORDERS}?status=waiting&status=errored")) == ["b-1", "a-1"]
    assert ids(client.get(f"{ORDERS}?status=waiting,complete")) == ["a-2", "a-1"]
    assert ids(client.get(f"{ORDERS}?search=a-")) == ["a-2", "a-1"]
    assert ids(client.get(f"{ORDERS}?search=1")) == []
    assert ids(client.get(f"{ORDERS}?search=a%25")) == []
    assert ids(client.get(f"{ORDERS}?created_after=2026-12-02T00:00:00Z")) == ["b-1", "a-2"]
    assert ids(client.get(f"{ORDERS}?created_before=2026-12-02T00:00:00Z")) == ["a-1"]
    assert ids(
        client.get(f"{ORDERS}?created_after=2026-12-02T01:00:00%2B01:00&created_before=2026-12-03T00:00:00Z")
    ) == ["a-2"]


@pytest.mark.parametrize("query", ["status=nothing", "status=waiting,nothing", "created_after=yesterday", "search=%00"])
def test_wrong_filters(query, client_of, order) -> None:
    """A value that no filter can mean is told, not ignored."""
    order()
    response = client_of("viewer").get(f"{ORDERS}?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert list(response.json()["fields"]) == [query.partition("=")[0]]


def test_pages_show_each_row_once(client_of, people) -> None:
    """SEC-12: 250 rows of one moment, new rows while paging, forward and back."""
    user = people("creator")
    for number in range(250):
        ApiOrder.create(instance_id=f"old-{number}", created_by=user)
    WorkflowInstance.objects.update(created=AT)
    client = client_of("viewer")
    url, seen, backwards = f"{ORDERS}?page_size=50", [], ""
    while url:
        body = client.get(url).json()
        seen += [row["instance_id"] for row in body["results"]]
        for number in range(4):
            ApiOrder.create(instance_id=f"new-{len(seen)}-{number}", created_by=user)
        url, backwards = body["next"], body["previous"]
    assert sorted(seen) == sorted(f"old-{number}" for number in range(250))
    back: list[str] = []
    while backwards:
        body = client.get(backwards).json()
        back = [row["instance_id"] for row in body["results"]] + back
        backwards = body["previous"]
    assert [name for name in back if name.startswith("old")] == seen[:200]


@pytest.mark.parametrize(
    "cursor", ["nonsense", b64encode(b"p=abc").decode(), b64encode(b"p=%00").decode(), b64encode(b"o=-1").decode()]
)
def test_wrong_cursors_are_told(cursor, client_of, order) -> None:
    order()
    for url in (ORDERS, f"{ORDERS}order-1/steps/", "/api/pending-events/"):
        response = client_of("viewer").get(url, {"cursor": cursor})
        assert (response.status_code, response.json()["code"]) == (404, "not_found")


def test_workflows(client_of, order) -> None:
    """The names that the user may start or see, with what they do."""
    order()
    body = client_of("starter").get("/api/workflows/").json()
    assert [row["name"] for row in body["results"]] == registry.names()
    item = client_of("starter").get("/api/workflows/api-order/").json()
    assert item == {
        "name": "api-order",
        "description": "Ships an order.",
        "can_start": True,
        "url": "http://testserver/api/workflows/api-order/",
        "instances_url": f"http://testserver{ORDERS}",
    }
    assert [row["name"] for row in client_of("creator").get("/api/workflows/").json()["results"]] == ["api-order"]
    assert client_of("creator").get("/api/workflows/api-order/").json()["can_start"] is False
    assert client_of("stranger").get("/api/workflows/").json()["results"] == []


def test_instances_of_a_workflow_that_is_gone(client_of, order) -> None:
    """Rows outlive their code: they are seen and ended, never started."""
    order()
    WorkflowInstance.objects.update(workflow="gone")
    client = client_of("operator")
    assert ids(client.get("/api/workflows/gone/instances/")) == ["order-1"]
    assert client_of("stranger").get("/api/workflows/gone/instances/").status_code == 404
    assert client_of("starter").post("/api/workflows/gone/instances/", {}).status_code == 404
    assert client.post("/api/workflows/gone/instances/order-1/terminate/").status_code == 200


def test_deadlines_of_a_paused_instance(client_of, order, wait_of) -> None:
    """Its clock stands still: the deadline is that of an instance which is resumed now, and ``paused_at`` says so (case EVT-15)."""
    now = datetime(2026, 11, 2, 12, tzinfo=UTC)
    hour = timedelta(hours=1)
    row = order(status="paused", paused_at=now - 3 * hour, deadline_at=now - 2 * hour)
    wait = wait_of(row, "paused", deadline=now - hour)
    closed = wait_of(row, "closed", deadline=now - hour, status="received", approved=True)
    running = wait_of(order("order-2"), "running", deadline=now + hour)
    client = client_of("superuser")
    with clock.stop(now):
        listed = client.get("/api/pending-events/").json()["results"]
        one = client.get(f"/api/pending-events/{wait.pk}/").json()
        instance = client.get(f"{ORDERS}order-1/").json()
        steps = client.get(f"{ORDERS}order-1/steps/").json()["results"]
    told = {each["id"]: (each["status"], each["deadline"], each["paused_at"]) for each in listed}
    assert told == {
        wait.pk: ("open", "2026-11-02T14:00:00Z", "2026-11-02T09:00:00Z"),
        closed.pk: ("received", "2026-11-02T11:00:00Z", "2026-11-02T09:00:00Z"),
        running.pk: ("open", "2026-11-02T13:00:00Z", None),
    }
    assert (one["deadline"], one["paused_at"]) == told[wait.pk][1:]
    assert (instance["deadline_at"], instance["paused_at"]) == ("2026-11-02T13:00:00Z", "2026-11-02T09:00:00Z")
    assert [each["deadline"] for each in instance["waiting_for"]] == ["2026-11-02T14:00:00Z"]
    assert {each["wait"]["deadline"] for each in steps} == {"2026-11-02T14:00:00Z", "2026-11-02T11:00:00Z"}


def pending_ids(response) -> list[int]:
    assert response.status_code == 200, response.content
    return [row["id"] for row in response.json()["results"]]


def test_pending_events_by_what_they_are_now(client_of, order, wait_of) -> None:
    row = order()
    wait = wait_of(row, "open")
    late = wait_of(row, "late", deadline=timezone.now() - timedelta(days=1))
    endless = wait_of(row, "endless", deadline=None)
    gone = wait_of(row, "gone", status="timed_out")
    done = wait_of(row, "done", status="received", approved=True)
    event = wait_of(row, "event", types=["note"])
    client, url = client_of("decider"), "/api/pending-events/"
    viewer = client_of("viewer")
    assert pending_ids(viewer.get(f"{url}?status=open")) == [event.pk, endless.pk, wait.pk]
    assert pending_ids(viewer.get(f"{url}?status=timed_out")) == [gone.pk, late.pk]
    assert pending_ids(viewer.get(f"{url}?status=received,timed_out")) == [done.pk, gone.pk, late.pk]
    assert pending_ids(client.get(f"{url}?mine=true")) == [endless.pk, wait.pk]
    assert pending_ids(viewer.get(f"{url}?mine=true")) == []
    assert len(pending_ids(viewer.get(f"{url}?workflow=api-order"))) == 6
    assert pending_ids(viewer.get(f"{url}?workflow=other")) == []
    assert client.get(f"{url}?status=odd").status_code == 400
    assert client.get(f"{url}?mine=yes").json()["fields"].keys() == {"mine"}, "ignored, it would give all"
    statuses = {row["id"]: row["status"] for row in viewer.get(url).json()["results"]}
    assert (statuses[late.pk], statuses[wait.pk]) == ("timed_out", "open")


def test_who_may_decide_sees_the_wait_not_the_instance(client_of, people, order, wait_of) -> None:
    """Design 8: a decider without the right to view gets the pending event and its context alone."""
    row = order(params={"secret": 1})
    wait = wait_of(
        row, context={"total": 600}, description="Look twice.", form="tests.api.flows.RefundForm", restricted=True
    )
    wait.users.add(people("stranger"))
    client = client_of("stranger")
    assert pending_ids(client.get("/api/pending-events/?mine=true")) == [wait.pk]
    body = client.get(f"/api/pending-events/{wait.pk}/").json()
    assert (body["context"], body["description"], body["users"]) == ({"total": 600}, "Look twice.", ["stranger"])
    assert (body["may_decide"], body["instance_url"], body["decision"]) == (True, None, None)
    amount, _, tags, _ = body["form"]
    assert (amount["name"], amount["type"], amount["required"], amount["choices"]) == ("amount", "decimal", True, None)
    assert tags["choices"] == [["a", "A"], ["b", "B"]]
    assert client.get(f"{ORDERS}order-1/").status_code == 404
    assert client_of("decider").get(f"/api/pending-events/{wait.pk}/").status_code == 404
    assert (
        client_of("creator").get(f"/api/pending-events/{wait.pk}/").json()["instance_url"].endswith(f"{ORDERS}order-1/")
    )


def test_a_form_that_is_not_loaded_breaks_no_page(client_of, order, wait_of) -> None:
    """SEC-08: it is looked up, never imported."""
    wait = wait_of(order(), form="os.path.Form")
    assert client_of("viewer").get(f"/api/pending-events/{wait.pk}/").json()["form"] is None


def test_pending_lists_ask_no_more_for_more_rows(client_of, order, wait_of) -> None:
    row = order()
    for number in range(10):
        wait_of(row, f"wait {number}")
    client = client_of("decider")
    url = "/api/pending-events/"
    assert queries_of(client, f"{url}?page_size=1") == queries_of(client, f"{url}?page_size=10") < 12
