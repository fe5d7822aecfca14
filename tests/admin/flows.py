"""Workflows that the admin's tests can schedule and run."""

from __future__ import annotations

from typing import Any

from durableflow import Step, Workflow, WorkflowEvent


class AdminReport(Workflow[Any, str]):
    """One step; by shop, where the params name one."""

    class Meta:
        name = "admin-report"
        max_concurrency = 5
        concurrency_key = staticmethod(lambda params: None if params is None else str(params["shop"]))

    def run(self, event: WorkflowEvent[Any], step: Step) -> str:
        return step.do("write report", str, event.params)


class AdminOrder(Workflow[Any, str]):
    """Charges, packs, waits."""

    class Meta:
        name = "admin-order"

    def run(self, event: WorkflowEvent[Any], step: Step) -> str:
        charge = step.do("charge", CALLS.charge, retries=0)
        parcel = step.do("pack", CALLS.pack, charge)
        step.sleep("rest", "10 minutes")
        return parcel


class Calls:
    """What the bodies did, and whether they fail."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.failing: set[str] = set()

    def _call(self, name: str) -> str:
        self.made.append(name)
        if name in self.failing:
            raise RuntimeError(f"no {name}")
        return f"{name}-{len(self.made)}"

    def charge(self) -> str:
        """Charge the card."""
        return self._call("charge")

    def pack(self, charge: str) -> str:
        """Pack the parcel."""
        return f"{self._call('pack')} paid by {charge}"


CALLS = Calls()
