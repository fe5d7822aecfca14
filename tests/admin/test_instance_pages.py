"""The list of instances and the page of one."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from durableflow.core.failures import REDACTED
from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models import WorkflowInstance
from tests.admin.rows import S, add_history, make_blocked, make_failed, make_instance, make_step, make_wait, send

pytestmark = pytest.mark.django_db
LIST = "admin:durableflow_workflowinstance_changelist"
PAGE = "admin:durableflow_workflowinstance_change"
PENDING = "admin:durableflow_pendingevent_change"


def html(response) -> str:
    """The page's text with white space folded."""
    assert response.status_code == 200, response.status_code
    return re.sub(r"\s+", " ", response.content.decode())


def listed(client, **query) -> list[str]:
    """The instance ids that the list shows."""
    response = client.get(reverse(LIST), query)
    assert response.status_code == 200
    return [row.instance_id for row in response.context["cl"].result_list]


def test_list_shows_status_reason_and_progress(login, viewer) -> None:
    """Status as icon and text, with a reason; progress in a line."""
    make_wait(make_instance(instance_id="a-1", progress={"state": "charged", "items": [1]}))
    make_blocked(instance_id="b-1")
    make_failed(instance_id="c-1")
    page = html(login(viewer).get(reverse(LIST)))
    assert "Decision: manager approval" in page
    assert "state: charged, items: …" in page
    assert "Blocked: needs a person" in page
    assert '<span aria-hidden="true">✕</span> Failed' in page
    assert 'href="?status__exact=errored"' in page


def test_list_filters(login, viewer, user_factory) -> None:
    """Status, workflow, time, "waiting on me", "needs attention"."""
    ops = user_factory(
        "ops", is_staff=True, permissions=["durableflow.view_workflowinstance", "durableflow.decide_pendingevent"]
    )
    now = timezone.now()
    make_wait(make_instance(instance_id="mine"))
    make_failed(instance_id="failed", workflow="export")
    make_blocked(instance_id="blocked")
    make_instance(instance_id="overdue", status=S.QUEUED, wake_at=now - timedelta(minutes=5))
    make_instance(instance_id="due", status=S.QUEUED, wake_at=now)
    make_instance(instance_id="old", status=S.COMPLETE, created=now - timedelta(days=3))
    client = login(ops)
    assert listed(client, status__exact="errored") == ["failed"]
    assert listed(client, workflow="export") == ["failed"]
    assert listed(client, attention="mine") == ["mine"]
    assert listed(client, attention="needed") == ["overdue", "blocked", "failed"]
    assert "old" not in listed(client, created="day")
    assert "old" in listed(client, created="week")
    assert listed(login(viewer), attention="mine") == []


def test_search_is_by_prefix_of_the_id(login, viewer) -> None:
    """The beginning of an id, exactly; LIKE's own signs mean nothing; payloads are not searched."""
    for instance_id in ("order-1", "order-12", "Order-1", "order_1", "xorder-1"):
        make_instance(instance_id=instance_id, params={"text": "needle"})
    client = login(viewer)
    assert set(listed(client, q="order-1")) == {"order-1", "order-12"}
    assert listed(client, q="order_") == ["order_1"]
    assert listed(client, q="needle") == []
    assert listed(client, q="%") == []
    assert listed(client, q="x" * 101) == []
    assert "Nothing matches" in html(client.get(reverse(LIST), {"q": "needle"}))


def test_search_finds_workflows_that_no_code_knows(login, viewer) -> None:
    """Rows of a class that was removed stay findable."""
    make_instance(instance_id="lost-1", workflow="removed-long-ago")
    assert listed(login(viewer), q="lost") == ["lost-1"]


def test_list_costs_the_same_for_one_row_and_for_many(login, viewer, django_assert_max_num_queries) -> None:
    """Constant queries."""
    client = login(viewer)

    def queries() -> int:
        with django_assert_max_num_queries(20) as captured:
            client.get(reverse(LIST))
        return len(captured)

    make_wait(make_instance(progress="x"))
    first = queries()
    for _ in range(15):
        make_wait(make_instance(progress={"n": 1}))
        make_failed()
    assert queries() == first


def test_list_reads_no_big_column_and_counts_within_a_bound(
    login, viewer, django_assert_max_num_queries, monkeypatch
) -> None:
    """Params, output and error stay in the database; the count stops at its bound and says so."""
    monkeypatch.setattr("durableflow.admin.lists.MOST_COUNTED", 3)
    for _ in range(5):
        make_instance(params={"secret": "heavy params"})
    client = login(viewer)
    with django_assert_max_num_queries(16) as captured:
        page = html(client.get(reverse(LIST)))
    assert "There are more: narrow the list" in page
    rows = [query["sql"] for query in captured if "progress_start" in query["sql"]]
    assert len(rows) == 1
    for column in ('"params"', '"output"', '"error"', '"rollback"'):
        assert f"{column}," not in re.sub(r"SUBSTR(ING)?\([^)]*\)", "", rows[0])
    assert all("LIMIT" in query["sql"] for query in captured if "COUNT(*)" in query["sql"])


def test_order_is_unique_and_newest_first(login, viewer) -> None:
    """SEC-12: equal times, every row once over the pages."""
    now = timezone.now()
    ids = [make_instance(created=now).pk for _ in range(120)]
    client = login(viewer)
    seen = [
        row.pk for number in (1, 2, 3) for row in client.get(reverse(LIST), {"p": number}).context["cl"].result_list
    ]
    assert seen == sorted(ids, reverse=True)


def test_requester_without_rights_sees_own_instances_only(login, requester, viewer) -> None:
    """Design 9, SEC-04: own rows, own counts, 404 for all others."""
    mine, other = make_instance(created_by=requester), make_instance()
    client = login(requester)
    response = client.get(reverse(LIST))
    assert [row.pk for row in response.context["cl"].result_list] == [mine.pk]
    assert [entry["number"] for entry in response.context["status_counts"]] == ["1"]
    assert client.get(reverse(PAGE, args=[mine.pk])).status_code == 200
    unknown = client.get(reverse(PAGE, args=[999_999_999]))
    assert client.get(reverse(PAGE, args=[other.pk])).status_code == unknown.status_code == 404
    for wrong in ("x", "1" * 40, "0"):
        assert client.get(reverse(PAGE, args=[wrong])).status_code == 404


def test_empty_list_says_how_to_start(login, viewer) -> None:
    """Empty states help."""
    assert "No workflow has run yet" in html(login(viewer).get(reverse(LIST)))


def test_page_of_a_failed_instance(login, operator) -> None:
    """Reason, error with traceback, attempts, and exactly the possible verbs."""
    instance = make_failed(created_by=operator)
    page = html(login(operator).get(reverse(PAGE, args=[instance.pk])))
    assert "System</span>" in page  # SEC-10: what the engine did is marked as such
    assert "Failed in step charge card-1: shop.services.CardDeclined: no money" in page
    assert "<details><summary>Traceback</summary>" in page
    assert "3 attempts" in page and "no money 2" in page
    assert f"/{instance.pk}/retry/" in page and f"/{instance.pk}/resume/" not in page
    assert f"/{instance.pk}/terminate/" not in page


def test_page_shows_waits_events_progress_and_output(login, viewer) -> None:
    """EVT-08: what is waited for, and events that nobody consumed."""
    instance = make_instance(progress={"state": "half"}, output={"ok": True})
    wait = make_wait(instance, title="Order over 500", deadline=timezone.now() + timedelta(days=3))
    send(instance, "Approved", {"hello": "there"})
    page = html(login(viewer).get(reverse(PAGE, args=[instance.pk])))
    assert reverse(PENDING, args=[wait.pk]) in page
    assert "Waits for a decision in manager approval-1 until" in page
    assert "Events not consumed yet" in page and "Approved" in page and "there" in page
    assert "half" in page


def test_viewer_gets_no_verbs(login, viewer) -> None:
    """SEC-02: buttons are hidden too."""
    page = html(login(viewer).get(reverse(PAGE, args=[make_failed().pk])))
    assert "/retry/" not in page


def test_steps_are_paged(login, viewer, django_assert_max_num_queries) -> None:
    """200 steps on a page, the same queries for any number of them."""
    instance = make_instance()
    for seq in range(1, 252):
        make_step(instance, f"step {seq}", seq=seq, raw_output={"n": seq})
    client = login(viewer)
    with django_assert_max_num_queries(40):
        first = html(client.get(reverse(PAGE, args=[instance.pk])))
    assert "Steps 1 to 200 of 251" in first and "step 200-1" in first and "step 201-1" not in first
    second = html(client.get(reverse(PAGE, args=[instance.pk]), {"steps": 2}))
    assert "step 251-1" in second and "step 200-1" not in second


def test_history_is_paged(login, viewer) -> None:
    """The latest first page, older ones by cursor, all on demand."""
    instance = make_instance()
    for number in range(130):
        add_history(instance, "workflow_queued", reason=f"note {number:03}")
    client, address = login(viewer), reverse(PAGE, args=[instance.pk])
    latest = html(client.get(address))
    assert "note 129" in latest and "note 030" in latest and "note 029" not in latest
    older = re.search(r"\?before=\d+", latest)
    assert older
    page = html(client.get(address + older.group()))
    assert "note 029" in page and "note 030" not in page and "Latest entries" in page
    everything = html(client.get(address, {"history": "all"}))
    assert "note 000" in everything and "note 129" in everything


def test_the_history_tells_runs_apart(login, viewer) -> None:
    """After continue_as_new the same steps come again."""
    instance, address = make_instance(), lambda: reverse(PAGE, args=[instance.pk])
    add_history(instance, "step_completed", step="a-1", kind="do")
    client = login(viewer)
    assert '<th scope="col">Run</th>' not in html(client.get(address()))
    WorkflowInstance.objects.filter(pk=instance.pk).update(run_number=2)
    instance.refresh_from_db()
    add_history(instance, "step_completed", step="a-1", kind="do")
    page = html(client.get(address())).split('id="df-history"')[1]
    assert '<th scope="col">Run</th>' in page
    numbers = re.findall(r"</time></td><td>(\d)</td>", page)
    assert [numbers[0], numbers[-1]] == ["1", "2"]


def test_large_values_are_cut_and_linked(login, viewer) -> None:
    """Big data never makes a big page; the whole is one link away."""
    instance = make_instance(params={"rows": [{"n": n} for n in range(2_000)]})
    step = make_step(instance, raw_output="x" * 10_000)
    client = login(viewer)
    response = client.get(reverse(PAGE, args=[instance.pk]))
    assert len(response.content) < 150_000
    page = html(response)
    params, output = (
        reverse("admin:durableflow_workflowinstance_json", args=[instance.pk, part])
        for part in ("params", f"step-{step.pk}")
    )
    assert params in page and output in page and "x" * 3_000 not in page
    assert client.get(params).json()["rows"][1_999] == {"n": 1_999}
    assert client.get(output).json() == "x" * 10_000


def test_full_values_belong_to_their_instance(login, requester) -> None:
    """A step of another instance is not found through one's own."""
    mine, step = make_instance(created_by=requester), make_step(make_instance(), raw_output="foreign")
    client = login(requester)
    for part in (f"step-{step.pk}", "step-x", "step-" + "9" * 30, "event-1", "seed", "lease_token"):
        address = reverse("admin:durableflow_workflowinstance_json", args=[mine.pk, part])
        assert client.get(address).status_code == 404
    foreign = reverse("admin:durableflow_workflowinstance_json", args=[step.instance_id, f"step-{step.pk}"])
    assert client.get(foreign).status_code == 404


def test_sensitive_steps_are_masked_everywhere(login, superuser) -> None:
    """SEC-09: output, error and attempts of a sensitive step, and other errors that quote its output, for a superuser too."""
    secret = "tok-4711-secret"
    error = {"type": "ValueError", "message": f"bad {secret}", "traceback": f"raise {secret}", "step": "use token-1"}
    instance = make_instance(status=S.ERRORED, finished=timezone.now(), error_data=error)
    token = make_step(instance, "get token", sensitive=True, raw_output={"token": secret})
    make_step(
        instance,
        "bad token",
        sensitive=True,
        status=StepStatus.FAILED,
        attempts=2,
        error_data={**error, "step": "bad token-1", "message": "private text"},
    )
    make_step(instance, "use token", status=StepStatus.FAILED, attempts=1, error_data=error)
    for attempt in (1, 2):
        data = {"attempt": attempt, "error": {**error, "message": "private text"}, "retry_delay": 1}
        add_history(instance, "attempt_errored", step="bad token-1", kind="do", data=data)
    add_history(instance, "workflow_errored", data={"error": error})
    client = login(superuser)
    for address in (
        reverse(LIST),
        reverse(PAGE, args=[instance.pk]),
        reverse("admin:durableflow_workflowinstance_json", args=[instance.pk, "error"]),
        reverse("admin:durableflow_workflowinstance_json", args=[instance.pk, f"step-{token.pk}"]),
        reverse("admin:durableflow_workflowinstance_retry", args=[instance.pk]),
    ):
        text = client.get(address).content.decode()
        assert secret not in text and "private text" not in text, address
    assert REDACTED in html(client.get(reverse(PAGE, args=[instance.pk])))


def test_redacted_keys_are_masked(login, superuser, settings) -> None:
    """SEC-09: DURABLEFLOW["REDACT"] in params, progress, outputs, payloads, contexts."""
    settings.DURABLEFLOW = {"REDACT": ("password",)}
    hidden = {"password": "hunter2-hidden", "user": "ada"}
    instance = make_instance(params=hidden, progress=hidden, output=hidden)
    make_step(instance, raw_output=hidden)
    wait = make_wait(instance, context=hidden)
    send(instance, "note", hidden)
    client = login(superuser)
    for address in (
        reverse(LIST),
        reverse(PAGE, args=[instance.pk]),
        reverse("admin:durableflow_workflowinstance_json", args=[instance.pk, "params"]),
        reverse(PENDING, args=[wait.pk]),
        reverse("admin:durableflow_pendingevent_json", args=[wait.pk]),
    ):
        text = client.get(address).content.decode()
        assert "hunter2-hidden" not in text, address
        assert REDACTED in text, address


def test_unreadable_rows_do_not_break_the_page(login, viewer) -> None:
    """A value that cannot be read shows its reason, the rest stays usable."""
    instance = make_instance(params={"a": 1})
    make_step(instance, raw_output=1)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE durableflow_workflowinstance SET params = %s, progress = %s, output = %s",
            ["{", "{", '{"$df": "later", "v": 1}'],
        )
        cursor.execute("UPDATE durableflow_steprecord SET output = %s", ["nonsense"])
    client = login(viewer)
    assert "unreadable" in html(client.get(reverse(PAGE, args=[instance.pk])))
    html(client.get(reverse(LIST)))


def test_waiting_event_and_sleep_are_explained(login, viewer) -> None:
    """One sentence says why it waits."""
    wake = timezone.now() + timedelta(hours=1)
    instance = make_instance(wake_at=wake)
    make_step(instance, "nap", kind=StepKind.SLEEP, status=StepStatus.PENDING, wake_at=wake, finished=None, attempts=0)
    assert "Sleeps in nap-1 until" in html(login(viewer).get(reverse(PAGE, args=[instance.pk])))
    waits = make_instance()
    make_wait(waits, "payment", kind=StepKind.WAIT_FOR_EVENT, types=["paid", "failed"])
    assert "Waits for an event of type paid, failed" in html(login(viewer).get(reverse(PAGE, args=[waits.pk])))


def test_another_admin_site_keeps_its_own_addresses(login, superuser) -> None:
    """Links stay within the site, whatever it is called."""
    instance = make_failed()
    make_wait(make_instance())
    client = login(superuser)
    page = html(client.get(f"/operations/durableflow/workflowinstance/{instance.pk}/change/"))
    assert f'href="/operations/durableflow/workflowinstance/{instance.pk}/retry/"' in page
    assert 'href="/admin/durableflow' not in page
    for address in ("workflowinstance/", f"workflowinstance/{instance.pk}/retry/", "pendingevent/"):
        text = html(client.get(f"/operations/durableflow/{address}"))
        assert 'href="/admin/durableflow' not in text
    answer = client.post(f"/operations/durableflow/workflowinstance/{instance.pk}/retry/", {"reason": ""})
    assert answer["Location"] == f"/operations/durableflow/workflowinstance/{instance.pk}/change/"


# Trouble, for people who did not write the program --------------------------------------------------------------------


def _failed_with(kind: str, package: str = "durableflow") -> WorkflowInstance:
    error = {"type": f"{package}.{kind}", "message": "m", "traceback": "", "step": "charge card-1"}
    return make_instance(status=S.ERRORED, error_data={**error, "steps": []}, finished=timezone.now())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: make_blocked(), "Resume lets it go on where it stopped"),
        (lambda: make_instance(status=S.QUEUED, hold="limit"), "It starts by itself when one of them ends"),
        (lambda: make_instance(status=S.QUEUED, hold="unknown_workflow"), "does not contain this workflow"),
        (lambda: make_instance(status=S.WAITING, hold="newer_code"), "A newer version of the program"),
        (lambda: _failed_with("WorkerLost"), "nobody knows whether the step had its effect"),
        (lambda: _failed_with("StepTimeout"), "The step took longer than it may"),
        (lambda: _failed_with("EventTimeout"), "Nobody answered in time"),
        (lambda: _failed_with("WorkflowTimeout"), "It took longer in all"),
        (
            lambda: make_instance(status=S.RUNNING, lease_token=1, wake_at=timezone.now() - timedelta(seconds=1)),
            "another one takes it over",
        ),
    ],
)
def test_trouble_is_told_in_words(login, viewer, make, told) -> None:
    """OPS-03: what the state means and what helps, for people who did not write the program."""
    page = reverse("admin:durableflow_workflowinstance_change", args=[make().pk])
    assert told in login(viewer).get(page).content.decode()


def test_no_advice_where_there_is_no_trouble(login, viewer) -> None:
    """A failure of the project's own class is explained by its own message."""
    for instance in (make_instance(), _failed_with("CardDeclined"), _failed_with("StepTimeout", "shop.errors")):
        page = reverse("admin:durableflow_workflowinstance_change", args=[instance.pk])
        assert 'class="df-problem"' not in login(viewer).get(page).content.decode()


def test_the_list_tells_what_is_due(login, viewer) -> None:
    """OPS-03: queued and due is not the same as queued for tomorrow."""
    make_instance(status=S.QUEUED, wake_at=timezone.now() + timedelta(days=1))
    page = reverse("admin:durableflow_workflowinstance_changelist")
    assert "Due: waits for a free worker" not in login(viewer).get(page).content.decode()
    make_instance(status=S.QUEUED, wake_at=timezone.now())
    assert "Due: waits for a free worker" in login(viewer).get(page).content.decode()
