"""Schedules in the testing kit: each slot at its moment, by ``advance`` alone (design 10, 12; api.md; scenarios C, E3)."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from durableflow import Schedule, Step, Workflow, WorkflowEvent
from durableflow.models import SkippedSlots, WorkflowInstance, WorkflowSchedule
from durableflow.testing import harness
from tests.integration.sch_flows import define

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status
MONDAY = datetime(2026, 11, 30, 6, 59, tzinfo=UTC)


def started(flow: Any) -> list[str]:
    """The slots of its instances, and when each was created, where that is another moment."""
    rows = flow.instances().filter(trigger="schedule").order_by("id")
    return [
        f"{row.scheduled_for:%d %H:%M}" + ("" if row.created == row.scheduled_for else f" at {row.created:%d %H:%M:%S}")
        for row in rows
    ]


def test_slots_fire_by_advance_alone() -> None:
    """Design 12: at their moments, in time order with all else; not by run() or run_due()."""
    with harness(now=MONDAY) as kit:
        flow = define("*/15 * * * *")
        kit.run(flow)
        kit.run_due()
        assert WorkflowSchedule.objects.filter(workflow="sch-flow").count() == 0
        kit.advance("30 minutes")
        assert started(flow) == ["30 07:00", "30 07:15"]
        assert {row.status for row in flow.instances()} == {S.COMPLETE}
        kit.advance(timedelta(seconds=59))
        assert flow.instances().count() == 3
        kit.advance(timedelta(seconds=1))
        assert started(flow)[2:] == ["30 07:30"]


def test_a_slot_that_waits_starts_when_the_other_ends() -> None:
    """SCH-07: buffer_one; the kit looks whenever something has run, not each second of a month."""
    with harness(now=MONDAY) as kit:
        flow = define(Schedule("0 7 * * *", overlap="buffer_one", params={"waits": True}))
        kit.advance("1 minute")
        (first,) = flow.instances()
        kit.advance("30 days")
        assert flow.instances().count() == 1
        assert [skip.number for skip in SkippedSlots.objects.filter(schedule=first.schedule)] == [29]
        first.send_event("end")
        kit.run_due()
        kit.advance("1 second")
        second = flow.instances().get(status=S.WAITING)
        assert second.scheduled_for == MONDAY + timedelta(days=1, minutes=1)


def test_each_harness_begins_anew() -> None:
    """Design 10: what one harness has declared is gone with its transaction, or was changed by the test."""
    for _ in range(2):
        with harness(now=MONDAY) as kit:
            flow = define("0 7 * * *")
            kit.advance("1 minute")
            assert started(flow) == ["30 07:00"]
            WorkflowSchedule._base_manager.all().delete()
            WorkflowInstance.objects.all().delete()


class Slept(Workflow[Any, Any]):
    """Takes five minutes."""

    class Meta:
        name = "sch-slept"

    def run(self, event: WorkflowEvent[Any], step: Step) -> None:
        step.sleep("five minutes", "5 minutes")


@pytest.mark.parametrize(
    ("overlap", "slots", "skips"),
    [
        ("allow", ["07:00", "07:01", "07:02", "07:03", "07:04", "07:05", "07:06"], {}),
        ("skip", ["07:04", "07:09"], {"overlap": 9}),
        ("buffer_one", ["07:00", "07:04"], {"buffer_full": 8}),
    ],
)
def test_a_run_of_five_minutes_each_minute(overlap: Any, slots: list[str], skips: dict[str, int]) -> None:
    """SCH-07: the first run started by hand, at 06:59."""
    with harness(now=MONDAY) as kit:
        flow: Any = type(
            "Scheduled", (Slept,), {"Meta": type("Meta", (), {"schedules": [Schedule("* * * * *", overlap=overlap)]})}
        )
        kit.run(flow)
        kit.advance("7 minutes" if overlap == "allow" else "11 minutes")
        rows = flow.instances().filter(trigger="schedule").order_by("id")
        assert [f"{row.scheduled_for:%H:%M}" for row in rows] == slots
        found: Counter[str] = Counter()
        for skip in SkippedSlots.objects.filter(schedule__workflow=flow.workflow_name()):
            found[skip.reason] += skip.number
        assert found == skips


def test_scenario_e3_three_lines_on_one_workflow() -> None:
    """Reference, scenario E3: each firing its own instance, with its own cron line."""
    lines = ["0 * * * *", "*/15 * * * *", "0 9 * * MON-FRI"]
    with harness(now=MONDAY - timedelta(days=3)) as kit:  # a Friday
        flow = define(*lines)
        kit.advance("1 day")
        found = Counter(row.output["cron"] for row in flow.instances())
        assert found == {lines[0]: 24, lines[1]: 96, lines[2]: 1}
        assert flow.instances().filter(scheduled_for=datetime(2026, 11, 27, 9, tzinfo=UTC)).count() == 3
        kit.advance("12 hours")
        found = Counter(row.output["cron"] for row in flow.instances())
        assert found == {lines[0]: 36, lines[1]: 144, lines[2]: 1}


def test_scenario_c_a_nightly_backup() -> None:
    """Reference, scenario C: one instance with trigger and event of the schedule; the next firing is the next midnight UTC."""
    with harness(now=MONDAY) as kit:
        flow = define("0 0 * * *")
        kit.advance("1 day")
        (row,) = flow.instances()
        midnight = datetime(2026, 12, 1, tzinfo=UTC)
        assert (row.trigger, row.output["cron"], row.output["slot"]) == ("schedule", "0 0 * * *", midnight)
        assert row.schedule is not None
        assert row.schedule.upcoming(1) == [midnight + timedelta(days=1)]
