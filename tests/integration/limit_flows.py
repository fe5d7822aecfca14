"""A limited workflow that child processes of the tests run, and what those processes do."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.test import override_settings

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.models import WorkflowInstance


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
