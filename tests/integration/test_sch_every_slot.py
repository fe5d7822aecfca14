"""Whatever happens, each slot is started once, or recorded as skipped once (cases SCH-03, SCH-04, SCH-07)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from django.db import transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from durableflow import Schedule
from durableflow.core import clock, registry
from durableflow.core.cron import slots_between
from durableflow.models import SkippedSlots, WorkflowInstance, WorkflowSchedule
from tests.integration.sch_flows import declared, fire

BEGIN = datetime(2026, 10, 24, 20, 0, 7, 5, UTC)
"""The evening before the clock is set back in Berlin."""
LINES = ("*/7 * * * *", "0 * * * *", "30 2,3 * * *", "15 1-4 * * *")
Action = Literal["look", "end", "by hand"]

passes = st.one_of(
    st.timedeltas(timedelta(hours=-1), timedelta(minutes=8)), st.timedeltas(timedelta(minutes=10), timedelta(hours=4))
)
what: st.SearchStrategy[Action] = st.sampled_from(["look", "look", "look", "end", "by hand"])


@pytest.mark.django_db
@settings(deadline=None, max_examples=60)
@given(
    cron=st.sampled_from(LINES),
    catch_up=st.sampled_from(["latest", "none", 2]),
    overlap=st.sampled_from(["allow", "skip", "buffer_one"]),
    happens=st.lists(st.tuples(passes, what), min_size=4, max_size=12),
)
def test_each_slot_is_accounted_for(
    cron: str, catch_up: Any, overlap: Any, happens: list[tuple[timedelta, Action]]
) -> None:
    """Looks at any time, a clock that goes forward and back, instances that end or are started by hand; a night with a change of
    the clock."""
    with registry.isolated(), clock.stop(BEGIN), transaction.atomic():
        flow, row = declared(Schedule(cron, timezone="Europe/Berlin", catch_up=catch_up, overlap=overlap))
        latest = BEGIN
        for length, action in [*happens, (timedelta(0), "look")]:
            clock.move(max(BEGIN, clock.host_now() + length))
            if action == "look":
                fire()
                latest = max(latest, clock.host_now())
            elif action == "end":
                for running in flow.instances().active():
                    running.terminate()
            else:
                flow.create()
        row.refresh_from_db()
        accounted = [*_started(row), *_skipped(row), *([row.buffered_slot] if row.buffered_slot else [])]
        assert sorted(accounted) == slots_between(cron, "Europe/Berlin", BEGIN, latest, limit=10_000)
        assert row.next_slot is not None and row.next_slot > latest
        assert row.problem == ""
        transaction.set_rollback(True)


def _started(row: WorkflowSchedule) -> list[datetime]:
    found = WorkflowInstance.objects.filter(schedule=row).values_list("scheduled_for", flat=True)
    return [slot for slot in found if slot is not None]


def _skipped(row: WorkflowSchedule) -> list[datetime]:
    slots: list[datetime] = []
    for skip in SkippedSlots.objects.filter(schedule=row):
        run = slots_between(row.cron, row.timezone, skip.slot - timedelta(seconds=1), skip.last, limit=10_000)
        assert len(run) == skip.number
        slots += run
    return slots
