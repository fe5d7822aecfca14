"""Pause, restart, restart from a step: the pages, and what they do."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from durableflow.core.statuses import PendingStatus, StepKind, StepStatus
from durableflow.models import WorkflowInstance
from tests.admin.acting import messages_of, page_of, text_of, verb_url
from tests.admin.rows import (
    S,
    failed_third,
    make_blocked,
    make_failed,
    make_instance,
    make_step,
    make_wait,
    send,
    snapshot,
)

pytestmark = pytest.mark.django_db
PAGE = "admin:durableflow_workflowinstance_change"


# Pause ------------------------------------------------------------------------------------------------------------------


def test_pause_of_one_that_waits(login, operator) -> None:
    """SEC-10, TIM-09: what stands still is named with its time left; afterwards the page says who, why and since when."""
    instance = make_instance()
    now = timezone.now()
    make_step(
        instance,
        "rest",
        kind=StepKind.SLEEP,
        status=StepStatus.PENDING,
        finished=None,
        wake_at=now + timedelta(minutes=8, seconds=30),
    )
    make_step(
        instance,
        "new year",
        kind=StepKind.SLEEP_UNTIL,
        status=StepStatus.PENDING,
        finished=None,
        wake_at=now + timedelta(days=9),
    )
    client, address = login(operator), verb_url("pause", instance)
    page = text_of(client.get(address))
    for part in (
        "It is paused at once.",
        "rest-1 has 8 min",
        "new year-1 keeps its date.",
        "answer their wait after Resume",
    ):
        assert part in page
    response = client.post(address, {"reason": "the shop is closed"}, follow=True)
    assert messages_of(response) == ["The instance is paused."]
    page = text_of(response)
    for part in (
        "Since",
        "operator",
        "(Admin)",
        "the shop is closed",
        "clock stands still",
        "8 min",
        "keeps its date:",
    ):
        assert part in page
    assert verb_url("resume", instance) in page and verb_url("pause", instance) not in page
    instance.refresh_from_db()
    assert instance.status == S.PAUSED
    assert LogEntry.objects.get().change_message == "Pause. Reason: the shop is closed"


def test_time_left_does_not_run_while_it_is_paused(login, viewer) -> None:
    """TIM-09: paused an hour ago with eight minutes left, it has eight minutes left."""
    now = timezone.now()
    instance = make_instance(
        status=S.PAUSED, paused_at=now - timedelta(hours=1), deadline_at=now - timedelta(minutes=30)
    )
    make_step(
        instance,
        "rest",
        kind=StepKind.SLEEP,
        status=StepStatus.PENDING,
        finished=None,
        wake_at=now - timedelta(minutes=52),
    )
    page = page_of(login(viewer), instance)
    assert "<td>8 min 0 s</td>" in page
    assert "The whole instance" in page and "<td>30 min 0 s</td>" in page
    assert ">Deadline<" not in page, "the old one is past"
    WorkflowInstance.objects.update(status=S.WAITING, paused_at=None)
    assert ">Deadline<" in page_of(login(viewer), instance)


def test_pause_of_one_that_runs(login, operator) -> None:
    """LIF-04: the bodies that run are named; until they have ended the request can be withdrawn."""
    instance = make_instance(status=S.RUNNING, wake_at=timezone.now() + timedelta(minutes=1), lease_token=7)
    make_step(instance, "slow", status=StepStatus.STARTED, finished=None)
    client = login(operator)
    assert "Running now: slow-1" in text_of(client.get(verb_url("pause", instance)))
    response = client.post(verb_url("pause", instance), {}, follow=True)
    assert messages_of(response) == ["The instance is paused as soon as the step that runs now has ended."]
    page = text_of(response)
    assert "Pausing" in page and "Still running" in page and "slow-1" in page
    assert "The request to pause is withdrawn." in text_of(client.get(verb_url("resume", instance)))
    client.post(verb_url("resume", instance), {})
    instance.refresh_from_db()
    assert instance.status == S.RUNNING


def test_blocked_keeps_its_own_words(login, viewer) -> None:
    """Nobody has paused it."""
    page = page_of(login(viewer), make_blocked(paused_at=timezone.now()))
    assert "Blocked, a person is needed" in page and "the program" not in page


def test_children_are_not_paused_and_it_says_so(login, operator) -> None:
    """LIF-05: pausing a parent pauses nobody else."""
    parent = make_instance()
    make_step(parent, "child", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None)
    assert "child workflows are not paused" in text_of(login(operator).get(verb_url("pause", parent)))


# Restart ----------------------------------------------------------------------------------------------------------------


def test_restart_says_what_is_dropped_and_that_it_may_charge_again(login, operator) -> None:
    """LIF-07, LIF-08: by name and number; new keys and unread events as warnings; then the next run begins."""
    instance = make_failed()
    wait = make_wait(instance, "approval")
    send(instance, "payment_settled", {})
    send(instance, "payment_settled", {})
    client, address = login(operator), verb_url("restart", instance)
    page = text_of(client.get(address))
    for part in (
        "2 finished steps count no more",
        "load cart-1, charge card-1",
        "may charge, book or send again",
        "Cancelled waits: approval",
        "2 events that nobody has read are dropped: payment_settled",
        "What run 1 did stays readable",
    ):
        assert part in page, part
    response = client.post(address, {"run": "1", "reason": "new prices"}, follow=True)
    assert messages_of(response) == ["A new run has begun."]
    instance.refresh_from_db()
    wait.refresh_from_db()
    assert (instance.status, instance.run_number, wait.status) == (S.QUEUED, 2, PendingStatus.CANCELLED)
    assert instance.history.get(type="workflow_queued").reason == "new prices"
    assert "No step has started in this run." in text_of(response)


@pytest.mark.parametrize(
    ("status", "kind", "warned"),
    [
        (S.RUNNING, None, True),
        (S.WAITING, StepKind.DO, True),
        (S.WAITING, StepKind.SLEEP, False),
        (S.WAITING, None, False),
    ],
)
def test_what_runs_or_was_tried_may_charge_again_too(login, operator, status, kind, warned) -> None:
    """LIF-08: a body that runs, or waits for its next try, has no result yet and may have had its effect."""
    instance = make_instance(status=status)
    if kind:
        make_step(instance, kind=kind, status=StepStatus.PENDING, finished=None)
    page = text_of(login(operator).get(verb_url("restart", instance)))
    assert ("may charge, book or send again" in page) is warned


def test_restart_twice_by_a_double_click(login, operator) -> None:
    """The second is refused while the new run is queued, and also when a worker has taken it up already."""
    instance, client = make_failed(), login(operator)
    address = verb_url("restart", instance)
    assert client.post(address, {"run": "1"}).status_code == 302
    assert client.post(address, {"run": "1"}).status_code == 409
    WorkflowInstance.objects.update(status=S.WAITING)
    answer = client.post(address, {"run": "1"})
    assert answer.status_code == 409 and "restarted since this page was shown" in text_of(answer)
    instance.refresh_from_db()
    assert instance.run_number == 2


def test_restart_tells_what_becomes_of_children(login, operator) -> None:
    """CHD-04: those that it waits for end, those that it has started go on."""
    parent = make_instance(instance_id="p")
    waited = make_step(parent, "waited", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None)
    started = make_step(parent, "started", kind=StepKind.CHILD)
    make_instance(instance_id="ends", parent_step=waited, on_parent_end="terminate")
    make_instance(instance_id="stays", parent_step=started, on_parent_end="leave")
    page = text_of(login(operator).get(verb_url("restart", parent)))
    assert "checkout/ends" in page.split("Child workflows that it waits for end")[1].split("</li>")[0]
    assert "checkout/stays" in page.split("go on by themselves")[1].split("</li>")[0]


def test_restart_from_a_step(login, operator) -> None:
    """LIF-08: a choice in the order of the run, a link at each row, then what is kept and what runs again."""
    instance, (_one, two, three) = failed_third()
    client, address = login(operator), verb_url("restart_from", instance)
    page = text_of(client.get(address))
    assert page.index("1. one-1") < page.index("2. two-1") < page.index("3. three-1")
    assert 'method="post" class="df-form"' not in page, "first the choice"
    assert f"{address}?step={two.pk}" in page_of(client, instance)
    response = client.get(address, {"step": two.pk})
    page = text_of(response)
    for part in (
        "1 step that started before it keeps its result: one-1",
        "2 steps are dropped",
        "two-1, three-1",
        "may charge, book or send again",
    ):
        assert part in page, part
    sent = dict([*response.context["hidden"], *response.context["more_hidden"]])
    assert client.post(address, {**sent, "reason": "r"}).status_code == 302
    instance.refresh_from_db()
    assert (instance.status, instance.run_number) == (S.QUEUED, 2)
    assert list(instance.steps.filter(run_number=2).values_list("name", flat=True)) == ["one"]
    entry = instance.history.get(type="workflow_queued")
    assert (entry.reason, entry.data["from_step"]) == ("r", "two-1")
    WorkflowInstance.objects.update(status=S.WAITING)
    assert client.post(address, sent).status_code == 409, "the second of two clicks"
    assert three.run_number == 1


@pytest.mark.parametrize("step", ["", "x", "9" * 30, "-1", "0"])
def test_restart_from_no_step(login, operator, step) -> None:
    """Words, not a 500; nothing changed."""
    instance, _made = failed_third()
    foreign = make_step(make_failed(), "foreign")
    before, client = snapshot(), login(operator)
    for wanted in (step, str(foreign.pk)):
        assert client.post(verb_url("restart_from", instance), {"step": wanted}).status_code == 409
        assert client.get(verb_url("restart_from", instance), {"step": wanted}).status_code == 409
    assert client.post(verb_url("restart_from", instance), {}).status_code == 400
    assert snapshot() == before


def test_children_of_a_join_are_no_place_to_restart_from(login, operator) -> None:
    """The join as a whole is; they are in no choice and have no link."""
    instance = make_instance(status=S.ERRORED)
    join = make_step(instance, "pages", kind=StepKind.CHILD, remaining=0)
    member = make_step(instance, "pages", scope="pages-1", kind=StepKind.CHILD)
    client, address = login(operator), verb_url("restart_from", instance)
    page = page_of(client, instance)
    assert f"{address}?step={join.pk}" in page and f"{address}?step={member.pk}" not in page
    assert f'value="{member.pk}"' not in text_of(client.get(address))
    answer = client.get(address, {"step": member.pk})
    assert answer.status_code == 400 and "have started together" not in text_of(answer)
    assert "one of the children" in text_of(answer)


def test_restart_from_a_step_keeps_what_a_kept_wait_will_read(login, operator) -> None:
    """Only events that no kept wait takes are dropped, and only those are told of."""
    instance = make_instance()
    make_wait(instance, "paid", kind=StepKind.WAIT_FOR_EVENT, types=["payment"])
    step = make_step(instance, "other")
    send(instance, "payment")
    send(instance, "noise")
    page = text_of(login(operator).get(verb_url("restart_from", instance), {"step": step.pk}))
    assert "1 event that nobody has read is dropped: noise" in page


# Races of the pages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["terminate", "pause", "restart_from"])
def test_it_ends_between_the_look_and_the_verb(login, operator, verb, monkeypatch) -> None:
    """LIF-02: what the page answers is what happened: 409 and the status, never a success that was none."""
    instance = make_instance()
    step = make_step(instance, "one")
    method = "restart" if verb == "restart_from" else verb
    real = getattr(WorkflowInstance, method)

    def late(self: WorkflowInstance, **said: object) -> None:
        end = S.ROLLING_BACK if method == "restart" else S.COMPLETE
        WorkflowInstance.objects.filter(pk=self.pk).update(status=end)
        real(self, **said)

    monkeypatch.setattr(WorkflowInstance, method, late)
    answer = login(operator).post(verb_url(verb, instance), {"step": step.pk})
    assert answer.status_code == 409
    instance.refresh_from_db()
    assert f"Its status is: {instance.get_status_display()}" in text_of(answer)
    assert not LogEntry.objects.exists() and not instance.history.exists()


def test_the_page_of_an_instance_asks_few_questions(login, superuser) -> None:
    """Design 11: as many statements with two hundred steps as with two."""
    counts = []
    for number in (2, 150):
        instance = make_instance(status=S.ERRORED)
        for step in range(number):
            make_step(instance, f"s{step}", status=StepStatus.FAILED)
        client = login(superuser)
        with CaptureQueriesContext(connection) as captured:
            client.get(reverse(PAGE, args=[instance.pk]))
        counts.append(len(captured))
    assert counts[0] == counts[1] < 40
