"""What a person who has to decide sees while the workflow is paused (EVT-15, TIM-09)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from tests.admin.acting import text_of
from tests.admin.rows import S, make_instance, make_wait

pytestmark = pytest.mark.django_db


def test_a_deadline_stands_still(login, manager) -> None:
    """EVT-15: paused an hour ago with ten minutes left, it can be decided, and the page says so in place of a moment in the past."""
    now = timezone.now()
    instance = make_instance(status=S.PAUSED, paused_at=now - timedelta(hours=1))
    wait = make_wait(instance, title="Ship it?", users=[manager], deadline=now - timedelta(minutes=50))
    client = login(manager)
    address = reverse("admin:durableflow_pendingevent_change", args=[wait.pk])
    page = text_of(client.get(address))
    assert "10 min 0 s left. Its clock stands still while the workflow is paused" in page
    assert "stands still: paused" in text_of(client.get(reverse("admin:durableflow_pendingevent_changelist")))
    link = wait.decision_url(manager).removeprefix("http://testserver")
    assert "10 min 0 s left" in text_of(client.get(link))
    decide = reverse("admin:durableflow_pendingevent_decide", args=[wait.pk])
    assert client.post(decide, {"decision": "approve"}).status_code == 302
    wait.refresh_from_db()
    assert wait.approved is True


def test_a_deadline_that_runs_is_a_moment(login, manager) -> None:
    """The words are for paused ones only."""
    wait = make_wait(make_instance(), users=[manager], deadline=timezone.now() + timedelta(hours=1))
    page = text_of(login(manager).get(reverse("admin:durableflow_pendingevent_change", args=[wait.pk])))
    assert "stands still" not in page
