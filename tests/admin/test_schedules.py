"""Schedules in the admin: list, form, page, verbs."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from durableflow import InvalidTransition
from durableflow.core import clock
from durableflow.models import SkippedSlots, WorkflowInstance, WorkflowSchedule
from tests.admin.acting import messages_of, text_of
from tests.admin.flows import AdminReport
from tests.admin.rows import S, make_instance
from tests.conftest import UserFactory

pytestmark = pytest.mark.django_db
BASE = "admin:durableflow_workflowschedule_"
LIST = reverse(f"{BASE}changelist", urlconf="tests.admin.urls")
ADD = reverse(f"{BASE}add", urlconf="tests.admin.urls")
NIGHT = "0 2 * * *"
RIGHTS = ("view", "add", "change", "delete")


@pytest.fixture
def planner(user_factory: UserFactory) -> User:
    """Staff who may do everything with schedules, and look at instances."""
    rights = [f"durableflow.{right}_workflowschedule" for right in RIGHTS]
    more = ["durableflow.start_workflowinstance", "durableflow.view_workflowinstance"]
    return user_factory("planner", is_staff=True, permissions=[*rights, *more])


def make_schedule(name: str = "night", **fields: Any) -> WorkflowSchedule:
    """A row as staff add it; with ``declared`` as a worker makes it."""
    values = {"workflow": "admin-report", "cron": NIGHT, "timezone": "Europe/Berlin", **fields}
    row = WorkflowSchedule(name=name, **values)
    row.save()
    return row


def url(name: str, row: WorkflowSchedule) -> str:
    """One of the addresses of a schedule."""
    return reverse(BASE + name, args=[row.pk])


def typed(**fields: Any) -> dict[str, Any]:
    """What the form sends."""
    values = {"workflow": "admin-report", "name": "night", "cron": NIGHT, "timezone": "Europe/Berlin", "params": ""}
    return {**values, "catch_up": "latest", "overlap": "skip", "enabled": "on", **fields}


def test_a_person_adds_one(login, planner, caplog, django_capture_on_commit_callbacks) -> None:
    """SEC-10: stored as typed, the next slot computed, an entry in the staff log and in the server's."""
    with caplog.at_level(logging.INFO, "durableflow.audit"), django_capture_on_commit_callbacks(execute=True):
        response = login(planner).post(ADD, typed(params='{"shop": 7}'))
    assert response.status_code == 302 and "create by planner via admin" in caplog.text
    row = WorkflowSchedule.objects.get()
    assert (row.workflow, row.cron, row.timezone, row.params) == ("admin-report", NIGHT, "Europe/Berlin", {"shop": 7})
    assert (row.declared, row.enabled, row.overlap, row.catch_up) == (False, True, "skip", "latest")
    assert row.next_slot > timezone.now()
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.action_flag) == (planner, str(row.pk), ADDITION)


@pytest.mark.parametrize(
    "workflow", ["os.system", "django.core.management.call_command", "tests.admin.flows.AdminReport", ""]
)
def test_only_registered_workflows_can_be_chosen(login, planner, workflow) -> None:
    """SEC-08: a choice of names, nothing is imported, nothing is stored."""
    response = login(planner).post(ADD, typed(workflow=workflow))
    assert response.status_code == 200 and response.context["adminform"].form.errors["workflow"]
    assert not WorkflowSchedule.objects.exists()


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"cron": "0 0 30 2 *"}, "cron", ""),
        ({"cron": "61 * * * *"}, "cron", ""),
        ({"timezone": "Europe/Atlantis"}, "timezone", ""),
        ({"catch_up": "all"}, "catch_up", "latest"),
        ({"name": "schedule-2"}, "name", "declared in code"),
        ({"name": "a b"}, "name", ""),
        ({"overlap": "x"}, "overlap", ""),
        ({"params": "{shop: 7}"}, "params", "not JSON: line 1, column 2"),
        ({"params": "NaN"}, "params", "no JSON value"),
        ({"params": "[1e400]"}, "params", "1e400 is no JSON value"),
        ({"params": '{"$df": "what", "v": 1}'}, "params", "what"),
        ({"params": "[" * 500 + "]" * 500}, "params", ""),
        ({"params": '{"other": 7}'}, "params", "shop"),
    ],
)
def test_a_mistake_is_shown_at_its_field_and_the_input_stays(login, planner, fields, field, text) -> None:
    """SCH-05: refused with a reason, nothing stored, nothing lost of what was typed."""
    response = login(planner).post(ADD, typed(**{"cron": "5 4 * * *", **fields}))
    form = response.context["adminform"].form
    assert list(form.errors) == [field] and text in str(form.errors[field])
    assert form["cron"].value() == fields.get("cron", "5 4 * * *")
    assert not WorkflowSchedule.objects.exists()


def test_a_name_that_is_taken_is_an_error_of_the_form(login, planner) -> None:
    """Not a 500."""
    make_schedule()
    response = login(planner).post(ADD, typed())
    assert response.status_code == 200 and "already exists" in text_of(response)


def test_a_change_is_stored_and_logged(login, planner) -> None:
    """SEC-10, SCH-09: the next slot follows the new line; what was not changed is not written."""
    row = make_schedule(params={"shop": 7})
    before, address = row.next_slot, url("change", row)
    client = login(planner)
    form = client.get(address).context["adminform"].form
    sent = {name: form[name].value() for name in form.fields}
    assert "enabled" not in sent, "pause and resume are verbs"
    response = client.post(address, {**sent, "cron": "0 18 * * *"})
    assert response.status_code == 302
    row.refresh_from_db()
    assert (row.cron, row.params) == ("0 18 * * *", {"shop": 7}) and row.next_slot != before
    entry = LogEntry.objects.get()
    assert (entry.user, entry.action_flag) == (planner, CHANGE) and "ron" in entry.get_change_message()


def test_a_pause_meanwhile_survives_an_edit(login, planner, monkeypatch) -> None:
    """Between the form's check and the write somebody pauses it: only what the form has changed is written."""
    row, client = make_schedule(), login(planner)
    save = WorkflowSchedule.save

    def late(self: Any, *args: Any, **kwargs: Any) -> None:
        monkeypatch.undo()
        WorkflowSchedule.objects.get(pk=self.pk).pause()
        save(self, *args, **kwargs)

    monkeypatch.setattr(WorkflowSchedule, "save", late)
    client.post(url("change", row), typed(overlap="allow"))
    row.refresh_from_db()
    assert (row.enabled, row.overlap) == (False, "allow")


@pytest.mark.parametrize(
    ("method", "error", "text"),
    [
        ("save", ValidationError("The schedule is declared in code."), "declared in code"),
        ("save", IntegrityError("unique"), "added meanwhile"),
        ("delete", InvalidTransition("The schedule is declared in code.", status="declared"), "declared in code"),
    ],
)
def test_somebody_was_faster(login, planner, monkeypatch, method, error, text) -> None:
    """Between the check of the form and the write: words, nothing stored, no 500."""
    row, client = make_schedule(), login(planner)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(WorkflowSchedule, method, refuse)
    if method == "save":
        answers = [client.post(address, typed(cron="1 1 * * *"), follow=True) for address in (url("change", row),)]
        answers.append(client.post(ADD, typed(name="other"), follow=True))
    else:
        answers = [client.post(url("delete", row), {"post": "yes"}, follow=True)]
    for answer in answers:
        assert answer.status_code == 200 and text in messages_of(answer)[0]
    monkeypatch.undo()
    row.refresh_from_db()
    assert row.cron == NIGHT and WorkflowSchedule.objects.count() == 1 and not LogEntry.objects.exists()


def test_params_that_are_not_shown_stay_unless_they_are_replaced(login, planner, settings) -> None:
    """SEC-09: secrets in params are in no page, and a save does not lose them."""
    settings.DURABLEFLOW = {"REDACT": ["token"]}
    row, client = make_schedule(params={"shop": 7, "token": "s3cret"}), login(planner)
    page = client.get(url("change", row))
    assert "s3cret" not in page.content.decode() and "values that are not shown" in text_of(page)
    client.post(url("change", row), typed(cron="0 3 * * *"))
    row.refresh_from_db()
    assert (row.cron, row.params) == ("0 3 * * *", {"shop": 7, "token": "s3cret"})
    client.post(url("change", row), typed(cron="0 3 * * *", params='{"shop": 8}'))
    row.refresh_from_db()
    assert row.params == {"shop": 8}


def test_values_that_json_has_not_survive_the_form(login, planner) -> None:
    """A date in the params is one after an edit too."""
    row, client = make_schedule(params={"shop": 7, "since": timezone.now()}), login(planner)
    kept, address = row.params, url("change", row)
    form = client.get(address).context["adminform"].form
    client.post(address, typed(params=form["params"].value(), cron="0 4 * * *"))
    row.refresh_from_db()
    assert (row.params, row.cron) == (kept, "0 4 * * *")


def test_declared_ones_are_read_only(login, superuser) -> None:
    """What is in the code is changed there: no form, no delete; the verbs are offered. Secrets are masked."""
    row = make_schedule("schedule", declared=True, params={"shop": 7})
    client = login(superuser)
    page = client.get(url("change", row))
    assert "Declared in code" in text_of(page) and "<textarea" not in page.content.decode()
    assert 'class="df-key">shop' in text_of(page)
    assert client.post(url("change", row), typed(cron="0 3 * * *")).status_code == 403
    for answer in (client.get(url("delete", row)), client.post(url("delete", row), {"post": "yes"})):
        assert answer.status_code == 403
    assert url("pause", row) in text_of(page) and url("run_now", row) in text_of(page)
    row.refresh_from_db()
    assert row.cron == NIGHT
    WorkflowSchedule.objects.filter(pk=row.pk).update(workflow="taken-out")  # of the code: nobody declares it again
    client.post(url("delete", row), {"post": "yes"})
    assert not WorkflowSchedule.objects.filter(pk=row.pk).exists()


def test_the_page_shows_what_comes_and_what_came(login, planner) -> None:
    """SCH-07: the next five runs in both times, the instances, the skipped slots with their reason."""
    with clock.stop(datetime(2026, 10, 22, 12, tzinfo=UTC)):  # three days before Berlin's clock is set back
        row = make_schedule()
    now = timezone.now()
    slot = make_instance(
        workflow="admin-report", instance_id="night-1", schedule=row, scheduled_for=now - timedelta(days=1)
    )
    hand = make_instance(workflow="admin-report", instance_id="hand-1", schedule=row)
    skip = {"slot": now - timedelta(days=3), "last": now - timedelta(days=2), "number": 2, "at": now}
    row.skipped.create(reason=SkippedSlots.Reason.OVERLAP, detail="night-0 runs", **skip)
    response = login(planner).get(url("change", row))
    page = text_of(response)
    upcoming = [local[-10:].strip() for _slot, local in response.context["page"].upcoming]
    assert upcoming == ["02:00 CEST"] * 3 + ["02:00 CET"] * 2
    for part in ("night-1", "hand-1", "by hand", "An earlier instance had not ended", "night-0 runs"):
        assert part in page
    assert f"?of_schedule={row.pk}" in page
    listed = login(planner).get(reverse("admin:durableflow_workflowinstance_changelist"), {"of_schedule": str(row.pk)})
    assert {found.pk for found in listed.context["cl"].result_list} == {slot.pk, hand.pk}


def test_a_zone_that_is_none_breaks_no_page(login, planner) -> None:
    """A row that was changed past the form, before anybody has found out."""
    row = make_schedule()
    WorkflowSchedule.objects.filter(pk=row.pk).update(timezone="../x")
    for address in (LIST, url("change", row), url("run_now", row), url("pause", row)):
        assert login(planner).get(address).status_code == 200


def test_foreign_instances_are_not_shown(login, user_factory) -> None:
    """Who may see schedules sees instances by the rule of instances."""
    row = make_schedule()
    make_instance(workflow="admin-report", instance_id="night-1", schedule=row, scheduled_for=timezone.now())
    user = user_factory("only", is_staff=True, permissions=["durableflow.view_workflowschedule"])
    assert "night-1" not in text_of(login(user).get(url("change", row)))


def test_the_list_tells_state_last_run_and_skips(login, planner) -> None:
    """SCH-07: in as many statements for many schedules as for few."""
    rows = [make_schedule(f"night-{number}") for number in range(3)]
    now = timezone.now()
    make_instance(schedule=rows[0], scheduled_for=now - timedelta(days=1), status=S.ERRORED)
    rows[0].skipped.create(slot=now, last=now, number=4, reason="catch_up", at=now)
    rows[1].pause()
    WorkflowSchedule.objects.filter(pk=rows[2].pk).update(problem="bad cron line", look_at=None)
    client = login(planner)
    with CaptureQueriesContext(connection) as few:
        page = text_of(client.get(LIST))
    assert re.search(
        r"night-0.*Active.*Failed.*4 skipped in 7 days.*night-1.*Paused.*night-2.*Cannot run.*bad cron line", page
    )
    for number in range(20):
        make_schedule(f"more-{number}")
    with CaptureQueriesContext(connection) as many:
        client.get(LIST)
    assert len(many) == len(few)


# Verbs ------------------------------------------------------------------------------------------------------------------


def test_pause_and_resume(login, planner) -> None:
    """SEC-10: asked first, done, logged with the reason; the button of the other takes its place."""
    row, client = make_schedule(), login(planner)
    page = text_of(client.get(url("pause", row)))
    assert "Instances that it has started go on." in page and "not made up for" in page
    assert messages_of(client.post(url("pause", row), {"reason": "holidays"}, follow=True)) == [
        "The schedule is paused."
    ]
    row.refresh_from_db()
    assert (row.enabled, row.next_slot) == (False, None)
    shown = text_of(client.get(url("change", row)))
    assert url("resume", row) in shown and url("pause", row) not in shown and "None while it is paused." in shown
    assert client.post(url("pause", row), {}).status_code == 409, "the second of two clicks"
    client.post(url("resume", row), {})
    row.refresh_from_db()
    assert row.enabled and row.next_slot > timezone.now()
    texts = LogEntry.objects.order_by("pk").values_list("change_message", flat=True)
    assert list(texts) == ["Pause. Reason: holidays", "Resume."]


def test_run_now(login, planner) -> None:
    """One instance by the person, with the schedule's params, linked from the message."""
    row, client = make_schedule(params={"shop": 7}), login(planner)
    client.get(url("run_now", row))
    assert not WorkflowInstance.objects.exists(), "looking starts nothing"
    page = client.get(url("run_now", row))
    response = client.post(url("run_now", row), {"after": page.context["hidden"][0][1]}, follow=True)
    instance = WorkflowInstance.objects.get()
    assert instance.instance_id in messages_of(response)[0]
    assert (instance.workflow, instance.params, instance.created_by) == (AdminReport.options.name, {"shop": 7}, planner)
    assert (instance.schedule, instance.scheduled_for, instance.trigger) == (row, None, "admin")
    assert LogEntry.objects.get().change_message == "Run now."


def test_run_now_twice_by_a_double_click(login, planner) -> None:
    """The second POST of the same page starts nothing and says so; a page that is opened anew may."""
    row, client = make_schedule(), login(planner)
    sent = dict(client.get(url("run_now", row)).context["hidden"])
    assert client.post(url("run_now", row), sent).status_code == 302
    second = client.post(url("run_now", row), sent)
    assert second.status_code == 409 and "started by hand since" in text_of(second)
    assert WorkflowInstance.objects.count() == 1
    client.post(url("run_now", row), dict(client.get(url("run_now", row)).context["hidden"]))
    assert WorkflowInstance.objects.count() == 2


def test_what_cannot_run_says_why(login, planner) -> None:
    """409 with words: an unknown workflow, params that it refuses, a cron line that was broken past the form."""
    row, client = make_schedule(), login(planner)
    WorkflowSchedule.objects.filter(pk=row.pk).update(params={"other": 1})
    assert client.post(url("run_now", row), {}).status_code == 409
    WorkflowSchedule.objects.filter(pk=row.pk).update(cron="61 * * * *", enabled=False, params=None)
    answer = client.post(url("resume", row), {})
    assert answer.status_code == 409 and "61" in text_of(answer)
    WorkflowSchedule.objects.filter(pk=row.pk).update(workflow="gone")
    for answer in (client.get(url("run_now", row)), client.post(url("run_now", row), {})):
        assert answer.status_code == 409 and "does not contain the workflow" in text_of(answer)
    assert client.get(url("change", row)).status_code == 200
    assert not WorkflowInstance.objects.exists()


def test_delete(login, planner) -> None:
    """Says what it does; instances stay; an entry in the staff log."""
    row, client = make_schedule(), login(planner)
    instance = make_instance(schedule=row, scheduled_for=timezone.now())
    row.skipped.create(slot=timezone.now(), last=timezone.now(), reason="catch_up", at=timezone.now())
    page = text_of(client.get(url("delete", row)))
    assert "Instances that it has started stay" in page
    assert client.post(url("delete", row), {"post": "yes"}).status_code == 302
    instance.refresh_from_db()
    assert instance.schedule is None and not WorkflowSchedule.objects.exists() and not SkippedSlots.objects.exists()
    assert LogEntry.objects.get().action_flag == DELETION


def test_the_instance_tells_of_its_schedule(login, planner, viewer) -> None:
    """Name, slot and cron line; a link for who may see the schedule."""
    row = make_schedule()
    instance = make_instance(schedule=row, scheduled_for=timezone.now(), cron=NIGHT)
    address = reverse("admin:durableflow_workflowinstance_change", args=[instance.pk])
    page = text_of(login(planner).get(address))
    assert f'<a href="{url("change", row)}">night</a>' in page and NIGHT in page
    assert url("change", row) not in text_of(login(viewer).get(address))


# Who may what -----------------------------------------------------------------------------------------------------------

NAMES = ("list", "add", "change", "history", "delete", "pause", "resume", "run_now")
MAY = {
    (): (403, 403, 403, 403, 403, 403, 403, 403),
    ("view",): (200, 403, 200, 200, 403, 403, 403, 403),
    ("view", "add"): (200, 200, 200, 200, 403, 403, 403, 403),
    ("view", "change"): (200, 403, 200, 200, 403, 200, 200, 403),
    ("view", "delete"): (200, 403, 200, 200, 200, 403, 403, 403),
    ("view", "start"): (200, 403, 200, 200, 403, 403, 403, 200),
    ("start",): (403, 403, 403, 403, 403, 403, 403, 403),
}


@pytest.mark.parametrize("rights", MAY, ids=lambda rights: "+".join(rights) or "none")
def test_rights(login, user_factory, rights) -> None:
    """SEC-01, SEC-02: what each right opens; a POST without it changes nothing, whatever the page shows."""
    named = [f"durableflow.{r}_{'workflowinstance' if r == 'start' else 'workflowschedule'}" for r in rights]
    client = login(user_factory("somebody", is_staff=True, permissions=named))
    for name, status in zip(NAMES, MAY[rights], strict=True):
        row = make_schedule(name.replace("_", "-"), enabled=name != "resume")
        target = LIST if name == "list" else ADD if name == "add" else url(name, row)
        assert client.get(target).status_code == status, name
        before = list(WorkflowSchedule.objects.values())
        if status == 403 or name in ("pause", "resume", "run_now", "delete"):
            answer = client.post(target, typed(post="yes"))
            assert answer.status_code == (403 if status == 403 else 302), name
        if status == 403:
            assert list(WorkflowSchedule.objects.values()) == before and not WorkflowInstance.objects.exists()
        assert client.put(target).status_code in (403, 405) or name in ("list", "add", "change", "history", "delete")
    assert login(None).post(url("pause", row), {}).status_code == 302, "to the login"
    strict = login(user_factory("root", is_staff=True, is_superuser=True), csrf=True)
    assert {strict.post(url(name, row), {}).status_code for name in ("pause", "resume", "run_now")} == {403}
    assert strict.get(reverse(f"{BASE}pause", args=[0])).status_code == 404
