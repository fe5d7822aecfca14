"""Deleting many instances with all that belongs to them (design 9; cases SEC-13, LIF-13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import Error, IntegrityError, OperationalError, models

from durableflow.core.outages import contended
from durableflow.models import WorkflowInstance
from durableflow.models.instance_fields import Who
from durableflow.models.permissions import DELETE, require
from durableflow.models.removal import log_deletion, removing
from durableflow.operations.chosen import weighed
from durableflow.operations.report import BulkReport, Reason, gone


@dataclass(frozen=True)
class Deletion:
    """Who deletes, where from, and why."""

    using: str
    by: Who
    reason: str
    via: str

    def delete(self, rows: Sequence[WorkflowInstance], report: BulkReport) -> None:
        """Delete those of ``rows`` that are there, that the user may delete, and that no row of the project protects."""
        permitted: dict[int, WorkflowInstance] = {}
        for row in rows:
            if row._state.adding:
                report.skipped.append((row, gone(row)))
                continue
            try:
                require(self.by, DELETE, row, f"delete {row.label}")
            except PermissionDenied as error:
                report.skipped.append((row, Reason.of(error, "permission_denied")))
            else:
                permitted[row.pk] = row
        for pks in weighed(self.using, list(permitted)):
            self._some([permitted[pk] for pk in pks], report)

    def _some(self, rows: Sequence[WorkflowInstance], report: BulkReport) -> None:
        """One transaction; where a row is protected, one for each row."""
        try:
            removed = self._remove(rows)
        except OperationalError as error:
            if not contended(error):
                raise
            report.skipped += [(row, Reason.held(row, error)) for row in rows]
            return
        except Exception as error:
            if not of_the_rows(error):
                raise
            if len(rows) == 1:
                report.skipped.append((rows[0], Reason.of(error, "protected", text=protection(rows[0], error))))
                return
            for row in rows:
                self._some([row], report)
            return
        for row in rows:
            if row.pk in removed:
                report.done.append(row)
            else:
                report.skipped.append((row, gone(row)))

    def _remove(self, rows: Sequence[WorkflowInstance]) -> set[int]:
        plain = plain_rows(self.using, [row.pk for row in rows])
        with removing(plain) as pks:
            locked = set(pks)
            for row in rows:
                if row.pk in locked:
                    log_deletion(row, by=self.by, reason=self.reason, via=self.via)
            # Without their big columns; whatever listens to their deletion can ask for them.
            plain.filter(pk__in=pks).only("workflow", "instance_id").delete()
        return locked


def plain_rows(using: str, pks: Sequence[int]) -> models.QuerySet[Any]:
    """These instances, for the collector of Django alone."""
    rows: models.QuerySet[Any] = WorkflowInstance._base_manager.using(using).filter(pk__in=pks)
    return rows


def protection(row: WorkflowInstance, error: Exception) -> str:
    """Why a row of the project keeps this one, for people."""
    if not isinstance(error, IntegrityError):
        return f"{row.label} is kept, because its deletion has raised {type(error).__name__}: {error}"
    models_of = ", ".join(protectors(error))
    return f"{row.label} is kept, because it is protected by {models_of}. Delete or change what refers to it first."


def of_the_rows(error: Exception) -> bool:
    """Whether the rows are why they cannot be deleted: something protects them, or code of the project that hears of deletions
    (a signal) refuses. It is not where the database is away, or its tables are not as they should be."""
    return isinstance(error, IntegrityError) or not isinstance(error, Error)


def protectors(error: Exception) -> list[str]:
    """What has protected something: the labels of models, which ProtectedError and RestrictedError know."""
    if not isinstance(error, IntegrityError):
        return [f"code of the project ({type(error).__name__})"]
    rows = getattr(error, "protected_objects", None) or getattr(error, "restricted_objects", None)
    return sorted({row._meta.label for row in rows or ()}) or ["a constraint of the database"]


__all__ = ["Deletion", "of_the_rows", "plain_rows", "protection", "protectors"]
