"""Which calls of which runs a mock is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from durableflow.authoring.workflow import Workflow


@dataclass(frozen=True)
class Address:
    """Which steps a mock is for. ``count`` None: every occurrence of the name; ``workflow`` None: in every workflow."""

    step: str
    count: int | None = None
    workflow: str | None = None

    def matches(self, workflow: str, name: str, count: int) -> bool:
        """Whether that step is meant."""
        return self.step == name and self.count in (None, count) and self.workflow in (None, workflow)

    @property
    def precision(self) -> int:
        """The more is said, the more it counts: an occurrence more than a workflow."""
        return 2 * (self.count is not None) + (self.workflow is not None)

    def __str__(self) -> str:
        count = "" if self.count is None else f", count={self.count}"
        return f"{self.step!r}{count}" + ("" if self.workflow is None else f", workflow={self.workflow!r}")


def address(step: str, count: int | None = None, workflow: type[Workflow[Any, Any]] | None = None) -> Address:
    """What the author of a test has named. Raises ValueError for what names nothing."""
    if type(step) is not str or not step:
        raise ValueError(f"A step is named by a text, not by {step!r}.")
    if count is not None and (type(count) is not int or count < 1):
        raise ValueError(f"count is the occurrence of {step!r} in a run, from 1 on, not {count!r}.")
    return Address(step, count, None if workflow is None else workflow.workflow_name())
