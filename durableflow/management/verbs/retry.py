"""``manage.py durableflow retry``."""

from __future__ import annotations

from typing import Any

from durableflow.management.verbs.acting import ActingVerb
from durableflow.models import WorkflowInstance
from durableflow.operations import BulkReport, bulk_retry


class Retry(ActingVerb):
    """The step that ended an instance runs again; everything else and all idempotency keys are kept."""

    name = "retry"
    help = "Run the failed step of an errored instance, or of many, again."
    more = "Finished steps are kept, and so are all idempotency keys."
    past = "Retried"
    warning = "The failed steps of %s will run again; finished steps and all idempotency keys are kept."

    def one(self, row: WorkflowInstance, options: dict[str, Any], said: dict[str, Any]) -> None:
        """Retry it."""
        row.retry(**said)

    def many(self, rows: Any, options: dict[str, Any], said: dict[str, Any]) -> BulkReport:
        """Retry them."""
        return bulk_retry(rows, **said)
