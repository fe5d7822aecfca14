"""Endpoint: a verb over many instances of one workflow (case SEC-13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from durableflow import operations
from durableflow.api.batch_answers import BulkAnswer
from durableflow.api.batch_bodies import MAX_BULK, BulkBody
from durableflow.api.choosing import by_key, known, left_out, with_ids
from durableflow.api.docs import documented, responses
from durableflow.api.filters import InstanceFilter
from durableflow.api.instances import InstanceView
from durableflow.core.statuses import Via

VERBS: Final[dict[str, Callable[..., operations.BulkReport]]] = {
    "retry": operations.bulk_retry,
    "pause": operations.bulk_pause,
    "resume": operations.bulk_resume,
    "terminate": operations.bulk_terminate,
    "restart": operations.bulk_restart,
}


class BulkView(InstanceView):
    """Verbs over many. An instance may be called ``bulk`` as well: GET and DELETE are its own (case SEC-14)."""

    @documented(exclude=True)
    def get(self, request: Request, workflow: str, instance_id: str) -> Response:
        """The instance of that name."""
        return super().get(request, workflow, instance_id)

    @documented(exclude=True)
    def delete(self, request: Request, workflow: str, instance_id: str) -> Response:
        """The instance of that name."""
        return super().delete(request, workflow, instance_id)

    @documented(
        operation_id="bulk_apply",
        tags=["instances"],
        request=BulkBody,
        responses=responses(200, BulkAnswer, 400, 404, 413),
    )
    def post(self, request: Request, workflow: str, instance_id: str) -> Response:
        """Apply ``action`` to up to 1,000 instances that the user sees, each in a transaction of its own.

        One that refuses is skipped and the reason told. ``after`` goes on where an answer with ``remaining`` has stopped.
        """
        body = self.body(BulkBody)
        rows = known(self.visible_instances(workflow), workflow)
        if "filter" in body:
            keys, remaining = self.found(rows, body["filter"], body["after"])
            missing: list[str] = []
        else:
            keys, missing = with_ids(rows, workflow, body["instance_ids"])
            remaining = 0
        report = VERBS[body["action"]](by_key(keys), by=request.user, reason=body["reason"], via=Via.API)
        skipped = left_out(report, missing)
        cursor = keys[-1] if "filter" in body and keys else None
        answer = {"done": len(report.done), "skipped": skipped, "remaining": remaining, "cursor": cursor}
        return Response(BulkAnswer(answer).data)

    def found(self, rows: Any, query: Any, after: int) -> tuple[list[int], int]:
        """The keys of the oldest rows after ``after`` that a filter finds, and how many more there are."""
        narrowed = InstanceFilter(data=query, queryset=rows, request=self.request)
        if not narrowed.is_valid():
            raise ValidationError({f"filter.{name}": list(texts) for name, texts in narrowed.errors.items()})
        matching = narrowed.qs.filter(pk__gt=after).order_by("pk")
        keys = list(matching.values_list("pk", flat=True)[:MAX_BULK])
        return keys, matching.filter(pk__gt=keys[-1]).count() if len(keys) == MAX_BULK else 0
