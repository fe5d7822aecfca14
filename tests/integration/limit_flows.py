"""A limited workflow that child processes of the tests run, and what those processes do."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.db.models import Count, OuterRef, Subquery
from django.db.models.functions import Coalesce
from django.test import override_settings

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.models import ConcurrencyLimit, WorkflowInstance


class Limited(Workflow[dict[str, Any], str]):
    """Three short steps with a nap between them."""

    class Meta:
        name = "limit-flow"
        max_concurrency = 3
        concurrency_key = staticmethod(lambda params: params["key"])
        step_retries = Retries(limit=50, delay=0)

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> str:
        for number in range(3):
            step.do(f"step {number}", time.sleep, 0.002)
            step.sleep(f"nap {number}", 0.01)
        return "done"


class Plain(Workflow[dict[str, Any], str]):
    """The same without a limit."""

    class Meta:
        name = "limit-plain"

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> str:
        return step.do("step", lambda: "done")


def drain_for_ever() -> None:
    """Say that we are ready, and drain until nothing is left or somebody kills us."""
    WorkflowInstance.objects.count()
    print("ready", flush=True)  # noqa: T201
    end = time.monotonic() + 90
    with override_settings(DURABLEFLOW={**settings.DURABLEFLOW, "LEASE": 1.5}):
        while WorkflowInstance.objects.active().exists() and time.monotonic() < end:
            drain(0.2)
            time.sleep(0.005)


def limited(maximum: int | None = 1, key: Any = None, body: Any = None) -> type[Workflow[Any, Any]]:
    meta = {"name": "limited", **({"max_concurrency": maximum} if maximum else {})}

    class Limited(Workflow[Any, Any]):
        Meta = type("Meta", (), {**meta, **({"concurrency_key": staticmethod(key)} if key else {})})

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if body is not None:
                return body(event, step)
            return step.do("a", lambda: "done")

    return Limited


def exact(maximum: int | None = None) -> None:
    """The promise: the count is that of the rows that hold a slot, and never above the maximum."""
    held = (
        WorkflowInstance.objects.filter(holds_slot=True, concurrency_key=OuterRef("key"))
        .values("concurrency_key")
        .annotate(n=Count("pk"))
        .values("n")
    )
    # One statement sees one moment.
    rows = list(ConcurrencyLimit.objects.annotate(held=Coalesce(Subquery(held), 0)).values_list("running", "held"))
    for running, count in rows:
        assert running == count
        assert maximum is None or running <= maximum


def shown(row: WorkflowInstance) -> tuple[str, str, bool, bool]:
    row.refresh_from_db()
    return row.status, row.hold, row.holds_slot, row.wake_at is None


S = WorkflowInstance.Status
PARKED = (S.QUEUED, "limit", False, True)
DUE = (S.QUEUED, "", False, False)
RUNNING = (S.RUNNING, "", True, False)
