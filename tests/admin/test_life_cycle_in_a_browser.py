"""Life cycle and schedules in a real Chromium, under a strict content security policy, light and dark, on a phone."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models import WorkflowInstance, WorkflowSchedule
from tests.admin.rows import S, failed_third, make_failed, make_instance, make_step, make_wait, send
from tests.admin.test_in_a_browser import NARROW, browser, page_for  # noqa: F401 - fixtures
from tests.admin.test_schedules import make_schedule

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
BASE, SCHEDULE = "admin:durableflow_workflowinstance_", "admin:durableflow_workflowschedule_"


def test_thousands_are_done_in_parts_by_themselves(page_for, superuser, monkeypatch) -> None:  # noqa: F811
    """SEC-13: "select all", one click, then each part follows by itself, under the policy that forbids inline scripts."""
    monkeypatch.setattr("durableflow.admin.bulk.SLICE", 0.0)
    monkeypatch.setattr("durableflow.admin.bulk.CHUNK", 20)
    first = make_failed()
    fields = {"workflow": "checkout", "status": S.ERRORED, "created": first.created, "finished": first.finished}
    WorkflowInstance.objects.bulk_create([WorkflowInstance(instance_id=f"m-{n}", **fields) for n in range(59)])
    page = page_for(superuser)
    page.goto(reverse(f"{BASE}changelist"))
    page.locator("#action-toggle").check()
    page.get_by_text("Select all 60 workflow instances").click()
    page.get_by_label("Action:").select_option("retry_selected")
    page.get_by_role("button", name=re.compile("^(Go|Run)$")).click()
    page.get_by_role("button", name="Retry 60 instances").click()
    page.get_by_text("Retry: 60 done").wait_for()
    assert WorkflowInstance.objects.filter(status=S.QUEUED).count() == 60
    assert page.trouble == []


def test_a_person_restarts_from_a_step(page_for, superuser) -> None:  # noqa: F811
    """From the row of the step, over the page that says what runs again, to the new run."""
    instance, _made = failed_third()
    page = page_for(superuser)
    page.goto(reverse(f"{BASE}change", args=[instance.pk]))
    page.get_by_role("link", name="Restart from here two-1").click()
    page.get_by_text("may charge, book or send again").wait_for()
    page.get_by_label("Reason:").fill("new prices")
    page.get_by_role("button", name="Restart from a step").click()
    page.get_by_text("A new run has begun.").wait_for()
    instance.refresh_from_db()
    assert (instance.run_number, instance.status) == (2, S.QUEUED)
    assert page.trouble == []


def test_a_person_adds_a_schedule_and_runs_it(page_for, superuser) -> None:  # noqa: F811
    """With a mistake on the way; what was typed stays."""
    page = page_for(superuser)
    page.goto(reverse(f"{SCHEDULE}add"))
    page.get_by_label("Workflow:").select_option("admin-report")
    page.get_by_label("Name:").fill("every-night")
    page.get_by_label("Cron:").fill("61 * * * *")
    page.get_by_label("Time zone:").select_option("Europe/Berlin")
    page.get_by_role("button", name="Save and continue editing").click()
    page.get_by_text("Please correct the error below.").wait_for()
    assert page.get_by_label("Name:").input_value() == "every-night"
    page.get_by_label("Cron:").fill("0 2 * * *")
    page.get_by_role("button", name="Save and continue editing").click()
    page.get_by_role("heading", name="Next runs").wait_for()
    page.get_by_role("link", name="Run now").click()
    page.get_by_role("button", name="Run now").click()
    page.get_by_text("An instance was started.").wait_for()
    assert WorkflowInstance.objects.get().schedule == WorkflowSchedule.objects.get()
    assert page.trouble == []


def test_a_person_sends_an_event(page_for, superuser) -> None:  # noqa: F811
    """From the page of the wait, with a mistake on the way; two clicks send it once."""
    instance = make_instance()
    wait = make_wait(instance, "paid?", kind=StepKind.WAIT_FOR_EVENT, types=["paid"])
    page = page_for(superuser)
    page.goto(reverse("admin:durableflow_pendingevent_change", args=[wait.pk]))
    page.get_by_role("link", name="Send an event").click()
    assert page.get_by_label("Type:").input_value() == "paid"
    page.get_by_label("Payload:").fill("{order: 7}")
    page.get_by_role("button", name="Send an event").click()
    page.get_by_text("This is not JSON").wait_for()
    page.get_by_label("Payload:").fill('{"order": 7}')
    page.get_by_role("button", name="Send an event").dblclick()
    page.get_by_text(re.compile("The event was sent|has already sent its event")).wait_for()
    assert [sent.payload for sent in instance.sent_events.all()] == [{"order": 7}]
    assert page.trouble == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_new_pages_fit_a_phone(page_for, superuser, scheme) -> None:  # noqa: F811
    """No page scrolls sideways at 400 px; nothing breaks the policy."""
    now, long = timezone.now(), "n" * 60
    failed, made = failed_third()
    send(failed, "t" * 100, {})
    paused = make_instance(workflow="w" * 64, instance_id="i" * 100)
    open_one = {"status": StepStatus.PENDING, "finished": None}
    make_step(paused, "s" * 250, kind=StepKind.SLEEP, wake_at=now + timedelta(minutes=8), **open_one)
    make_wait(paused, "e" * 64, kind=StepKind.WAIT_FOR_EVENT, types=["t" * 100])
    paused.pause(by=superuser, reason="r" * 300, via="admin")
    row = make_schedule(
        long, cron="0,1,2,3,4,5,6,7,8,9,10,11,12,13,14 2 * * *", timezone="America/Argentina/ComodRivadavia"
    )
    row.skipped.create(slot=now, last=now, number=2, at=now, reason="refused", detail="d" * 400)
    make_instance(workflow="admin-report", instance_id=long, schedule=row, scheduled_for=now)
    page = page_for(superuser, width=NARROW, scheme=scheme)
    for address in (
        *(
            reverse(f"{BASE}{verb}", args=[failed.pk])
            for verb in ("change", "restart", "restart_from", "delete", "pause")
        ),
        reverse(f"{BASE}restart_from", args=[failed.pk]) + f"?step={made[1].pk}",
        reverse(f"{BASE}complete_step", args=[failed.pk, made[2].pk]),
        *(reverse(f"{BASE}{verb}", args=[paused.pk]) for verb in ("change", "resume", "terminate", "send_event")),
        *(reverse(f"{SCHEDULE}{name}") for name in ("changelist", "add")),
        *(reverse(f"{SCHEDULE}{name}", args=[row.pk]) for name in ("change", "pause", "run_now", "delete")),
    ):
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, address
        assert page.trouble == [], address
        assert page.locator("h1").count() >= 1
