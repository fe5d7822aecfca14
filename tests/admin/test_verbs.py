"""Retry, resume, terminate: on one instance and on many."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from durableflow.core.statuses import PendingStatus, StepStatus
from durableflow.models import WorkflowInstance
from tests.admin.rows import S, make_blocked, make_failed, make_instance, make_step, make_wait, snapshot

pytestmark = pytest.mark.django_db
LIST = reverse("admin:durableflow_workflowinstance_changelist", urlconf="tests.admin.urls")


def verb_url(verb: str, instance: WorkflowInstance) -> str:
    return reverse(f"admin:durableflow_workflowinstance_{verb}", args=[instance.pk])


def text_of(response) -> str:
    return re.sub(r"\s+", " ", response.content.decode())


def messages_of(response) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def test_retry(login, operator) -> None:
    """SEC-10, LIF-10: the page says what runs again and what is kept; the history and the staff log say who and why."""
    instance = make_failed()
    client, address = login(operator), verb_url("retry", instance)
    page = text_of(client.get(address))
    assert "Runs again: charge card-1" in page and "1 finished step keeps its result" in page
    response = client.post(address, {"reason": "card unlocked"})
    assert response["Location"] == reverse("admin:durableflow_workflowinstance_change", args=[instance.pk])
    instance.refresh_from_db()
    assert instance.status == S.QUEUED and instance.wake_at is not None
    assert instance.steps.get(name="charge card").status == StepStatus.PENDING
    entry = instance.history.get(type="workflow_queued")
    assert (entry.actor, entry.actor_name, entry.via, entry.reason) == (operator, "operator", "admin", "card unlocked")
    log = LogEntry.objects.get()
    assert (log.user, log.object_id, log.change_message) == (operator, str(instance.pk), "Retry. Reason: card unlocked")
    history = client.get(reverse("admin:durableflow_workflowinstance_history", args=[instance.pk]))
    assert "card unlocked" in text_of(history)


def test_resume(login, operator) -> None:
    """A blocked instance goes on."""
    instance = make_blocked()
    client, address = login(operator), verb_url("resume", instance)
    assert "Let this instance go on?" in text_of(client.get(address))
    client.post(address, {})
    instance.refresh_from_db()
    assert (instance.status, instance.blocked) == (S.QUEUED, "")


def test_terminate(login, operator) -> None:
    """The page names what is cancelled; then it is."""
    instance = make_instance()
    wait = make_wait(instance)
    make_step(instance, "slow", status=StepStatus.STARTED, finished=None)
    client, address = login(operator), verb_url("terminate", instance)
    page = text_of(client.get(address))
    assert "Cancelled waits: manager approval" in page and "slow-1" in page and "cannot be undone" in page
    client.post(address, {"reason": "wrong cart"})
    instance.refresh_from_db()
    wait.refresh_from_db()
    assert (instance.status, wait.status) == (S.TERMINATED, PendingStatus.CANCELLED)
    assert instance.history.get().via == "admin"


@pytest.mark.parametrize(
    ("verb", "status"),
    [
        ("retry", S.WAITING),
        ("resume", S.WAITING),
        ("terminate", S.COMPLETE),
        ("retry", S.COMPLETE),
        ("terminate", S.ROLLING_BACK),
    ],
)
def test_wrong_status_is_409_and_says_so(login, operator, verb, status) -> None:
    """Wrong state is not wrong right: a page with the status, nothing changed."""
    instance = make_instance(status=status)
    before = snapshot()
    client = login(operator)
    for response in (client.get(verb_url(verb, instance)), client.post(verb_url(verb, instance), {"reason": ""})):
        assert response.status_code == 409
        assert f"Its status is: {S(status).label}" in text_of(response)
    assert snapshot() == before and not LogEntry.objects.exists()


def test_double_click(login, operator) -> None:
    """The second POST changes nothing and says so."""
    instance = make_failed()
    client = login(operator)
    assert client.post(verb_url("retry", instance), {}).status_code == 302
    before = snapshot()
    assert client.post(verb_url("retry", instance), {}).status_code == 409
    assert snapshot() == before


@pytest.mark.parametrize("verb", ["retry", "resume", "terminate"])
@pytest.mark.parametrize("method", ["put", "patch", "delete", "options"])
def test_other_methods(login, superuser, verb, method) -> None:
    """405, nothing changed."""
    instance = make_failed()
    before = snapshot()
    assert getattr(login(superuser), method)(verb_url(verb, instance)).status_code == 405
    assert snapshot() == before


def test_looking_changes_nothing(login, superuser) -> None:
    """SEC-01: GET and HEAD of every address, then POST without the token."""
    failed, blocked, waiting = make_failed(), make_blocked(), make_instance()
    wait = make_wait(waiting)
    make_step(failed, raw_output=1, name="x")
    before = snapshot()
    addresses = [
        LIST,
        reverse("admin:durableflow_pendingevent_changelist"),
        *(verb_url(verb, row) for verb in ("retry", "resume", "terminate") for row in (failed, blocked, waiting)),
        *(
            reverse(f"admin:durableflow_workflowinstance_{name}", args=[failed.pk])
            for name in ("change", "history", "delete")
        ),
        *(
            reverse(f"admin:durableflow_pendingevent_{name}", args=[wait.pk])
            for name in ("change", "history", "decide", "json")
        ),
        f"{LIST}?action=retry_selected&_selected_action={failed.pk}&confirmed=1",
        f"{reverse('admin:durableflow_pendingevent_decide', args=[wait.pk])}?decision=approve",
    ]
    client, strict = login(superuser), login(superuser, csrf=True)
    for address in addresses:
        client.get(address)
        client.head(address)
        assert strict.post(address, {"decision": "approve", "reason": "x"}).status_code == 403, address
        assert snapshot() == before, address


def select(client, verb: str, rows, **more):
    data = {"action": f"{verb}_selected", "_selected_action": [row.pk for row in rows], **more}
    return client.post(LIST, data, follow=True)


def test_bulk_asks_first(login, operator) -> None:
    """The page lists what will be done and what is left out; nothing has changed yet."""
    failed, waiting = make_failed(instance_id="bad-1"), make_instance(instance_id="fine-1")
    before = snapshot()
    response = select(login(operator), "retry", [failed, waiting])
    page = text_of(response)
    assert "Retry 1 instance" in page and "checkout/bad-1" in page
    assert "Left out" in page and "checkout/fine-1" in page
    assert page.count('name="_selected_action"') == 1
    assert snapshot() == before


def test_bulk_reports_done_and_skipped(login, operator) -> None:
    """SEC-10: an entry for each row; skipped rows with the reason."""
    rows = [make_failed(), make_failed(), make_instance(status=S.COMPLETE)]
    response = select(login(operator), "retry", rows, confirmed="1", reason="after the deploy")
    assert messages_of(response) == ["Retry: 2 done, 1 skipped (status Complete: 1)"]
    for row in rows[:2]:
        row.refresh_from_db()
        assert row.status == S.QUEUED
        assert row.history.get(type="workflow_queued").reason == "after the deploy"
    assert LogEntry.objects.count() == 2


def test_bulk_terminate_of_three_over_all_pages(login, operator) -> None:
    """SEC-10: "select all" takes the filtered rows."""
    rows = [make_instance(workflow="export") for _ in range(3)]
    other = make_instance()
    client = login(operator)
    data = {"action": "terminate_selected", "_selected_action": rows[0].pk, "select_across": "1", "confirmed": "1"}
    response = client.post(f"{LIST}?workflow=export", data, follow=True)
    assert messages_of(response) == ["Terminate: 3 done"]
    assert set(WorkflowInstance.objects.filter(status=S.TERMINATED)) == set(rows)
    other.refresh_from_db()
    assert other.status == S.WAITING


def test_bulk_over_the_bound_is_refused(login, operator, monkeypatch) -> None:
    """One request stays small; the message says how to go on."""
    monkeypatch.setattr("durableflow.admin.actions.MOST_AT_ONCE", 2)
    rows = [make_failed() for _ in range(3)]
    before = snapshot()
    response = select(login(operator), "retry", rows, confirmed="1")
    assert "Select at most 2" in messages_of(response)[0]
    assert snapshot() == before


@pytest.mark.parametrize("verb", ["retry", "resume", "terminate"])
def test_forged_bulk_action_is_refused(login, viewer, bare, requester, verb) -> None:
    """SEC-02: 403 and no change without the right, whatever is posted."""
    rows = [make_failed(created_by=requester), make_blocked(created_by=requester)]
    before = snapshot()
    for user in (viewer, bare, requester):
        assert select(login(user), verb, rows, confirmed="1").status_code == 403
    assert snapshot() == before


def test_bulk_touches_visible_rows_only(login, user_factory) -> None:
    """SEC-02: ids of foreign rows in the POST are not found."""
    user = user_factory("own-operator", is_staff=True, permissions=["durableflow.operate_workflowinstance"])
    mine, foreign = make_failed(created_by=user), make_failed()
    select(login(user), "retry", [mine, foreign], confirmed="1")
    mine.refresh_from_db()
    foreign.refresh_from_db()
    assert (mine.status, foreign.status) == (S.QUEUED, S.ERRORED)
