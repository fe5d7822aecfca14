"""Workflows with schedules for the tests of them: made in the test, so that no other test's clock fires them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from durableflow import Schedule, Step, Workflow, WorkflowEvent
from durableflow.engine import schedules
from durableflow.engine.declaring import declare
from durableflow.models import SkippedSlots, WorkflowInstance, WorkflowSchedule

NIGHT = "0 2 * * *"


def seen(event: WorkflowEvent[Any], step: Step) -> dict[str, Any]:
    """What the run was told of its slot, and when it really began; then it waits if it is asked to."""
    started = step.now()
    if event.params and event.params.get("waits"):
        step.wait_for_event("end", type="end", timeout=None)
    return {"slot": event.scheduled_for, "cron": event.cron, "created": event.timestamp, "started": started}


def define(*given: Schedule | str, name: str = "sch-flow", **meta: Any) -> Any:
    """A workflow with these schedules."""

    class Flow(Workflow[Any, Any]):
        Meta = type("Meta", (), {"name": name, "schedules": list(given), **meta})

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return seen(event, step)

    return Flow


def declared(*given: Schedule | str, **meta: Any) -> tuple[Any, WorkflowSchedule]:
    """The same, with the row of its first schedule."""
    flow = define(*given, **meta)
    declare("default")
    return flow, WorkflowSchedule.objects.get(workflow=flow.workflow_name(), name=flow.options.schedules[0].name)


def added(name: str = "mine", workflow: str = "sch-flow", cron: str = NIGHT, **fields: Any) -> WorkflowSchedule:
    """A row that staff have added."""
    return WorkflowSchedule.objects.create(workflow=workflow, name=name, cron=cron, **fields)


def fire() -> None:
    """One look of a broker or drain at the schedules."""
    schedules.look("default")


def at(text: str) -> datetime:
    """A moment of the days on which these tests play, which are UTC: ``"2 02:30"`` of October 2026."""
    return datetime.strptime(f"2026-10-{text}", "%Y-%m-%d %H:%M").replace(tzinfo=UTC)


def slots(row: WorkflowSchedule) -> list[str]:
    """The slots that have started an instance."""
    found = WorkflowInstance.objects.filter(schedule=row, scheduled_for__isnull=False).order_by("scheduled_for")
    return [short(instance.scheduled_for) for instance in found if instance.scheduled_for is not None]


def skips(row: WorkflowSchedule) -> list[tuple[str, str, str, int]]:
    """What is recorded of skipped slots: reason, first, last, number."""
    found = SkippedSlots.objects.filter(schedule=row).order_by("id")
    return [(skip.reason, short(skip.slot), short(skip.last), skip.number) for skip in found]


def short(moment: datetime) -> str:
    """``"2 02:30"``."""
    return f"{moment.astimezone(UTC):%-d %H:%M}"
