"""``manage.py durableflow pause``."""

from __future__ import annotations

from typing import Any

from durableflow.core.statuses import Status
from durableflow.management.verbs.acting import ActingVerb
from durableflow.models import WorkflowInstance
from durableflow.operations import BulkReport, bulk_pause


class Pause(ActingVerb):
    """Step bodies that run are finished and kept; nothing new begins until it is resumed."""

    name = "pause"
    help = "Let an instance, or many, stand still until they are resumed."
    more = "Step bodies that run now are finished and kept first; timers and deadlines stand still."
    past = "Paused"
    warning = "%s will stand still until they are resumed."

    def one(self, row: WorkflowInstance, options: dict[str, Any], said: dict[str, Any]) -> None:
        """Pause it."""
        row.pause(**said)

    def many(self, rows: Any, options: dict[str, Any], said: dict[str, Any]) -> BulkReport:
        """Pause them."""
        return bulk_pause(rows, **said)

    def sentence(self, row: WorkflowInstance) -> str:
        """Of one whose body runs, that it is not paused yet."""
        if row.status == Status.WAITING_FOR_PAUSE:
            return f"{row.label} pauses as soon as the step that runs has ended."
        return f"{self.past} {row.label}."
