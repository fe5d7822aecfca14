"""A workflow that tests schedule by rows: nothing here has ``Meta.schedules``, since every harness of the suite would fire it."""

from __future__ import annotations

from typing import Any

from durableflow import Step, Workflow, WorkflowEvent


class ScheduledNote(Workflow[Any, Any]):
    """Returns its slot."""

    class Meta:
        name = "scheduled-note"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return step.do("note", lambda: [event.scheduled_for, event.cron])
