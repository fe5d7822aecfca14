"""Short workflows of which tests start many."""

from __future__ import annotations

from typing import TypedDict

from durableflow import Step, Workflow, WorkflowEvent
from tests.support.ledger import Ledger


class Told(TypedDict):
    """``log``: the ledger; ``name``: what it says."""

    log: str
    name: str


class Sleeping(TypedDict):
    """``until``: seconds since the epoch; ``log``: the ledger."""

    until: float
    log: str


class ManyLate(Workflow[Told, None]):
    """One step."""

    def run(self, event: WorkflowEvent[Told], step: Step) -> None:
        step.do("tell", Ledger(event.params["log"]).add, f"late {event.params['name']}")


class ManySleepers(Workflow[Sleeping, None]):
    """A long sleep, and one step."""

    def run(self, event: WorkflowEvent[Sleeping], step: Step) -> None:
        step.sleep_until("nine", event.params["until"])
        step.do("tell", Ledger(event.params["log"]).add, f"woke {step.instance_id}")
