"""Hostile data on the pages of the life cycle and of schedules is text (SEC-07)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models import WorkflowSchedule
from tests.admin.acting import confirm, select
from tests.admin.flows import AdminReport
from tests.admin.rows import S, add_history, make_instance, make_step, make_wait, send
from tests.admin.test_screens_are_safe import EVIL, Tags

pytestmark = pytest.mark.django_db
BASE, SCHEDULE = "admin:durableflow_workflowinstance_", "admin:durableflow_workflowschedule_"


def bad_in(response) -> list[str]:
    """What a browser would act on."""
    text = response.content.decode()
    parser = Tags()
    parser.feed(text)
    return parser.bad + ["template" for _ in [1] if "49{%" in text]


@pytest.fixture
def hostile():
    """A failed and a paused instance in which every free text is hostile."""
    error = {"type": EVIL, "message": EVIL, "traceback": EVIL, "step": EVIL, "steps": [["", "do", EVIL, 1]]}
    failed = make_instance(status=S.ERRORED, error_data=error)
    step = make_step(failed, EVIL, status=StepStatus.FAILED, error_data=error)
    make_wait(failed, EVIL, title=EVIL)
    send(failed, EVIL, EVIL)
    paused = make_instance(status=S.PAUSED, paused_at=timezone.now())
    open_one = {"status": StepStatus.PENDING, "finished": None}
    make_step(paused, EVIL, kind=StepKind.SLEEP, wake_at=timezone.now() + timedelta(hours=1), **open_one)
    add_history(paused, "workflow_paused", actor_name=EVIL, via="admin", reason=EVIL)
    return failed, paused, step


def test_pages_of_the_life_cycle(login, superuser, hostile) -> None:
    """Plans, choices, warnings, messages, problems."""
    failed, paused, step = hostile
    client = login(superuser)
    addresses = [
        *(
            reverse(f"{BASE}{verb}", args=[failed.pk])
            for verb in ("restart", "restart_from", "delete", "pause", "change")
        ),
        *(reverse(f"{BASE}{verb}", args=[paused.pk]) for verb in ("resume", "change", "pause")),
        reverse(f"{BASE}restart_from", args=[failed.pk]) + f"?step={step.pk}",
        reverse(f"{BASE}restart_from", args=[failed.pk]) + "?step=%3Cimg%20src=x%20onerror=1%3E",
        reverse(f"{BASE}complete_step", args=[failed.pk, step.pk]),
    ]
    for address in addresses:
        assert bad_in(client.get(address)) == [], address
    typed = client.post(addresses[-1], {"output": EVIL, "reason": EVIL, "run": EVIL})
    assert typed.status_code == 400 and bad_in(typed) == []
    page = select(client, "pause", [failed, paused])
    assert bad_in(page) == []
    assert bad_in(confirm(client, select(client, "restart", [failed]), reason=EVIL)) == []


def test_pages_of_schedules(login, superuser) -> None:
    """Rows that came past the form, and what was typed into it."""
    row = WorkflowSchedule(workflow=AdminReport.workflow_name(), name="night", cron="0 2 * * *")
    row.save()
    hostile = {"workflow": EVIL[:64], "name": EVIL[:60], "cron": EVIL, "timezone": EVIL[:64], "problem": EVIL}
    row.skipped.create(slot=timezone.now(), last=timezone.now(), reason="refused", detail=EVIL, at=timezone.now())
    make_instance(instance_id="by-night", schedule=row, scheduled_for=timezone.now(), created_by_name=EVIL, cron=EVIL)
    hand = make_instance(instance_id="by-hand", schedule=row, created_by_name=EVIL, cron=EVIL)
    client = login(superuser)
    for declared in (False, True):
        WorkflowSchedule.objects.filter(pk=row.pk).update(**hostile, declared=declared, params={EVIL: EVIL})
        for name in ("change", "pause", "run_now", "history", *(() if declared else ("delete",))):
            answer = client.get(reverse(SCHEDULE + name, args=[row.pk]))
            assert answer.status_code in (200, 409) and bad_in(answer) == [], name
        assert bad_in(client.get(reverse(f"{SCHEDULE}changelist"))) == []
        assert bad_in(client.get(reverse(f"{BASE}change", args=[hand.pk]))) == []
        assert bad_in(client.get(reverse(f"{BASE}changelist"), {"of_schedule": row.pk})) == []
    typed = dict.fromkeys(("workflow", "name", "cron", "timezone", "params", "catch_up", "overlap"), EVIL)
    assert bad_in(client.post(reverse(f"{SCHEDULE}add"), typed)) == []
