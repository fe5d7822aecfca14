"""Which instances a request over many means, and what became of those that were left out."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import NotFound

from durableflow.api.base import NO_INSTANCE, NO_WORKFLOW
from durableflow.core import registry
from durableflow.models import WorkflowInstance
from durableflow.models.creation import database
from durableflow.operations import BulkReport


def known(rows: Any, workflow: str) -> Any:
    """The rows of a workflow that the user sees. Raises NotFound where there are none and the workflow is not known either."""
    if registry.find(workflow) is None and not rows.exists():
        raise NotFound(NO_WORKFLOW)
    return rows


def with_ids(rows: Any, workflow: str, ids: list[str]) -> tuple[list[int], list[str]]:
    """The keys of the rows that have these ids, and the ids that none has. Where two names of one workflow have the same id,
    the row of the name that was asked for is meant, as in the address of one instance."""
    found: dict[str, int] = {}
    for pk, name, instance_id in rows.filter(instance_id__in=set(ids)).values_list("pk", "workflow", "instance_id"):
        if instance_id not in found or name == workflow:
            found[instance_id] = pk
    wanted = dict.fromkeys(ids)
    return [found[each] for each in wanted if each in found], [each for each in wanted if each not in found]


def by_key(keys: list[int]) -> Any:
    """The rows of these keys, for a verb over many."""
    return WorkflowInstance.objects.using(database()).filter(pk__in=keys)


def left_out(report: BulkReport, missing: list[str]) -> list[dict[str, Any]]:
    """The rows that a verb has left out, after the ids that nobody has, or that the user may not see."""
    found = [{"instance_id": each, "code": "not_found", "detail": NO_INSTANCE} for each in missing]
    for row, reason in report.skipped:
        detail = NO_INSTANCE if reason.code == "not_found" else str(reason)
        found.append({"instance_id": row.instance_id, "code": reason.code, "detail": detail})
    return found
