"""Schedules in real clusters (cases SCH-04, SCH-08)."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from durableflow.core import clock
from durableflow.models import WorkflowInstance, WorkflowSchedule
from tests.support.cluster import cluster, until
from tests.workflows.schedule_samples import ScheduledNote

pytestmark = pytest.mark.django_db(transaction=True)
SLOTS = 200


def test_two_clusters_and_two_hundred_slots(tmp_path: Path) -> None:
    """SCH-04: both tick in the same moment; 200 instances, all executed, and nobody complains. The rows of ``Meta.schedules`` are
    there once."""
    logs = [tmp_path / "one", tmp_path / "two"]
    with ExitStack() as stack:
        for log in logs:
            stack.enter_context(cluster(log))
        slot = clock.read("default").replace(second=0, microsecond=0)
        rows = [
            WorkflowSchedule(
                workflow="scheduled-note",
                name=f"n{n}",
                cron=f"{slot.minute} {slot.hour} * * *",
                next_slot=slot,
                look_at=slot,
            )
            for n in range(SLOTS)
        ]
        WorkflowSchedule.objects.bulk_create(rows)
        done = ScheduledNote.instances().filter(status=WorkflowInstance.Status.COMPLETE)
        until(lambda: done.count() >= SLOTS, "all slots are executed")
        assert WorkflowSchedule.objects.filter(declared=True, workflow="nightly-export").count() == 1
    found = list(ScheduledNote.instances())
    assert len(found) == SLOTS == len({row.schedule_id for row in found})
    assert {row.output[0] for row in found} == {slot}
    assert not WorkflowSchedule.objects.exclude(problem="").exists()
    for log in logs:
        assert "Traceback" not in log.read_text()
