"""Verbs on many instances: asked first, done in slices, reported (SEC-13)."""

from __future__ import annotations

import logging

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext

from durableflow.admin import bulk
from durableflow.core.exceptions import InvalidTransition
from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models import StepRecord, WorkflowInstance
from durableflow.operations import BulkReport, Reason
from tests.admin.acting import BULK, LIST, confirm, messages_of, select, text_of
from tests.admin.rows import S, make_blocked, make_failed, make_instance, make_step, snapshot

pytestmark = pytest.mark.django_db
VERBS = ("retry", "pause", "resume", "restart", "terminate", "delete")


def test_it_asks_first(login, operator) -> None:
    """The page counts by status what will be done and what is left out; nothing has changed yet."""
    failed, waiting = make_failed(instance_id="bad-1"), make_instance(instance_id="fine-1")
    before = snapshot()
    page = text_of(select(login(operator), "retry", [failed, waiting]))
    assert "Retry 1 instance" in page and "checkout/bad-1" in page
    assert page.index("checkout/bad-1") < page.index("Left out") < page.index("checkout/fine-1")
    assert "_selected_action" not in page, "the chosen rows are settled"
    assert snapshot() == before


def test_it_reports_done_and_skipped(login, operator) -> None:
    """SEC-10: an entry for each row; skipped rows with the reason."""
    client, rows = login(operator), [make_failed(), make_failed(), make_instance(status=S.COMPLETE)]
    response = confirm(client, select(client, "retry", rows), reason="after the deploy")
    assert messages_of(response) == ["Retry: 2 done, 1 skipped (status Complete: 1)"]
    for row in rows[:2]:
        row.refresh_from_db()
        assert row.status == S.QUEUED
        assert row.history.get(type="workflow_queued").reason == "after the deploy"
    logged = LogEntry.objects.values_list("object_id", "action_flag", "change_message")
    assert set(logged) == {(str(row.pk), CHANGE, "Retry. Reason: after the deploy") for row in rows[:2]}


@pytest.mark.parametrize(
    ("verb", "made", "status"),
    [
        ("pause", S.WAITING, S.PAUSED),
        ("resume", S.PAUSED, S.QUEUED),
        ("restart", S.COMPLETE, S.QUEUED),
        ("terminate", S.PAUSED, S.TERMINATED),
    ],
)
def test_every_verb_is_offered(login, operator, verb, made, status) -> None:
    """LIF-06: the verbs of one instance are those of many."""
    client, row = login(operator), make_instance(status=made)
    response = confirm(client, select(client, verb, [row]))
    assert messages_of(response) == [f"{verb.capitalize()}: 1 done"]
    row.refresh_from_db()
    assert row.status == status


def test_many_are_deleted(login, superuser, caplog) -> None:
    """With their steps, by our way, not Django's; the staff log and the server's log keep who, what and why."""
    client, rows, other = login(superuser), [make_failed(), make_instance()], make_failed()
    asking = select(client, "delete", rows)
    assert "This cannot be undone" in text_of(asking)
    with caplog.at_level(logging.INFO, "durableflow.audit"):
        response = confirm(client, asking, reason="test data")
    assert messages_of(response) == ["Delete: 2 done"]
    assert list(WorkflowInstance.objects.all()) == [other]
    assert set(StepRecord.objects.values_list("instance", flat=True)) == {other.pk}
    logged = LogEntry.objects.values_list("object_id", "object_repr", "action_flag", "change_message")
    assert set(logged) == {(str(row.pk), row.label, DELETION, "Delete. Reason: test data") for row in rows}


def test_all_pages_are_taken_with_their_filter(login, operator) -> None:
    """SEC-10, SEC-13: "select all" takes what the filter shows; the way back leads to the same list."""
    rows = [make_instance(workflow="export") for _ in range(3)]
    other, client = make_instance(), login(operator)
    asking = select(client, "terminate", rows[:1], "?workflow=export", select_across="1")
    response = confirm(client, asking)
    assert messages_of(response) == ["Terminate: 3 done"]
    assert response.redirect_chain[-1][0] == f"{LIST}?workflow=export"
    assert set(WorkflowInstance.objects.filter(status=S.TERMINATED)) == set(rows)
    other.refresh_from_db()
    assert other.status == S.WAITING


def test_the_chosen_rows_are_settled_when_it_asks(login, operator) -> None:
    """SEC-13: a row that comes to match the filter later is not taken; one that no longer does is told of."""
    rows, late, client = [make_failed() for _ in range(3)], make_instance(), login(operator)
    asking = select(client, "retry", rows[:1], "?status__exact=errored", select_across="1")
    WorkflowInstance.objects.filter(pk=late.pk).update(status=S.ERRORED)
    rows[1].retry()
    response = confirm(client, asking)
    assert messages_of(response) == ["Retry: 2 done, 1 skipped (status Queued: 1)"]
    late.refresh_from_db()
    assert late.status == S.ERRORED


def test_it_goes_on_in_slices(login, operator, monkeypatch) -> None:
    """SEC-13: each request does a part and says how far it is; a button goes on, also without scripts."""
    monkeypatch.setattr("durableflow.admin.bulk.SLICE", 0.0)
    monkeypatch.setattr("durableflow.admin.bulk.CHUNK", 2)
    rows, client = [make_failed() for _ in range(5)], login(operator)
    page = confirm(client, select(client, "retry", rows), reason="r")
    told = []
    while page.context.get("going"):
        told.append((page.context["looked_at"], page.context["total"]))
        assert "Go on" in text_of(page) and 'src="/static/durableflow/bulk.js"' in text_of(page)
        page = confirm(client, page)
    assert told == [(2, 5), (4, 5)]
    assert messages_of(page) == ["Retry: 5 done"]
    assert {row.history.get(type="workflow_queued").reason for row in rows} == {"r"}


def test_a_slice_that_is_sent_twice_does_nothing_twice(login, operator, monkeypatch) -> None:
    """A double click, or "back" and "go on": of a restart too, though a worker has taken the new run up already."""
    monkeypatch.setattr("durableflow.admin.bulk.SLICE", 0.0)
    rows, client = [make_failed(), make_failed()], login(operator)
    asking = select(client, "restart", rows)
    assert messages_of(confirm(client, asking)) == ["Restart: 2 done"]
    WorkflowInstance.objects.update(status=S.RUNNING, wake_at=None)
    assert messages_of(confirm(client, asking)) == ["Restart: 0 done, 2 skipped (restarted meanwhile: 2)"]
    assert set(WorkflowInstance.objects.values_list("run_number", flat=True)) == {2}


def test_a_restart_between_the_choice_of_a_part_and_its_turn(login, operator, monkeypatch) -> None:
    """Two requests at work on one form: the reason is told, not a status that would fit."""
    row, restart, client = make_failed(), WorkflowInstance.restart, login(operator)
    asking = select(client, "restart", [row])

    def late(chosen, **said) -> None:
        restart(WorkflowInstance.objects.get(pk=chosen.pk))
        WorkflowInstance.objects.update(status=S.WAITING)
        restart(chosen, **said)

    monkeypatch.setattr(WorkflowInstance, "restart", late)
    assert messages_of(confirm(client, asking)) == ["Restart: 0 done, 1 skipped (restarted meanwhile: 1)"]


def test_a_restart_warns(login, operator) -> None:
    """It may charge again, and unread events are dropped."""
    page = text_of(select(login(operator), "restart", [make_failed()]))
    assert "may charge, book or send again" in page and "Events that nobody has read are dropped." in page


def test_5000_in_a_bounded_number_of_statements(login, operator, monkeypatch) -> None:
    """SEC-13: "select all" of 5,000 failed ones, one of which changes meanwhile: done by a few requests, with a summary. What the
    form carries stays small, and nothing is asked for each row (the verb itself, a transaction for each, is not part of it)."""

    def quick(rows, **said) -> BulkReport:
        report = BulkReport()
        for row in rows.light():
            if row.status == S.ERRORED:
                report.done.append(row)
            else:
                error = InvalidTransition("no", status=row.status)
                report.skipped.append((row, Reason.of(error, error.code)))
        WorkflowInstance.objects.filter(pk__in=[row.pk for row in report.done]).update(status=S.QUEUED)
        return report

    monkeypatch.setitem(bulk.DO, "retry", quick)
    monkeypatch.setattr(bulk, "SLICE", 0.0)
    monkeypatch.setattr(bulk, "CHUNK", 2_500)
    first = make_failed()
    fields = {"workflow": "checkout", "status": S.ERRORED, "created": first.created, "finished": first.finished}
    rows = [WorkflowInstance(instance_id=f"many-{number}", **fields) for number in range(4_999)]
    WorkflowInstance.objects.bulk_create(rows)
    client = login(operator)
    with CaptureQueriesContext(connection) as captured:
        asking = select(client, "retry", [first], select_across="1")
    assert len(captured) < 25
    assert "Retry 5,000 instances" in text_of(asking) and len(asking.context["job"]) < 20_000
    first.retry()
    with CaptureQueriesContext(connection) as captured:
        page = confirm(client, asking)
    assert len(captured) < 60, "Django's log is written many rows at a time"
    assert (page.context["looked_at"], page.context["total"]) == (2_500, 5_000)
    page = confirm(client, page)
    assert messages_of(page) == ["Retry: 4,999 done, 1 skipped (status Queued: 1)"]
    assert WorkflowInstance.objects.filter(status=S.QUEUED).count() == 5_000
    assert LogEntry.objects.count() == 4_999


def test_over_the_bound_is_refused_with_words(login, operator, monkeypatch) -> None:
    """The message says how to go on."""
    monkeypatch.setattr("durableflow.admin.bulk.MOST_AT_ONCE", 2)
    rows = [make_failed() for _ in range(3)]
    before = snapshot()
    assert "Select at most 2" in messages_of(select(login(operator), "retry", rows))[0]
    assert snapshot() == before


def test_1001_ticked_boxes_are_refused_with_words(login, operator, bare) -> None:
    """SEC-13: Django reads no more than a thousand fields; the page says so, and what to do."""
    data = {"action": "retry_selected", "_selected_action": list(range(1_001))}
    response = login(operator).post(LIST, data)
    assert response.status_code == 400
    assert "more boxes than this site accepts" in text_of(response)
    assert login(None).post(LIST, data).status_code == 302, "to the login"


def test_the_list_still_asks_for_the_token(login, operator) -> None:
    """SEC-01: the view that tells of too many boxes is no way around it."""
    rows, strict = [make_failed()], login(operator, csrf=True)
    data = {"action": "retry_selected", "_selected_action": [rows[0].pk]}
    assert strict.post(LIST, data).status_code == 403
    assert strict.post(BULK, {"job": "x"}).status_code == 403


@pytest.mark.parametrize("verb", VERBS)
def test_a_forged_action_is_refused(login, viewer, bare, requester, verb) -> None:
    """SEC-02: 403 and no change without the right, whatever is posted."""
    rows = [make_failed(created_by=requester), make_blocked(created_by=requester)]
    before = snapshot()
    for user in (viewer, bare, requester):
        assert select(login(user), verb, rows).status_code == 403
    assert snapshot() == before


def test_the_form_of_somebody_else_is_refused(login, operator, superuser, viewer, user_factory) -> None:
    """SEC-02: what the form carries is signed, and for one person, whose right is asked again."""
    row = make_failed()
    asking = select(login(superuser), "retry", [row])
    before = snapshot()
    for user, text in ((operator, "out of date"), (superuser, "out of date")):
        job = asking.context["job"] if user is operator else f"{asking.context['job']}x"
        response = login(user).post(BULK, {"job": job})
        assert response.status_code == 400 and text in text_of(response)
    answer = login(superuser).get(BULK)  # as after a new login
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    page = text_of(answer)
    assert "What was done stays done" in page and "Back to the list" in page and "Nothing was done" not in page
    own = select(login(operator), "retry", [row])
    operator.user_permissions.clear()
    assert login(operator).post(BULK, {"job": own.context["job"]}).status_code == 403
    assert snapshot() == before


def test_only_visible_rows_are_touched(login, user_factory) -> None:
    """SEC-02: ids of foreign rows in the POST are not found."""
    user = user_factory("own-operator", is_staff=True, permissions=["durableflow.operate_workflowinstance"])
    mine, foreign, client = make_failed(created_by=user), make_failed(), login(user)
    confirm(client, select(client, "retry", [mine, foreign]))
    mine.refresh_from_db()
    foreign.refresh_from_db()
    assert (mine.status, foreign.status) == (S.QUEUED, S.ERRORED)


def test_a_too_long_reason_is_asked_for_again(login, operator) -> None:
    """Nothing is done until the form is right; what was chosen is kept."""
    row, client = make_failed(), login(operator)
    before = snapshot()
    page = confirm(client, select(client, "retry", [row]), reason="x" * 1_001)
    assert page.status_code == 400 and snapshot() == before
    assert messages_of(confirm(client, page, reason="short")) == ["Retry: 1 done"]


def test_children_of_many_are_counted(login, operator) -> None:
    """Ending parents ends children: said before."""
    parent = make_instance()
    step = make_step(parent, "pages", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None)
    make_instance(parent_step=step, on_parent_end="terminate")
    assert "1 child workflow ends with them." in text_of(select(login(operator), "terminate", [parent]))
