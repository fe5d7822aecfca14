"""Endpoint: a verb over many instances of one workflow (case SEC-13)."""

from __future__ import annotations

import time
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
from durableflow.api.instances import NamesakeView
from durableflow.core.statuses import Via

BUDGET: Final = 20.0
"""Seconds for which a request works: whoever serves it ends it after 30 as a rule, with an answer that says nothing."""
AT_ONCE: Final = 25
VERBS: Final[dict[str, Callable[..., operations.BulkReport]]] = {
    "retry": operations.bulk_retry,
    "pause": operations.bulk_pause,
    "resume": operations.bulk_resume,
    "terminate": operations.bulk_terminate,
    "restart": operations.bulk_restart,
}


class BulkView(NamesakeView):
    """Verbs over many. An instance may be called ``bulk`` as well."""

    @documented(
        operation_id="bulk_apply",
        tags=["instances"],
        request=BulkBody,
        responses=responses(200, BulkAnswer, 400, 404, 413),
    )
    def post(self, request: Request, workflow: str, instance_id: str) -> Response:
        """Apply ``action`` to up to 1,000 instances that the user sees, each in a transaction of its own.

        One that refuses is skipped and the reason told. After 20 seconds the request answers with what is done. Where something
        remains, ``after`` goes on. An ``Idempotency-Key`` is not read: a request that comes twice finds the instances changed and
        skips them, but restarts those that have ended meanwhile.
        """
        body = self.body(BulkBody)
        rows = known(self.visible_instances(workflow), workflow)
        after = body["after"]
        missing: list[str] = []
        if "filter" in body:
            keys, further = self.found(rows, body["filter"], after)
        else:
            keys, missing = with_ids(rows, workflow, body["instance_ids"])
            keys, further = sorted(key for key in keys if key > after), 0
        report, handled = apply(body["action"], keys, by=request.user, reason=body["reason"])
        answer = {
            "done": len(report.done),
            "skipped": left_out(report, [] if after else missing),
            "remaining": len(keys) - handled + further,
            "cursor": keys[handled - 1] if handled else None,
        }
        return Response(BulkAnswer(answer).data)

    def found(self, rows: Any, query: Any, after: int) -> tuple[list[int], int]:
        """The keys of the oldest rows after ``after`` that a filter finds, and how many more there are."""
        narrowed = InstanceFilter(data=query, queryset=rows, request=self.request)
        if not narrowed.is_valid():
            raise ValidationError({f"filter.{name}": list(texts) for name, texts in narrowed.errors.items()})
        matching = narrowed.qs.filter(pk__gt=after).order_by("pk")
        keys = list(matching.values_list("pk", flat=True)[:MAX_BULK])
        return keys, matching.filter(pk__gt=keys[-1]).count() if len(keys) == MAX_BULK else 0


def apply(action: str, keys: list[int], *, by: Any, reason: str) -> tuple[operations.BulkReport, int]:
    """Apply a verb to the rows of these keys, one after the other, for as long as a request may take; what came of it, and how
    many were looked at."""
    whole, end, handled = operations.BulkReport(), time.monotonic() + BUDGET, 0
    while handled < len(keys):
        some = keys[handled : handled + AT_ONCE]
        report = VERBS[action](by_key(some), by=by, reason=reason, via=Via.API)
        whole.done += report.done
        whole.skipped += report.skipped
        handled += len(some)
        if time.monotonic() >= end:
            break
    return whole, handled
