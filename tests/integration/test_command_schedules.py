"""``manage.py durableflow schedules`` (reference 13; cases SCH-07, SCH-09)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from durableflow.core.statuses import Trigger, Via
from durableflow.models import SkippedSlots, WorkflowInstance, WorkflowSchedule
from tests.conftest import UserFactory
from tests.integration.command_flows import Wait
from tests.integration.conftest import StoppedClock
from tests.support.commands import called

pytestmark = pytest.mark.django_db


@pytest.fixture
def nightly(stopped_clock: StoppedClock) -> WorkflowSchedule:
    """At two in the night of Berlin; now is 14:00 there, on 2026-10-01."""
    row = WorkflowSchedule(workflow="cmd-wait", name="nightly", cron="0 2 * * *", timezone="Europe/Berlin", params=[1])
    row.save()
    return row


def refused(*arguments: str) -> str:
    done = called("schedules", *arguments)
    assert (done.status, done.out) == (2, ""), done
    return done.err


def test_the_next_runs(nightly: WorkflowSchedule) -> None:
    """In the schedule's own zone for people, in UTC for programs."""
    said = called("schedules").out.splitlines()
    assert " ".join(said[0].split()) == "WORKFLOW NAME CRON STATE NEXT"
    assert " ".join(said[1].split()) == "cmd-wait nightly 0 2 * * * (Europe/Berlin) on 2026-10-02 02:00 CEST"
    assert said[2] == "     then 2026-10-03 02:00 CEST, 2026-10-04 02:00 CEST"
    (found,) = called("schedules", "list", "cmd-wait", "--next", "2", "--json").document
    assert found["upcoming"] == ["2026-10-02T00:00:00Z", "2026-10-03T00:00:00Z"]
    assert (found["enabled"], found["declared"], found["params"], found["skipped"]) == (True, False, [1], None)
    assert called("schedules", "list", "cmd-order").out.startswith("No schedules.")


def test_what_was_skipped_and_what_cannot_fire(nightly: WorkflowSchedule) -> None:
    """SCH-07: a skip that nobody sees is a lost report."""
    slot = datetime(2026, 10, 1, 0, 0, tzinfo=UTC)
    skip: dict[str, Any] = {"slot": slot, "last": slot, "number": 1200, "reason": "overlap", "at": slot}
    SkippedSlots.objects.create(schedule=nightly, detail="cmd-wait/x runs", **skip)
    assert "skipped 1,200, last 2026-10-01 02:00 CEST: overlap, cmd-wait/x runs" in called("schedules").out
    WorkflowSchedule.objects.update(problem="no such zone: \x1b[2J", timezone="Nowhere/At_all", look_at=None)
    said = called("schedules").out
    assert "cannot fire" in said and r"no such zone: \x1b[2J" in said and "\x1b" not in said


def test_pause_and_resume(nightly: WorkflowSchedule, user_factory: UserFactory) -> None:
    """SCH-09; by whom is the verb's to check, twice is refused."""
    user_factory("eve"), user_factory("viewer", permissions=["durableflow.view_workflowschedule"])
    one = ("cmd-wait", "nightly")
    assert "has no schedule 'nightly'" in refused("pause", *one, "--user", "eve")
    assert "viewer may not pause the schedule" in refused("pause", *one, "--user", "viewer")
    assert called("schedules", "pause", *one).out == (
        "Paused the schedule cmd-wait: nightly: nothing is started by it until it is resumed.\n"
    )
    nightly.refresh_from_db()
    assert not nightly.enabled
    assert "paused" in called("schedules").out
    assert "is paused already" in refused("pause", "cmd-wait")
    resumed = called("schedules", "resume", "cmd-wait")
    assert resumed.out.endswith("It starts next at 2026-10-02 02:00 CEST.\n")
    assert "is enabled already" in refused("resume", *one)


def test_run_now(nightly: WorkflowSchedule, user_factory: UserFactory) -> None:
    """An instance of its params, through this door."""
    user_factory("viewer", permissions=["durableflow.view_workflowschedule"])
    assert "viewer may not start cmd-wait" in refused("run", "cmd-wait", "--user", "viewer")
    found = called("schedules", "run", "cmd-wait", "nightly", "--json").document
    row = Wait.get(found["instance_id"])
    assert (row.params, row.trigger, row.schedule, row.scheduled_for) == ([1], Trigger.CLI, nightly, None)
    assert row.history.get().via == Via.CLI
    assert WorkflowInstance.objects.count() == 1


def test_which_one(nightly: WorkflowSchedule) -> None:
    """Half a name is refused where it is not enough."""
    WorkflowSchedule(workflow="cmd-wait", name="daily", cron="0 12 * * *").save()
    assert refused("run", "cmd-wait") == "cmd-wait has several schedules, say which: daily, nightly."
    assert refused("run") == "Say which: schedules run WORKFLOW [NAME]."
    assert "The workflow 'cmd-order' has no schedule." in refused("pause", "cmd-order")
    assert WorkflowInstance.objects.count() == 0
