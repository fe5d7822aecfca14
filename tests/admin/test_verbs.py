"""Retry, resume, terminate, and what holds for the page of every verb."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from durableflow.core.statuses import PendingStatus, StepStatus
from tests.admin.acting import LIST, text_of, verb_url
from tests.admin.rows import S, make_blocked, make_failed, make_instance, make_step, make_wait, snapshot

pytestmark = pytest.mark.django_db
PAGES = ("retry", "pause", "resume", "restart", "restart_from", "terminate", "delete")


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
    assert "Cancelled waits: manager approval" in page and "slow-1" in page and "it can only be restarted" in page
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
        ("pause", S.COMPLETE),
        ("pause", S.PAUSED),
        ("pause", S.WAITING_FOR_PAUSE),
        ("resume", S.RUNNING),
        ("restart", S.QUEUED),
        ("restart", S.ROLLING_BACK),
        ("restart_from", S.QUEUED),
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


@pytest.mark.parametrize("verb", PAGES)
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
        *(verb_url(verb, row) for verb in PAGES for row in (failed, blocked, waiting)),
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
