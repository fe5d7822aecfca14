"""``manage.py durableflow terminate``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from durableflow.core.statuses import Status
from durableflow.management.verbs.acting import ActingVerb
from durableflow.models import WorkflowInstance
from durableflow.operations import BulkReport, bulk_terminate


class Terminate(ActingVerb):
    """The instance ends now, for good; ``--rollback`` first undoes what it did."""

    name = "terminate"
    help = "End an instance, or many, now and for good."
    past = "Terminated"
    warning = "%s will end now, for good; their open waits are cancelled."

    @classmethod
    def add_own(cls, parser: CommandParser) -> None:
        """``--rollback``."""
        parser.add_argument("--rollback", action="store_true", help="First undo what it did, as its handlers say.")

    def one(self, row: WorkflowInstance, options: dict[str, Any], said: dict[str, Any]) -> None:
        """Terminate it."""
        row.terminate(rollback=options["rollback"], **said)

    def many(self, rows: Any, options: dict[str, Any], said: dict[str, Any]) -> BulkReport:
        """Terminate them."""
        return bulk_terminate(rows, rollback=options["rollback"], **said)

    def sentence(self, row: WorkflowInstance) -> str:
        """Of one that is undone first, that it has not ended yet."""
        if row.status == Status.ROLLING_BACK:
            return f"{row.label} ends when what it did is undone."
        return f"{self.past} {row.label}."
