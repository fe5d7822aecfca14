"""Rollback as staff see it: asked for with terminate, told on the instance's page, retried (LIF-16, LIF-17)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from durableflow.models import WorkflowInstance
from tests.admin.acting import confirm, messages_of, select, text_of, verb_url
from tests.admin.rows import S, make_instance, make_step

pytestmark = pytest.mark.django_db
HANDLED: dict[str, Any] = {"config": {"rollback": True}}


def undone(**fields: Any) -> WorkflowInstance:
    """An instance whose rollback could not undo its second step."""
    values = {
        "status": S.ERRORED,
        "finished": timezone.now(),
        "error_data": {"type": "OSError", "message": "no money", "traceback": "", "step": "pay-1"},
        "rollback": {"outcome": "failed", "failed": ["hotel-1"]},
    }
    instance = make_instance(**{**values, **fields})
    make_step(instance, "flight", rollback_status="complete", rollback_attempts=1, **HANDLED)
    error = {"type": "OSError", "message": "hotel is closed", "traceback": "", "step": "hotel-1"}
    make_step(instance, "hotel", rollback_status="failed", rollback_attempts=3, rollback_error=error, **HANDLED)
    return instance


def page_of(client: Any, instance: WorkflowInstance) -> str:
    return text_of(client.get(reverse("admin:durableflow_workflowinstance_change", args=[instance.pk])))


def test_terminate_asks_whether_to_undo(login, operator) -> None:
    instance = make_instance()
    make_step(instance, "flight", **HANDLED)
    client, address = login(operator), verb_url("terminate", instance)
    assert "First undo what it did" in text_of(client.get(address))
    assert "or as soon as what it did is undone" in text_of(client.get(address))
    response = client.post(address, {"reason": "called off", "rollback": "on"}, follow=True)
    assert messages_of(response) == ["What it did is being undone. It ends as terminated after that."]
    instance.refresh_from_db()
    assert (instance.status, instance.error) == (S.ROLLING_BACK, None)
    entry = instance.history.get(type="rollback_started")
    assert (entry.actor, entry.via, entry.reason) == (operator, "admin", "called off")
    page = page_of(client, instance)
    assert "Rolling back" in page and "being undone, next: flight-1" in page
    assert client.get(address).status_code == 409, "it ends by itself"


def test_terminate_without_the_mark_undoes_nothing(login, operator) -> None:
    """LIF-17: undo must be asked for."""
    instance = make_instance()
    make_step(instance, "flight", **HANDLED)
    response = login(operator).post(verb_url("terminate", instance), {}, follow=True)
    assert messages_of(response) == ["The instance was terminated."]
    instance.refresh_from_db()
    assert (instance.status, instance.rollback) == (S.TERMINATED, None)
    assert instance.steps.get().rollback_status == ""


def test_many_are_terminated_with_rollback(login, operator) -> None:
    rows = [make_instance(), make_instance()]
    make_step(rows[0], "flight", **HANDLED)
    client = login(operator)
    page = select(client, "terminate", rows)
    assert "First undo what it did" in text_of(page)
    response = confirm(client, page, rollback="on")
    assert messages_of(response) == ["Terminate: 2 done (1 of them once what they did is undone)"]
    for row in rows:
        row.refresh_from_db()
    assert [row.status for row in rows] == [S.ROLLING_BACK, S.TERMINATED], "the second has nothing to undo"


def test_the_page_tells_what_was_not_undone(login, operator) -> None:
    """LIF-16: visible, and retryable by an operator."""
    instance = undone()
    page = page_of(login(operator), instance)
    for part in (
        "no money",
        "Not undone: hotel-1.",
        "Retry runs only those",
        "hotel is closed",
        "Rollback, 3 attempts:",
    ):
        assert part in page
    assert verb_url("retry", instance) in page


def test_the_page_tells_of_a_retry_delay(login, operator) -> None:
    instance = make_instance(status=S.ROLLING_BACK)
    due = timezone.now() + timedelta(hours=1)
    make_step(instance, "flight", rollback_status="pending", rollback_attempts=2, rollback_wake_at=due, **HANDLED)
    page = page_of(login(operator), instance)
    assert "Attempt 3 to undo flight-1 is due at" in page and "next attempt" in page


@pytest.mark.parametrize("status", [S.ERRORED, S.TERMINATED])
def test_retry_runs_failed_handlers(login, operator, status) -> None:
    instance = undone(status=status)
    client, address = login(operator), verb_url("retry", instance)
    page = text_of(client.get(address))
    for part in (
        "Try again to undo what is left?",
        "Rollback handlers run again: hotel-1",
        "no step runs forward again",
    ):
        assert part in page
    assert "failed step" not in page
    response = client.post(address, {}, follow=True)
    assert messages_of(response) == ["The rollback handlers that failed run again."]
    instance.refresh_from_db()
    assert (instance.status, instance.rollback) == (S.ROLLING_BACK, None)
    assert [step.rollback_status for step in instance.steps.order_by("seq")] == ["complete", "pending"]


def test_many_terminated_ones_whose_undoing_failed_are_retried(login, operator) -> None:
    """LIF-16: as one by one."""
    rows, client = [undone(status=S.TERMINATED), make_instance(status=S.TERMINATED)], login(operator)
    response = confirm(client, select(client, "retry", rows))
    assert messages_of(response) == ["Retry: 1 done, 1 skipped (status Terminated: 1)"]
    rows[0].refresh_from_db()
    assert rows[0].status == S.ROLLING_BACK


def test_what_is_undone_is_not_retried(login, operator) -> None:
    """No button that does nothing, on the page and for many."""
    instance = undone(rollback={"outcome": "complete", "failed": []})
    client, address = login(operator), verb_url("retry", instance)
    page = page_of(client, instance)
    assert address not in page and "Its rollback handlers have run." in page
    assert client.get(address).status_code == client.post(address, {}).status_code == 409
    other = undone()
    asking = select(client, "retry", [instance, other])
    page = text_of(asking)
    assert page.index(other.label) < page.index("Left out") < page.index(instance.label)
    response = confirm(client, asking)
    assert messages_of(response) == ["Retry: 1 done, 1 skipped (rolled back, nothing is left to retry: 1)"]
