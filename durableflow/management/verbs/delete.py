"""``manage.py durableflow delete``."""

from __future__ import annotations

from typing import Any

from django.db.models import ProtectedError, RestrictedError

from durableflow.management.errors import wrong
from durableflow.management.verbs.acting import ActingVerb
from durableflow.models import WorkflowInstance
from durableflow.models.removal import delete_instance
from durableflow.operations import BulkReport, bulk_delete
from durableflow.operations.deletion import protection


class Delete(ActingVerb):
    """The row goes with all that belongs to it; its id is free again."""

    name = "delete"
    help = "Delete an instance, or many, with steps, waits, events and history."
    more = "Whatever its status; nothing is rolled back. It cannot be undone."
    past = "Deleted"
    warning = "%s will be deleted with their steps, waits, events and history. It cannot be undone."

    def one(self, row: WorkflowInstance, options: dict[str, Any], said: dict[str, Any]) -> None:
        """Delete it."""
        try:
            delete_instance(row, **said)
        except (ProtectedError, RestrictedError) as error:
            raise wrong(protection(row, error)) from error

    def many(self, rows: Any, options: dict[str, Any], said: dict[str, Any]) -> BulkReport:
        """Delete them."""
        return bulk_delete(rows, **said)

    def answer(self, row: WorkflowInstance) -> dict[str, Any]:
        """Which one is no more."""
        return {"workflow": row.workflow, "instance_id": row.instance_id, "deleted": True}

    def sentence(self, row: WorkflowInstance) -> str:
        """Which one is no more."""
        return f"{self.past} {row.label}."
