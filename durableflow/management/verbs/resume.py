"""``manage.py durableflow resume``."""

from __future__ import annotations

from typing import Any

from durableflow.management.verbs.acting import ActingVerb
from durableflow.models import WorkflowInstance
from durableflow.operations import BulkReport, bulk_resume


class Resume(ActingVerb):
    """Paused or blocked instances go on where they stopped, with what their timers had left."""

    name = "resume"
    help = "Let a paused or blocked instance, or many, go on."
    past = "Resumed"
    warning = "%s will go on where they stopped; those that are blocked try again what they were blocked in."

    def one(self, row: WorkflowInstance, options: dict[str, Any], said: dict[str, Any]) -> None:
        """Resume it."""
        row.resume(**said)

    def many(self, rows: Any, options: dict[str, Any], said: dict[str, Any]) -> BulkReport:
        """Resume them."""
        return bulk_resume(rows, **said)
