"""The verbs of a schedule: pause, resume, run now, and what comes next (cases SCH-05, SCH-09, SEC-02, SEC-08)."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import PermissionDenied, ValidationError

from durableflow import InvalidTransition, Schedule
from durableflow.models import HistoryEntry, WorkflowSchedule
from tests.conftest import UserFactory
from tests.integration.sch_flows import NIGHT, added, at, declared, define, fire, slots

pytestmark = pytest.mark.django_db
MINUTELY = "* * * * *"


def test_pause_and_resume(
    stopped_clock: Any,
    caplog: pytest.LogCaptureFixture,
    user_factory: UserFactory,
    django_capture_on_commit_callbacks: Any,
) -> None:
    """Design 9: with right, state and audit; a second one changes nothing."""
    ada = user_factory("ada", permissions=["durableflow.change_workflowschedule"])
    _, row = declared(MINUTELY)
    with caplog.at_level(logging.INFO, "durableflow.audit"), django_capture_on_commit_callbacks(execute=True):
        row.pause(by=ada, reason="month's end", via="admin")
        with pytest.raises(InvalidTransition, match="paused already") as caught:
            row.pause(by=ada)
    assert caught.value.status == "paused"
    (said,) = [record.getMessage() for record in caplog.records if record.name == "durableflow.audit"]
    assert said == "Schedule sch-flow: schedule: pause by ada via admin. Reason: month's end"
    assert (row.enabled, row.upcoming()) == (False, [])
    stopped_clock.advance("1 hour")
    fire()
    row.resume(by=ada)
    with pytest.raises(InvalidTransition, match="enabled already"):
        row.resume()
    fire()
    assert slots(row) == []
    assert row.upcoming(1) == [at("1 13:01")]


def test_what_cannot_fire_can_be_paused() -> None:
    """SCH-05: but not resumed."""
    define()
    row = added(cron=MINUTELY)
    WorkflowSchedule.objects.filter(pk=row.pk).update(cron="61 * * * *", workflow="sch-gone")
    row.pause()
    with pytest.raises(ValidationError, match="bad minute"):
        row.resume()


def test_run_now(stopped_clock: Any, user_factory: UserFactory) -> None:
    """Design 9: its params, the door's trigger, the person; no slot; also while it is paused, and twice."""
    ada = user_factory("ada", permissions=["durableflow.start_workflowinstance"])
    flow, row = declared(Schedule(NIGHT, params={"a": 1}, overlap="skip"))
    row.pause()
    first = row.run_now(by=ada, reason="again", via="admin")
    row.run_now()
    assert flow.instances().count() == 2
    assert (first.schedule, first.scheduled_for, first.trigger, first.created_by) == (row, None, "admin", ada)
    assert (first.params, first.cron) == ({"a": 1}, NIGHT)
    entry = HistoryEntry.objects.get(instance=first)
    assert (entry.actor, entry.via, entry.reason) == (ada, "admin", "again")
    assert entry.data == {"trigger": "admin", "schedule": "schedule", "cron": NIGHT}


def test_run_now_of_an_unknown_workflow() -> None:
    """SEC-08."""
    define()
    row = added()
    WorkflowSchedule.objects.filter(pk=row.pk).update(workflow="os.system")
    with pytest.raises(ValueError, match=r"no workflow 'os\.system'"):
        row.run_now()


def test_rights(user_factory: UserFactory) -> None:
    """SEC-02: each verb asks for its own; nothing changes without."""
    viewer = user_factory("viewer", permissions=["durableflow.view_workflowschedule"])
    flow, row = declared(NIGHT)
    for verb in (row.pause, row.run_now):
        with pytest.raises(PermissionDenied):
            verb(by=viewer)
    row.pause()
    with pytest.raises(PermissionDenied):
        row.resume(by=viewer)
    assert (row.enabled, flow.instances().count()) == (False, 0)


def test_rows_that_are_gone() -> None:
    """Design 9: DoesNotExist."""
    define()
    row = added()
    WorkflowSchedule.objects.all().delete()
    for verb in (row.pause, row.resume, row.run_now, row.save):
        with pytest.raises(WorkflowSchedule.DoesNotExist):
            verb()


@pytest.mark.django_db(transaction=True)
def test_for_await() -> None:
    """Api.md: an a-twin each."""
    flow, row = declared(NIGHT)

    async def all_of_them() -> None:
        await row.apause()
        await row.aresume()
        await row.arun_now()

    async_to_sync(all_of_them)()
    assert (row.enabled, flow.instances().count()) == (True, 1)


def test_upcoming_over_the_change_of_the_clock(stopped_clock: Any) -> None:
    """SCH-01: as it will fire; without a query."""
    _, row = declared(Schedule("30 2 * * *", timezone="Europe/Berlin"))
    stopped_clock.advance("23 days")
    row.pause()
    row.resume()
    assert [slot.hour for slot in row.upcoming(3)] == [0, 1, 1]  # the 25th is the day on which the clock is set back
    assert row.upcoming(1)[0] - at("24 12:00") < timedelta(days=1)
