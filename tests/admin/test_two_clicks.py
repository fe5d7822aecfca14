"""The same button pressed twice at once, on both databases, with real transactions: it is done once (LIF-06, SEC-10)."""

from __future__ import annotations

from functools import partial

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from durableflow.admin.verbs import Verb
from durableflow.models import HistoryEntry, WorkflowInstance
from tests.admin.acting import text_of, verb_url
from tests.admin.rows import S, failed_third, make_failed, make_instance
from tests.admin.test_schedules import make_schedule
from tests.admin.test_two_deciders import at_once

pytestmark = pytest.mark.django_db(transaction=True)
ROUNDS = 8


def twice(login, user, address: str, said: dict[str, object]) -> list[int]:
    """What two POSTs at once are answered, sorted."""
    clients = [login(user), login(user)]
    answers = at_once(*(partial(client.post, address, said) for client in clients))
    return sorted(answer.status_code for answer in answers)


@pytest.mark.parametrize(
    ("verb", "status"),
    [
        ("retry", S.ERRORED),
        ("pause", S.WAITING),
        ("resume", S.PAUSED),
        ("terminate", S.PAUSED),
        ("restart", S.COMPLETE),
    ],
)
def test_a_verb_is_done_once(login, superuser, verb, status) -> None:
    """The other click gets 409, and leaves no trace."""
    for _ in range(ROUNDS):
        instance = make_failed() if status == S.ERRORED else make_instance(status=status)
        before = HistoryEntry.objects.filter(instance=instance).count()
        assert twice(login, superuser, verb_url(verb, instance), {"run": 1}) == [302, 409]
        assert LogEntry.objects.filter(object_id=str(instance.pk)).count() == 1
        assert HistoryEntry.objects.filter(instance=instance).count() == before + 1
    assert set(WorkflowInstance.objects.values_list("run_number", flat=True)) == {2 if verb == "restart" else 1}


def test_a_step_gets_one_result(login, superuser) -> None:
    """And is restarted from once."""
    for _ in range(ROUNDS):
        instance, made = failed_third()
        address = verb_url("complete_step", instance, made[2].pk)
        assert twice(login, superuser, address, {"run": 1, "output": "1"}) == [302, 409]
        other, steps = failed_third()
        assert twice(login, superuser, verb_url("restart_from", other), {"run": 1, "step": steps[1].pk}) == [302, 409]
        other.refresh_from_db()
        assert other.run_number == 2


def test_an_instance_is_deleted_once(login, superuser) -> None:
    """The other click finds nothing."""
    for _ in range(ROUNDS):
        instance = make_failed()
        assert twice(login, superuser, verb_url("delete", instance), {}) == [302, 404]
        assert LogEntry.objects.filter(object_id=str(instance.pk)).count() == 1
    assert not WorkflowInstance.objects.exists()


def test_a_schedule_runs_once(login, superuser) -> None:
    """One instance by two clicks; pause and resume likewise."""
    for number in range(ROUNDS):
        row = make_schedule(f"night-{number}")
        run, pause = (
            reverse(f"admin:durableflow_workflowschedule_{name}", args=[row.pk]) for name in ("run_now", "pause")
        )
        assert twice(login, superuser, run, {"after": "0"}) == [302, 409]
        assert WorkflowInstance.objects.filter(schedule=row).count() == 1
        assert twice(login, superuser, pause, {}) == [302, 409]


def test_a_restart_after_the_last_look(login, superuser, monkeypatch) -> None:
    """LIF-06: somebody restarts it, and a worker takes it, between the look at the run and the verb's lock."""
    instance, apply = make_failed(), Verb.apply

    def late(verb, row, **said) -> None:
        WorkflowInstance.objects.get(pk=row.pk).restart()
        WorkflowInstance.objects.filter(pk=row.pk).update(status=S.WAITING)
        apply(verb, row, **said)

    monkeypatch.setattr(Verb, "apply", late)
    answer = login(superuser).post(verb_url("restart", instance), {"run": "1"})
    assert answer.status_code == 409 and "restarted since this page was shown" in text_of(answer)
    instance.refresh_from_db()
    assert (instance.run_number, instance.status) == (2, S.WAITING)
