"""A step's result by hand, and deleting an instance: the pages, and what they do."""

from __future__ import annotations

import logging

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.db import connection, models
from django.test.utils import CaptureQueriesContext

from durableflow.admin.removing import relatives_of
from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models import WorkflowInstance
from shop.models import Order
from tests.admin.acting import LIST, confirm, messages_of, page_of, select, text_of, verb_url
from tests.admin.rows import S, failed_third, make_failed, make_instance, make_step, make_wait, send, snapshot

pytestmark = pytest.mark.django_db


# A step's result by hand ------------------------------------------------------------------------------------------------


def test_complete_a_step(login, superuser) -> None:
    """Design 9: the page warns that nobody runs the body; the output is what was typed; audited."""
    instance, (_one, _two, three) = failed_third()
    client, address = login(superuser), verb_url("complete_step", instance, three.pk)
    assert address in page_of(client, instance)
    page = text_of(client.get(address))
    assert "Nobody runs the step" in page and "three-1 is complete with the output below" in page
    response = client.post(
        address, {"run": "1", "output": '{"charge": "ch_1"}', "reason": "paid by phone"}, follow=True
    )
    assert messages_of(response) == ["The step has its result; the instance goes on."]
    three.refresh_from_db()
    instance.refresh_from_db()
    assert (three.status, three.raw_output, instance.status) == (StepStatus.COMPLETE, {"charge": "ch_1"}, S.QUEUED)
    entry = instance.history.get(type="step_completed")
    assert (entry.actor, entry.reason, entry.data["verb"]) == (superuser, "paid by phone", "complete_step")
    assert LogEntry.objects.get().change_message == "Complete a step. Reason: paid by phone"
    assert client.post(address, {"run": "1", "output": "1"}).status_code == 409, "the second of two clicks"


@pytest.mark.parametrize(
    ("typed", "status"),
    [
        ("", 400),
        ("{", 400),
        ("NaN", 400),
        ("'x'", 400),
        ('{"$df": "x", "v": 1}', 400),
        ('"\\u0000"', 400),
        ("[" * 150 + "]" * 150, 400),
    ],
)
def test_a_bad_result_is_refused_and_stays_typed(login, superuser, typed, status) -> None:
    """400 with a reason at the field; nothing stored, nothing lost."""
    instance, made = failed_third()
    before = snapshot()
    response = login(superuser).post(verb_url("complete_step", instance, made[2].pk), {"run": "1", "output": typed})
    assert response.status_code == status and response.context["form"].errors["output"]
    assert response.context["form"]["output"].value() == typed
    assert snapshot() == before


def test_a_too_large_result_is_refused(login, superuser, settings) -> None:
    """ENG-12: the same limit as for a body."""
    settings.DURABLEFLOW = {"LIMITS": {"output": 100}}
    instance, made = failed_third()
    response = login(superuser).post(
        verb_url("complete_step", instance, made[2].pk), {"run": "1", "output": f'"{"x" * 200}"'}
    )
    assert response.status_code == 400 and "100" in str(response.context["form"].errors["output"])


def test_only_steps_that_can_be_completed_are_offered(login, superuser, operator) -> None:
    """Neither finished ones nor caught failures; only for who may override."""
    instance, (one, two, three) = failed_third()
    caught = make_step(instance, "caught", status=StepStatus.FAILED)
    client = login(superuser)
    page = page_of(client, instance)
    offered = [step for step in (one, two, three, caught) if verb_url("complete_step", instance, step.pk) in page]
    assert offered == [three]
    for step in (one, caught):
        assert client.get(verb_url("complete_step", instance, step.pk)).status_code == 409
        assert client.post(verb_url("complete_step", instance, step.pk), {"run": "1", "output": "1"}).status_code == 409
    assert client.get(verb_url("complete_step", instance, 0)).status_code == 404
    assert client.get(verb_url("complete_step", make_failed(), three.pk)).status_code == 404
    assert verb_url("complete_step", instance, three.pk) not in page_of(login(operator), instance)


# Delete -----------------------------------------------------------------------------------------------------------------


def test_delete(login, superuser, caplog, django_capture_on_commit_callbacks) -> None:
    """Counts what goes with it, then it is gone; the staff log and the server's log keep who, what and why."""
    instance = make_failed()
    wait = make_wait(instance)
    send(instance, "x")
    client, address = login(superuser), verb_url("delete", instance)
    page = text_of(client.get(address))
    for part in (
        "Deleted with it: 3 steps",
        "3 history entries",
        "1 pending event",
        "1 sent event",
        "This cannot be undone",
    ):
        assert part in page, part
    with caplog.at_level(logging.INFO, "durableflow.audit"), django_capture_on_commit_callbacks(execute=True):
        response = client.post(address, {"reason": "test data"}, follow=True)
    assert messages_of(response) == ["The instance was deleted."] and response.redirect_chain[-1][0] == LIST
    assert not WorkflowInstance.objects.exists() and not type(wait).objects.exists()
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.action_flag) == (superuser, str(instance.pk), DELETION)
    assert entry.change_message == "Delete. Reason: test data"
    assert "test data" in caplog.text
    assert client.post(address, {}).status_code == 404, "the second of two clicks"


def test_delete_of_one_that_has_not_ended_warns(login, superuser) -> None:
    """LIF-13: what it still does is dropped; children are told of."""
    parent = make_instance()
    step = make_step(parent, "child", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None)
    make_instance(instance_id="kid", parent_step=step, on_parent_end="terminate")
    page = text_of(login(superuser).get(verb_url("delete", parent)))
    assert (
        "It has not ended (Waiting)." in page
        and "Child workflows that are terminated: 1" in page
        and "checkout/kid" in page
    )


@pytest.mark.parametrize("how", [models.PROTECT, models.RESTRICT])
def test_protected_rows_are_named(login, superuser, monkeypatch, how) -> None:
    """A row of the project that keeps an instance is no 500: on the page before, where it comes in between, and of many."""
    kept, free = make_failed(), make_failed()
    order = Order.objects.create(checkout=kept)
    monkeypatch.setattr(Order._meta.get_field("checkout").remote_field, "on_delete", how)
    client = login(superuser)
    for answer in (client.get(verb_url("delete", kept)), client.post(verb_url("delete", kept), {})):
        assert answer.status_code == 409 and f"order &quot;{order}&quot;" in text_of(answer)
    response = confirm(client, select(client, "delete", [kept, free]))
    assert messages_of(response) == ["Delete: 1 done, 1 skipped (other rows need them: 1)"]
    assert list(WorkflowInstance.objects.all()) == [kept] and LogEntry.objects.count() == 1


def test_rows_that_stay_are_told_of(login, superuser) -> None:
    """Those that only point to it (``SET_NULL``)."""
    instance = make_failed()
    order = Order.objects.create(checkout=instance)
    client, address = login(superuser), verb_url("delete", instance)
    assert "Kept, without its link to it: 1 order" in text_of(client.get(address))
    client.post(address, {})
    order.refresh_from_db()
    assert order.checkout is None


def test_what_goes_with_an_instance_is_counted_in_bounded_queries() -> None:
    """One for each table that points to instances, whatever there is in them."""
    instance = make_failed()
    with CaptureQueriesContext(connection) as captured:
        found = relatives_of(instance)
    assert (set(found.going), found.staying, found.protecting) == ({"3 history entries", "2 steps"}, [], [])
    assert len(captured) <= len(WorkflowInstance._meta.related_objects)
