"""What became of a verb over many rows (design 9, 12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from durableflow.models import WorkflowInstance

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


__all__ = ["BulkReport", "Progress", "Reason", "gone"]
