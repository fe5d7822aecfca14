"""An event by hand: the page, what it says, and what it does (design 1.6; cases EVT-08, LIF-06, SEC-02)."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.core.statuses import StepKind
from durableflow.models import SentEvent
from durableflow.testing import Harness
from tests.admin.acting import messages_of, page_of, text_of, verb_url
from tests.admin.rows import S, make_instance, make_wait, snapshot
from tests.admin.test_two_deciders import at_once

pytestmark = pytest.mark.django_db


class AdminParcel(Workflow[None, object]):
    """Waits for one of two events."""

    class Meta:
        name = "admin-parcel"

    def run(self, event: WorkflowEvent[None], step: Step) -> object:
        got = step.wait_for_event("outcome", type=["delivered", "lost"], timeout="2 days")
        return [got.type, got.payload, got.sent_by]


def said(**more: object) -> dict[str, object]:
    """What a form sends."""
    return {"run": 1, "type": "lost", "payload": "", "key": str(uuid4()), **more}


def waiting(**fields: object):
    """An instance that waits for one type of event."""
    instance = make_instance(**fields)
    return instance, make_wait(instance, "paid?", kind=StepKind.WAIT_FOR_EVENT, types=["paid"])


def test_a_person_sends_what_the_program_did_not(login, superuser, workflows: Harness) -> None:
    """From the page of the wait over the form to the end of the instance; audited."""
    run = workflows.run(AdminParcel)
    client, address = login(superuser), verb_url("send_event", run)
    assert address in page_of(client, run)
    wait = client.get(reverse("admin:durableflow_pendingevent_change", args=[run.pending_events.get().pk]))
    assert f'href="{address}"' in text_of(wait)
    page = text_of(client.get(address))
    assert "It waits for: delivered, lost. Such an event ends that wait." in page
    assert '<option value="delivered">' in page and "cannot be taken back" in page
    response = client.post(address, said(payload='{"depot": 7}', reason="phoned the carrier"), follow=True)
    assert messages_of(response) == ["The event was sent. The wait takes it, and the instance goes on."]
    workflows.run_due()
    run.refresh_from_db()
    assert (run.status, run.output) == (S.COMPLETE, ["lost", {"depot": 7}, superuser.get_username()])
    entry = run.history.get(type="event_received")
    assert (entry.actor, entry.via, entry.reason) == (superuser, "admin", "phoned the carrier")
    assert LogEntry.objects.get().change_message == "Send event lost. Reason: phoned the carrier"
    assert client.get(address).status_code == 409, "it has ended"
    assert address not in page_of(client, run)


def test_the_only_type_is_filled_in(login, superuser) -> None:
    """And one that a link suggests; the page of the wait has that link."""
    instance, wait = waiting()
    client, address = login(superuser), verb_url("send_event", instance)
    assert 'name="type" value="paid"' in text_of(client.get(address))
    assert 'name="type" value="other"' in text_of(client.get(f"{address}?type=other"))
    shown = text_of(client.get(reverse("admin:durableflow_pendingevent_change", args=[wait.pk])))
    assert f'href="{address}?type=paid"' in shown


def test_what_nothing_waits_for_is_said(login, superuser) -> None:
    """EVT-08: before and after; also that a paused instance reads it later."""
    instance, _wait = waiting(status=S.PAUSED)
    client, address = login(superuser), verb_url("send_event", instance)
    assert "the event is read when somebody resumes it" in text_of(client.get(address))
    kept = client.post(address, said(type="Paid"), follow=True)
    assert messages_of(kept)[0].startswith("The event was sent. Nothing waits for its type now")
    read = client.post(address, said(type="paid"), follow=True)
    assert messages_of(read) == ["The event was sent. It is read when somebody resumes the instance."]
    assert "It waits for no event now" in text_of(client.get(verb_url("send_event", make_instance())))


@pytest.mark.parametrize(
    "wrong", [{"type": ""}, {"type": "no spaces"}, {"payload": "{"}, {"payload": '"\\u0000"'}, {"key": "x"}]
)
def test_what_cannot_be_sent_stays_typed(login, superuser, wrong) -> None:
    """400 with a reason; nothing stored, nothing lost."""
    instance, _wait = waiting()
    before = snapshot()
    response = login(superuser).post(verb_url("send_event", instance), said(reason="because", **wrong))
    assert response.status_code == 400 and "errorlist" in text_of(response) and "because" in text_of(response)
    assert snapshot() == before


def test_one_form_sends_one_event(login, superuser) -> None:
    """LIF-06: the second click, and the form that came back with another payload, get 409; no trace of them."""
    instance, _wait = waiting()
    client, address, form = login(superuser), verb_url("send_event", instance), said(type="paid")
    assert client.post(address, form).status_code == 302
    for again in (form, {**form, "payload": "1"}, {**form, "type": "other"}):
        response = client.post(address, again)
        assert response.status_code == 409 and "has already sent its event" in text_of(response)
    assert client.post(address, said(run=0)).status_code == 409, "of an earlier run"
    assert SentEvent.objects.count() == LogEntry.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_clicks_at_once_send_one_event(login, superuser) -> None:
    """The same with real transactions."""
    instance, _wait = waiting()
    clients, form = [login(superuser), login(superuser)], said(type="paid")
    answers = at_once(*(partial(client.post, verb_url("send_event", instance), form) for client in clients))
    assert sorted(answer.status_code for answer in answers) == [302, 409]
    assert SentEvent.objects.count() == LogEntry.objects.count() == 1


def test_who_may_not_send_is_not_offered_it(login, viewer) -> None:
    """SEC-02: neither on the instance's page nor on that of the wait; the address is forbidden."""
    instance, wait = waiting()
    client, address = login(viewer), verb_url("send_event", instance)
    before = snapshot()
    assert address not in page_of(client, instance)
    assert address not in text_of(client.get(reverse("admin:durableflow_pendingevent_change", args=[wait.pk])))
    assert client.get(address).status_code == client.post(address, said()).status_code == 403
    assert snapshot() == before
