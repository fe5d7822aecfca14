"""What became of a verb over many rows (design 9, 12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

from durableflow.models import WorkflowInstance

MOST_NAMED: Final = 100
"""Instances that a report names one by one."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with how many rows have been looked at, and how many there are in all."""


class Reason(str):
    """Why a row was left out, as a text for people. ``code`` tells it to programs: ``permission_denied``, ``not_found`` (deleted
    meanwhile), ``protected``, ``locked`` (somebody held the row for too long), or the code of the InvalidTransition, with the
    ``status`` that it met."""

    code: str
    status: str

    @classmethod
    def of(cls, error: Exception, code: str, *, text: str = "") -> Self:
        """The reason that an error gives."""
        reason = cls(text or str(error) or code)
        reason.code = code
        reason.status = getattr(error, "status", "")
        return reason

    @classmethod
    def held(cls, row: WorkflowInstance, error: Exception) -> Self:
        """Somebody held the row for longer than one waits for it."""
        return cls.of(error, "locked", text=f"Somebody else works on {row.label}. Try again.")


def gone(row: WorkflowInstance) -> Reason:
    """The row was deleted by somebody else meanwhile."""
    return Reason.of(WorkflowInstance.DoesNotExist(f"{row.label} has been deleted meanwhile."), "not_found")


@dataclass
class BulkReport:
    """``done``: the rows whose verb has been done, as they are after it and without their big columns; deleted ones keep the
    primary key that they had. ``skipped``: the others, each with its ``Reason``. Both in ascending order of their primary keys."""

    done: list[WorkflowInstance] = field(default_factory=list)
    skipped: list[tuple[WorkflowInstance, Reason]] = field(default_factory=list)

    def reasons(self) -> dict[str, int]:
        """How many rows were left out for each code, the most frequent first."""
        return dict(Counter(reason.code for _row, reason in self.skipped).most_common())

    def __str__(self) -> str:
        text = f"{len(self.done):,} done, {len(self.skipped):,} skipped"
        why = ", ".join(f"{code}: {number:,}" for code, number in self.reasons().items())
        return f"{text} ({why})" if why else text


@dataclass
class Purged:
    """Of one workflow: how many that had succeeded (complete or terminated), and how many that had failed."""

    success: int = 0
    error: int = 0


@dataclass
class PurgeReport:
    """What a purge has deleted, or, with ``dry_run``, would have.

    ``workflows``: by the name under which the instances were stored. ``protected``: how many instances had to stay because of rows
    of the project, by the models of those; ``protected_instances``: the first hundred of them with the models. ``locked``: how many
    had to stay because somebody else works with what points to them: the next purge takes them. ``others``: rows of other tables,
    by model.
    """

    dry_run: bool = False
    workflows: dict[str, Purged] = field(default_factory=dict)
    protected: dict[str, int] = field(default_factory=dict)
    protected_instances: list[tuple[str, str]] = field(default_factory=list)
    locked: int = 0
    others: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many instances in all."""
        return sum(purged.success + purged.error for purged in self.workflows.values())

    def count(self, workflow: str, *, failed: bool) -> None:
        """One more of a workflow."""
        purged = self.workflows.setdefault(workflow, Purged())
        if failed:
            purged.error += 1
        else:
            purged.success += 1

    def protect(self, label: str, models: str) -> None:
        """One instance had to stay."""
        self.protected[models] = self.protected.get(models, 0) + 1
        if len(self.protected_instances) < MOST_NAMED:
            self.protected_instances.append((label, models))


__all__ = ["BulkReport", "Progress", "PurgeReport", "Purged", "Reason", "gone"]
