"""What a person sees at once: why something failed, in which zone a time is, until when a row is kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from durableflow import timeline
from durableflow.core.statuses import StepKind
from tests.admin.acting import LIST, page_of, select, text_of
from tests.admin.rows import S, add_history, make_blocked, make_failed, make_instance, make_step, make_wait
from tests.admin.test_schedules import make_schedule

pytestmark = pytest.mark.django_db
NOON = datetime(2031, 1, 15, 12, 0, tzinfo=UTC)


def failed_with(message: str, **fields: object):
    """An instance that ended with this message."""
    error = {"type": "shop.services.CardDeclined", "message": message, "traceback": "T", "step": "pay-1"}
    return make_instance(status=S.ERRORED, error_data=error, finished=timezone.now(), **fields)


def test_the_list_says_which_error(login, superuser) -> None:
    """Its class alone: a message may hold what is not for a list; long ones are not read."""
    make_failed(instance_id="plain")
    failed_with("m" * 5_000, instance_id="long")
    make_instance(status=S.ERRORED, error_data=None, instance_id="none")
    make_blocked(instance_id="blocked")
    outcome = {"outcome": "failed", "failed": ["book-1"]}
    failed_with("x", rollback=outcome, instance_id="left")
    make_instance(status=S.TERMINATED, rollback=outcome, instance_id="ended")
    make_instance(status=S.TERMINATED, rollback={"outcome": "complete", "failed": []}, instance_id="undone")
    page = text_of(login(superuser).get(LIST))
    assert page.count("Not everything was undone") == 2
    assert page.count('<span class="df-why">CardDeclined · Not everything was undone</span>') == 1
    assert page.count('<span class="df-why">CardDeclined</span>') == 2
    assert "no money" not in page and "mmmm" not in page


def test_a_long_message_stands_in_the_sentence_in_short(login, superuser) -> None:
    """One line of it; the whole is behind a click."""
    row = failed_with("first\n\n line  " + "long " * 500 + "the end")
    told = timeline.reason(row)
    assert told.startswith("Failed in step pay-1: shop.services.CardDeclined: first line long")
    assert told.endswith("…") and len(told) < 400
    page = page_of(login(superuser), row)
    assert page.count("the end") == 1 and "<summary>Whole message</summary>" in page
    assert "Whole message" not in page_of(login(superuser), failed_with("short"))


def test_a_message_that_fits_is_told_whole() -> None:
    """At the bound, and one character more."""
    assert timeline.reason(failed_with("x" * 300)).endswith(": " + "x" * 300)
    assert timeline.reason(failed_with("x" * 301)).endswith(": " + "x" * 300 + "…")


def test_two_sentences_are_two() -> None:
    """After a rollback: what ended it, and what was not undone."""
    outcome = {"outcome": "failed", "failed": ["book-1"]}
    told = timeline.reason(failed_with("no money", rollback=outcome))
    assert told == "Failed in step pay-1: shop.services.CardDeclined: no money. Not undone: book-1."
    assert "no money! Not undone" in timeline.reason(failed_with("no money!", rollback=outcome))


@pytest.mark.parametrize(
    ("zone", "shown", "named"),
    [("UTC", "12:00:00 UTC", "UTC"), ("Europe/Berlin", "13:00:00 CET", "Europe/Berlin (CE")],
)
def test_times_have_a_zone(login, superuser, settings, zone, shown, named) -> None:
    """Facts and deadlines name it; tables leave it to the foot of their page."""
    settings.TIME_ZONE = zone
    instance = make_instance(created=NOON)
    wait = make_wait(instance, deadline=NOON)
    event = make_wait(instance, "paid?", kind=StepKind.WAIT_FOR_EVENT, types=["paid"], deadline=NOON)
    client = login(superuser)
    addresses = [
        LIST,
        reverse("admin:durableflow_workflowinstance_change", args=[instance.pk]),
        reverse("admin:durableflow_workflowinstance_pause", args=[instance.pk]),
        reverse("admin:durableflow_pendingevent_changelist"),
        reverse("admin:durableflow_pendingevent_change", args=[wait.pk]),
        reverse("admin:durableflow_workflowschedule_changelist"),
        reverse("admin:durableflow_workflowschedule_change", args=[make_schedule().pk]),
    ]
    for address in addresses:
        assert f'<p class="df-zone">Times are in {named}' in text_of(client.get(address)), address
    added = text_of(client.get(reverse("admin:durableflow_workflowschedule_add")))
    assert "Times are in" not in added, "a cron line is in the schedule's own zone"
    assert f">2031-01-15 {shown}</time></dd>" in page_of(client, instance)
    page = text_of(client.get(reverse("admin:durableflow_pendingevent_change", args=[event.pk])))
    assert f">2031-01-15 {shown}</time></dd>" in page
    assert shown in text_of(client.get(wait.decision_url(superuser))), "also without the admin's frame"


@pytest.mark.parametrize(
    ("status", "own", "told"),
    [
        (S.COMPLETE, {"retention_success": timedelta(days=2)}, "2031-01-17 12:00:00 UTC"),
        (S.ERRORED, {"retention_success": timedelta(days=2)}, "2031-04-15 12:00:00 UTC"),
        (S.TERMINATED, {}, "2031-02-14 12:00:00 UTC"),
        (S.COMPLETE, {"retention_success": timedelta(days=365 * 9_000)}, "for ever"),
        (S.WAITING, {"retention_success": timedelta(days=2)}, ""),
    ],
)
def test_an_ended_instance_says_until_when_it_is_kept(login, superuser, settings, status, own, told) -> None:
    """By its own rule, its workflow's or the setting."""
    settings.TIME_ZONE = "UTC"
    row = make_instance(status=status, finished=None if status == S.WAITING else NOON, **own)
    page = page_of(login(superuser), row)
    assert ("<dt>Kept until</dt>" in page) is bool(told)
    assert told in page


def test_of_many_each_is_meant(login, superuser) -> None:
    """The words of a verb are about one instance."""
    rows = [make_failed(), make_failed()]
    assert "For each of them: The step that failed runs again" in text_of(select(login(superuser), "retry", rows))
    assert "For each of them" not in text_of(select(login(superuser), "retry", rows[:1]))


def test_a_step_with_a_long_error_shows_its_start(login, superuser) -> None:
    """As of the instance."""
    error = {"type": "E", "message": "y" * 3_000 + "z", "traceback": "", "step": ""}
    row = make_instance()
    make_step(row, status="failed", error_data=error)
    page = page_of(login(superuser), row)
    assert page.count("yz") == 1 and page.count("Whole message") == 1


@pytest.mark.parametrize("by_link", [False, True])
def test_a_comment_that_came_too_late_is_not_lost(login, superuser, decider, by_link) -> None:
    """EVT-10: the form is gone, what was typed into it is not; without an answer nothing is repeated."""
    wait = make_wait(make_instance())
    address = reverse("admin:durableflow_pendingevent_decide", args=[wait.pk])
    assert login(superuser).post(address, {"decision": "approve", "comment": "mine"}).status_code == 302
    client = login(decider)
    mine = wait.decision_url(decider) if by_link else address
    late = client.post(mine, {"decision": "reject", "comment": "<b>too dear</b>"})
    assert late.status_code == 409
    assert "What you wrote:" in text_of(late) and "&lt;b&gt;too dear&lt;/b&gt;" in text_of(late)
    assert "What you wrote" not in text_of(client.get(mine))
    assert "What you wrote" not in text_of(client.post(mine, {"decision": "reject", "comment": ""}))


def test_who_did_it_is_said_in_words(login, superuser) -> None:
    """The door, too; a program that nobody stands behind is no empty place."""
    row = make_instance(status=S.PAUSED, paused_at=timezone.now())
    for fields in (
        {"actor": superuser, "actor_name": "anna", "via": "cli"},
        {"actor_name": "", "via": "code"},
        {"actor_name": "", "via": "engine"},
    ):
        add_history(row, "workflow_paused", **fields)
    page = page_of(login(superuser), row)
    assert '<td>anna <span class="df-note">(Command line)</span></td>' in page
    assert (
        '<td><span class="df-note">Code</span></td>' in page and '<td><span class="df-note">System</span></td>' in page
    )


def test_an_answer_that_was_lost_at_the_login_is_said(login, superuser) -> None:
    """The login leads to the address of the form without what it held."""
    wait = make_wait(make_instance())
    address = reverse("admin:durableflow_pendingevent_decide", args=[wait.pk])
    response = login(None).post(address, {"decision": "approve"})
    assert response.status_code == 302 and response.url.endswith(f"?next={address}")
    client = login(superuser)
    page = text_of(client.get(address))
    assert "Nothing was stored so far." in page and 'value="approve"' in page
    assert "Nothing was stored" not in text_of(
        client.get(reverse("admin:durableflow_pendingevent_change", args=[wait.pk]))
    )
    assert client.post(address, {"decision": "approve"}).status_code == 302
    assert "Nothing was stored" not in text_of(client.get(address)), "it is decided"
