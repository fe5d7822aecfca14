"""The inbox and the page on which a person decides."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

import pytest
from django.contrib.admin.models import LogEntry
from django.template import Context, Template
from django.test import RequestFactory
from django.urls import reverse
from django.utils import timezone

from durableflow.core.statuses import PendingStatus, SentKind, StepKind
from durableflow.models import PendingEvent
from tests.admin.rows import REFUND, make_instance, make_wait, snapshot
from tests.integration.decision_forms import TypedForm

pytestmark = pytest.mark.django_db
LIST = "admin:durableflow_pendingevent_changelist"


def page_of(wait: PendingEvent) -> str:
    return reverse("admin:durableflow_pendingevent_change", args=[wait.pk])


def decide_of(wait: PendingEvent) -> str:
    return reverse("admin:durableflow_pendingevent_decide", args=[wait.pk])


def text_of(response) -> str:
    return re.sub(r"\s+", " ", response.content.decode())


def listed(client, **query) -> list[str]:
    response = client.get(reverse(LIST), query)
    assert response.status_code == 200
    return [row.name for row in response.context["cl"].result_list]


def test_inbox_shows_what_waits_on_me(login, manager, decider, viewer) -> None:
    """By default the waits that the person may decide; all others by filter, as far as the person may see them."""
    group = manager.groups.get()
    make_wait(make_instance(), "for managers", groups=[group])
    make_wait(make_instance(), "for deciders")
    make_wait(make_instance(), "late", groups=[group], deadline=timezone.now() - timedelta(seconds=1))
    make_wait(make_instance(), "own", groups=[group], allow_requester=False)
    PendingEvent.objects.get(name="own").instance.__class__.objects.filter(pending_events__name="own").update(
        created_by=manager
    )
    make_wait(make_instance(), "program", kind=StepKind.WAIT_FOR_EVENT, types=["paid"])
    assert listed(login(manager)) == ["for managers"]
    assert listed(login(decider)) == ["for deciders"]
    assert listed(login(viewer)) == []
    assert listed(login(viewer), show="open") == ["program", "own", "for deciders", "for managers"]
    assert listed(login(manager), show="all") == ["own", "late", "for managers"]
    assert "Nothing waits on you" in text_of(login(viewer).get(reverse(LIST)))


def test_inbox_filters_and_search(login, superuser) -> None:
    """Answered ones, the kind, and the beginning of an instance id."""
    wait = make_wait(make_instance(instance_id="order-77"), "gate")
    make_wait(make_instance(instance_id="x-1"), "other")
    client = login(superuser)
    assert listed(client, q="order-7") == ["gate"]
    wait.approve(by=superuser)
    assert listed(client, show="decided") == ["gate"]
    assert listed(client) == ["other"]
    assert "Nothing matches" in text_of(client.get(reverse(LIST), {"q": "zzz"}))
    assert listed(client, show="nonsense") == ["other"]


def test_inbox_costs_the_same_for_one_row_and_for_many(login, viewer, django_assert_max_num_queries) -> None:
    """Constant queries."""
    client = login(viewer)

    def queries() -> int:
        with django_assert_max_num_queries(13) as captured:
            client.get(reverse(LIST), {"show": "all"})
        return len(captured)

    make_wait(make_instance())
    first = queries()
    for _ in range(15):
        make_wait(make_instance(), context={"a": 1})
    assert queries() == first


def test_page_shows_all_to_decide_by(login, manager, requester) -> None:
    """Instructions, context, requester, deadline, the wait's form, comment, two buttons."""
    wait = make_wait(
        make_instance(created_by=requester),
        title="Order over 500",
        description="Look at the cart.\n\nThen decide.",
        context={"total": 612, "items": ["book"]},
        groups=[manager.groups.get()],
        form=REFUND,
        deadline=timezone.now() + timedelta(days=3),
    )
    response = login(manager).get(page_of(wait))
    page = text_of(response)
    assert response.status_code == 200
    for text in (
        "Order over 500",
        "<p>Then decide.</p>",
        "612",
        "book",
        "requester",
        'name="data-amount"',
        'name="comment"',
    ):
        assert text in page
    assert 'value="approve"' in page and 'value="reject"' in page
    assert reverse("admin:durableflow_workflowinstance_change", args=[wait.instance_id]) not in page  # no view right


def test_viewers_get_a_link_to_the_instance(login, viewer) -> None:
    """Who may see the instance gets there in one click, and no form without the right to decide."""
    wait = make_wait(make_instance())
    page = text_of(login(viewer).get(page_of(wait)))
    assert reverse("admin:durableflow_workflowinstance_change", args=[wait.instance_id]) in page
    assert "not among the people" in page and 'value="approve"' not in page


def test_approve_with_form(login, manager) -> None:
    """EVT-10, SEC-10: stored once, with who, via and comment; one event in the inbox; a line in the staff log."""
    wait = make_wait(make_instance(), groups=[manager.groups.get()], form=REFUND)
    posted = {
        "decision": "approve",
        "data-amount": "12.50",
        "data-comment": "for them",
        "data-shops": ["a", "b"],
        "comment": "for us",
    }
    response = login(manager).post(decide_of(wait), posted)
    assert (response.status_code, response["Location"]) == (302, page_of(wait))
    wait.refresh_from_db()
    assert wait.status == PendingStatus.RECEIVED and wait.approved is True
    assert wait.data == {"amount": Decimal("12.50"), "comment": "for them", "shops": ["a", "b"]}
    assert (wait.comment, wait.decided_by, wait.via) == ("for us", manager, "admin")
    assert wait.sent_events.get().kind == SentKind.DECISION
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.change_message) == (manager, str(wait.pk), "Approved. for us")


def test_form_errors_store_nothing(login, manager) -> None:
    """The page comes back with what was entered and what is wrong with it."""
    wait = make_wait(make_instance(), groups=[manager.groups.get()], form=REFUND)
    before = snapshot()
    response = login(manager).post(decide_of(wait), {"decision": "approve", "data-amount": "much", "comment": "hm"})
    page = text_of(response)
    assert response.status_code == 400
    assert (
        "Enter a number." in page
        and 'value="much"' in page
        and ">hm</textarea>" in page.replace("\r", "").replace("> hm", ">hm")
    )
    assert snapshot() == before


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 5000, "[1e400]", "[NaN]"])
def test_json_on_which_the_field_would_fail_is_marked(login, manager, text) -> None:
    """Too many digits or levels, and what would be another value than it says."""
    typed = f"{TypedForm.__module__}.{TypedForm.__qualname__}"
    wait = make_wait(make_instance(), groups=[manager.groups.get()], form=typed)
    before = snapshot()
    response = login(manager).post(decide_of(wait), {"decision": "approve", "data-more": text})
    assert response.status_code == 400
    page = text_of(response)
    assert "This cannot be read as JSON" in page and f">{text}</textarea>" in page.replace("> [", ">[").replace(
        "> 9", ">9"
    )
    assert snapshot() == before


@pytest.mark.parametrize("answer", ["", "maybe", "Approve"])
def test_an_answer_is_one_of_two(login, manager, answer) -> None:
    """Nothing but the two buttons decides."""
    wait = make_wait(make_instance(), groups=[manager.groups.get()])
    before = snapshot()
    assert login(manager).post(decide_of(wait), {"decision": answer}).status_code == 400
    assert snapshot() == before


def test_reject_needs_a_comment_and_no_form(login, manager) -> None:
    """A rejection says why and takes no data."""
    wait = make_wait(make_instance(), groups=[manager.groups.get()], form=REFUND)
    client = login(manager)
    response = client.post(decide_of(wait), {"decision": "reject", "data-amount": ""})
    assert response.status_code == 400 and "Say why you reject." in text_of(response)
    wait.refresh_from_db()
    assert wait.status == PendingStatus.OPEN
    response = client.post(decide_of(wait), {"decision": "reject", "data-amount": "", "comment": "too dear"})
    assert response.status_code == 302
    wait.refresh_from_db()
    assert (wait.approved, wait.data, wait.comment) == (False, None, "too dear")


def test_second_decision_says_who_decided(login, manager, superuser) -> None:
    """EVT-10: the first answer wins, the second is told who and when; a double click changes nothing."""
    wait = make_wait(make_instance(), groups=[manager.groups.get()])
    assert login(manager).post(decide_of(wait), {"decision": "approve"}).status_code == 302
    before = snapshot()
    for user in (superuser, manager):
        response = login(user).post(decide_of(wait), {"decision": "reject", "comment": "no"})
        assert response.status_code == 409
        assert "by <strong>manager</strong>" in text_of(response) and "was not stored" in text_of(response)
    assert snapshot() == before
    shown = text_of(login(superuser).get(page_of(wait)))
    assert "by <strong>manager</strong>" in shown and 'value="approve"' not in shown


def test_stale_page_links_to_the_current_wait(login, manager) -> None:
    """EVT-13: a form of an earlier gate opens no later one; the page leads to the one that is open now."""
    group = manager.groups.get()
    instance = make_instance()
    first = make_wait(instance, "gate 1", groups=[group], status=PendingStatus.TIMED_OUT)
    second = make_wait(instance, "gate 2", groups=[group])
    response = login(manager).post(decide_of(first), {"decision": "approve"})
    page = text_of(response)
    assert response.status_code == 409 and "before the deadline" in page and page_of(second) in page
    second.refresh_from_db()
    assert second.status == PendingStatus.OPEN


def test_wait_past_its_deadline_is_closed_though_no_worker_was_up(login, manager) -> None:
    """Design 8: it reads as timed out everywhere."""
    wait = make_wait(make_instance(), groups=[manager.groups.get()], deadline=timezone.now() - timedelta(seconds=1))
    client = login(manager)
    assert "Timed out" in text_of(client.get(page_of(wait)))
    assert client.post(decide_of(wait), {"decision": "approve"}).status_code == 409
    wait.refresh_from_db()
    assert wait.approved is None


def test_waits_of_earlier_runs_and_cancelled_ones(login, superuser) -> None:
    """Each says why it is closed."""
    instance = make_instance(run_number=2)
    old = make_wait(instance, "old", status=PendingStatus.CANCELLED)
    PendingEvent.objects.filter(pk=old.pk).update(run_number=1)
    cancelled = make_wait(instance, "cancelled", status=PendingStatus.CANCELLED)
    client = login(superuser)
    assert "earlier run" in text_of(client.get(page_of(old)))
    assert "no longer waits" in text_of(client.get(page_of(cancelled)))
    assert client.post(decide_of(old), {"decision": "approve"}).status_code == 409


@pytest.mark.parametrize("who", ["starter", "superuser"])
def test_requester_may_not_decide_own_request(login, user_factory, who) -> None:
    """SEC-05: the one who asked, with the right and even as superuser; others may."""
    right = ["durableflow.decide_pendingevent"]
    user = user_factory("starter", is_staff=True, is_superuser=who == "superuser", permissions=right)
    other = user_factory("other", is_staff=True, permissions=right)
    wait = make_wait(make_instance(created_by=user), allow_requester=False)
    client = login(user)
    assert "has to be made by somebody else" in text_of(client.get(page_of(wait)))
    before = snapshot()
    for answer in ("approve", "reject"):
        assert client.post(decide_of(wait), {"decision": answer, "comment": "x"}).status_code == 403
    assert snapshot() == before
    assert login(other).post(decide_of(wait), {"decision": "approve"}).status_code == 302


def test_requester_may_decide_where_the_rule_is_off(login, user_factory) -> None:
    """SEC-05, the rule off."""
    user = user_factory("starter", is_staff=True, permissions=["durableflow.decide_pendingevent"])
    wait = make_wait(make_instance(created_by=user), allow_requester=True)
    assert login(user).post(decide_of(wait), {"decision": "approve"}).status_code == 302


def test_form_that_is_not_imported_says_what_to_do(login, superuser) -> None:
    """Nothing is imported by name; the page names the cure, and rejecting stays possible through code."""
    wait = make_wait(make_instance(), form="nowhere.forms.Missing")
    client = login(superuser)
    assert "Import it at the top of the workflows module" in text_of(client.get(page_of(wait)))
    before = snapshot()
    assert client.post(decide_of(wait), {"decision": "approve"}).status_code == 409
    assert snapshot() == before


def test_event_waits_show_what_they_wait_for(login, superuser) -> None:
    """Nobody decides what a program answers."""
    wait = make_wait(make_instance(), "payment", kind=StepKind.WAIT_FOR_EVENT, types=["paid", "failed"])
    client = login(superuser)
    page = text_of(client.get(page_of(wait)))
    assert "Event paid, failed" in page and "sending an event" in page and 'value="approve"' not in page
    before = snapshot()
    assert client.post(decide_of(wait), {"decision": "approve"}).status_code == 409
    assert snapshot() == before


def test_too_long_a_comment_is_refused(login, superuser) -> None:
    """Bad input: nothing stored."""
    wait = make_wait(make_instance())
    before = snapshot()
    assert login(superuser).post(decide_of(wait), {"decision": "approve", "comment": "x" * 10_001}).status_code == 400
    assert snapshot() == before


def test_data_beyond_the_limit_is_refused(login, superuser, settings) -> None:
    """The size limit of what is stored is 413."""
    settings.DURABLEFLOW = {"LIMITS": {"payload": 500}}
    wait = make_wait(make_instance())
    before = snapshot()
    assert login(superuser).post(decide_of(wait), {"decision": "approve", "comment": "x" * 600}).status_code == 413
    assert snapshot() == before


def count_of(user) -> str:
    request = RequestFactory().get("/")
    request.user = user
    template = Template("{% load durableflow %}{% durableflow_pending_count as waiting %}{{ waiting }}")
    return template.render(Context({"request": request, "user": user}))


def test_pending_count(manager, decider, django_assert_num_queries, monkeypatch, client) -> None:
    """The number for the project's header: one bounded query, empty where nothing waits."""
    from django.contrib.auth.models import AnonymousUser

    assert count_of(manager) == count_of(AnonymousUser()) == ""
    for _ in range(3):
        make_wait(make_instance(), groups=[manager.groups.get()])
    assert count_of(manager) == "3"
    monkeypatch.setattr("durableflow.templatetags.durableflow.MOST", 2)
    assert count_of(manager) == "2+"
    assert count_of(decider) == ""
