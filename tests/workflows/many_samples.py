"""Short workflows of which tests start many."""

from __future__ import annotations

import time
from pathlib import Path
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


class Busy(TypedDict):
    """``stop``: the file that ends it once it exists."""

    stop: str


class ManyLate(Workflow[Told, None]):
    """One step."""

    def run(self, event: WorkflowEvent[Told], step: Step) -> None:
        step.do("tell", Ledger(event.params["log"]).add, f"late {event.params['name']}")


class ManySleepers(Workflow[Sleeping, None]):
    """A long sleep, and one step."""

    def run(self, event: WorkflowEvent[Sleeping], step: Step) -> None:
        step.sleep_until("nine", event.params["until"])
        step.do("tell", Ledger(event.params["log"]).add, f"woke {step.instance_id}")


class ManyBusy(Workflow[Busy, None]):
    """A little work again and again, with a rest between."""

    def run(self, event: WorkflowEvent[Busy], step: Step) -> None:
        while not step.do("work", self.work, event.params["stop"]):
            step.sleep("rest", 0.2)

    def work(self, stop: str) -> bool:
        time.sleep(0.01)
        return Path(stop).exists()


class ManyGates(Workflow[None, list[float]]):
    """Waits for events; tells when it went on after each of them."""

    def run(self, event: WorkflowEvent[None], step: Step) -> list[float]:
        went_on = []
        while step.wait_for_event("gate", type="gate", timeout="1 day").payload:
            went_on.append(step.do("on", time.time))
        return went_on
