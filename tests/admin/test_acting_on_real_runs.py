"""Verbs of the admin on instances that really run: what the pages promise is what happens."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from tests.admin.acting import verb_url
from tests.admin.flows import CALLS, AdminOrder
from tests.admin.rows import S

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _fresh_calls() -> None:
    CALLS.made.clear()
    CALLS.failing.clear()


@pytest.fixture
def client(login, superuser: User) -> Client:
    """Somebody who may do everything."""
    return login(superuser)


def post(client: Client, verb: str, run: WorkflowInstance, *more: object, **said: object) -> None:
    """Press a button of the page as it is now."""
    assert client.post(verb_url(verb, run, *more), {"run": run.run_number, **said}).status_code == 302
    run.refresh_from_db()


def test_a_result_by_hand_goes_on_as_if_the_body_had_returned_it(client: Client, workflows: Harness) -> None:
    """Design 9: the body does not run again, and what comes after gets the value."""
    CALLS.failing.add("charge")
    run = workflows.run(AdminOrder)
    assert run.status == S.ERRORED
    post(client, "complete_step", run, run.steps.get(name="charge").pk, output='"by phone"')
    workflows.run_due()
    workflows.advance("10 minutes")
    assert (run.status, run.output) == (S.COMPLETE, "pack-2 paid by by phone")
    assert CALLS.made == ["charge", "pack"]


def test_a_restart_from_a_step_keeps_what_was_before(client: Client, workflows: Harness) -> None:
    """LIF-08: the charge is not made again; a full restart makes it again, as its page warns."""
    run = workflows.run(AdminOrder)
    post(client, "restart_from", run, step=run.steps.get(name="pack").pk)
    workflows.run_due()
    assert CALLS.made == ["charge", "pack", "pack"]
    post(client, "restart", run)
    workflows.run_due()
    assert CALLS.made == ["charge", "pack", "pack", "charge", "pack"]
    assert (run.run_number, run.status) == (3, S.WAITING)


def test_a_pause_holds_the_clock(client: Client, workflows: Harness) -> None:
    """TIM-09: eight of ten minutes are left, an hour later too."""
    run = workflows.run(AdminOrder)
    workflows.advance("2 minutes")
    post(client, "pause", run)
    workflows.advance("1 hour")
    assert run.status == S.PAUSED
    post(client, "resume", run)
    workflows.advance("7 minutes")
    assert run.status == S.WAITING
    workflows.advance("2 minutes")
    assert run.status == S.COMPLETE


def test_a_deleted_instance_leaves_its_id_free(client: Client, workflows: Harness) -> None:
    """LIF-13: a new one of the same id runs at once."""
    run = workflows.run(AdminOrder, instance_id="again")
    assert client.post(verb_url("delete", run), {}).status_code == 302
    assert not WorkflowInstance.objects.exists()
    AdminOrder.create(instance_id="again")
    workflows.run_due()
    assert CALLS.made == ["charge", "pack"] * 2
