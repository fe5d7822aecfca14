"""Branches whose bodies take random times, and the workers that run and lose them (ENG-06)."""

from __future__ import annotations

import random
import time
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.test import override_settings

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import die
from tests.support.ledger import Ledger

BRANCHES = ("A", "B", "C")


class Branches(Workflow[dict[str, Any], dict[str, list[str]]]):
    """Three branches of two steps, one with a sleep between them, one with a retry; the second step is given the value of the
    first. ``kill``: in whose first attempt the process dies."""

    class Meta:
        name = "eng-branches"

    def run(self, event: WorkflowEvent[dict[str, Any]], step: Step) -> dict[str, list[str]]:
        names = list(BRANCHES)
        found = step.gather("abc", *[self.branch(event.params, step, name) for name in names])
        return dict(zip(names, found, strict=True))

    def branch(self, params: Any, step: Step, name: str) -> Any:
        def run() -> list[str]:
            first = step.do("first", self.body, params, name, "", retries=Retries(limit=5, delay=0.01))
            if name == "B":
                step.sleep("nap", 0.01)
            return [first, step.do("second", self.body, params, f"{name}2", first)]

        return run

    def body(self, params: Any, name: str, given: str) -> str:
        context = get_step_context()
        Ledger(params["ledger"]).add(f"{context.instance_id} {name} {context.attempt}")
        time.sleep(random.Random().uniform(0, 0.02))  # the scenario: whoever is ready first
        if params["kill"] == name and context.attempt == 1:
            die()
        if name == "C" and context.attempt == 1:
            raise OSError("not now")
        return f"{given}/{name}:{uuid4()}"


def work() -> None:
    """Say that we are ready, and drain until nothing is left or we are killed."""
    WorkflowInstance.objects.count()
    print("ready", flush=True)  # noqa: T201
    end = time.monotonic() + 120
    with override_settings(DURABLEFLOW={**settings.DURABLEFLOW, "LEASE": 1.5}):
        while WorkflowInstance.objects.active().exists() and time.monotonic() < end:
            drain(0.2)
