"""The purge: what ends the data of finished instances (design 9; reference 14; cases LIF-13, LIF-14)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from django.db import IntegrityError, OperationalError, connections, models
from django.db.models.deletion import Collector

from durableflow.core import clock
from durableflow.core.outages import contended
from durableflow.core.statuses import Status
from durableflow.core.transactions import write_transaction
from durableflow.models import WorkflowInstance
from durableflow.models.creation import database
from durableflow.operations.chosen import RECORDS_AT_ONCE, weighed
from durableflow.operations.deletion import of_the_rows, plain_rows, protectors
from durableflow.operations.leftovers import leftovers
from durableflow.operations.report import Progress, PurgeReport
from durableflow.operations.retention import COLUMNS, Finished, Group, awaited, groups

logger = logging.getLogger("durableflow.operations")

ROWS_AT_ONCE: Final = 500
"""Instances of one transaction."""
PATIENCE: Final = "500ms"
"""How long the purge waits for a row that points to an instance. Less than PostgreSQL's deadlock_timeout: where two wait for each
other it is the purge that gives up."""


def purge(*, dry_run: bool = False, progress: Progress | None = None) -> PurgeReport:
    """Delete finished instances whose retention is over, with all that belongs to them; their ids are free again.

    The cluster does it by itself, a small batch at a time, at least once an hour. In batches of 500, each a transaction of its own: what a
    killed purge has not done the next one does. It takes a row only if nobody else has it, looks at its conditions again then (a
    ``retry()`` or ``restart()`` in between wins), and goes through Django's collector. Rows that a row of the project protects
    (``on_delete=PROTECT`` or ``RESTRICT``), and those whose deletion a signal refuses, stay and are reported. Never deleted: what
    has not ended, and a child whose end its parent has not taken in.

    ``dry_run``: delete nothing; the report says what would have been. ``progress(deleted, due)`` is called after each batch, with
    the number that was due at the beginning. Who may purge is the caller's business: it is no verb of an instance.
    """
    using = database()
    work = Purge(using, dry_run=dry_run)
    total = work.count() if progress is not None else 0
    while work.batch():
        if progress is not None:
            progress(work.report.total, max(total, work.report.total))
    work.report.others = leftovers(using, dry_run=dry_run)
    if progress is not None:
        progress(work.report.total, work.report.total)
    return work.report


class Purge:
    """One pass over all that may be due. ``size``: instances of one batch, ``records``: step records of one batch, at most (an
    instance that has more by itself apart)."""

    def __init__(
        self, using: str, *, dry_run: bool = False, size: int = ROWS_AT_ONCE, records: int = RECORDS_AT_ONCE
    ) -> None:
        self.report = PurgeReport(dry_run=dry_run)
        self._using = using
        self._size = size
        self._batches = (pks for page in self._pages() for pks in weighed(using, sorted(page), records))

    def count(self) -> int:
        """How many may be due, before the first batch."""
        return sum(group.rows.count() for group in groups(self._using))

    def batch(self) -> bool:
        """Delete the next ones; False when the pass is over. What had to stay is behind the pass: it holds up no other."""
        pks = next(self._batches, None)
        if pks is None:
            return False
        self._delete(pks)
        return True

    def _pages(self) -> Iterator[list[int]]:
        """Keys of rows that may be due, ``size`` at a time, over the groups."""
        page: list[int] = []
        for group in groups(self._using):
            for pk in self._keys(group):
                page.append(pk)
                if len(page) == self._size:
                    yield page
                    page = []
        if page:
            yield page

    def _keys(self, group: Group) -> Iterator[int]:
        after = None
        while found := group.page(after, self._size):
            yield from (pk for _finished, pk in found)
            if len(found) < self._size:
                return
            after = found[-1]

    def _delete(self, pks: Sequence[int]) -> None:
        """One transaction; where something forbids it, two of half as many rows, down to the one."""
        refusal = self._deleted(pks)
        if refusal is None:
            return
        if len(pks) == 1:
            self._refused(pks[0], refusal)
            return
        middle = len(pks) // 2
        self._delete(pks[:middle])
        self._delete(pks[middle:])

    def _deleted(self, pks: Sequence[int]) -> Exception | None:
        """One transaction; why it was not possible, if these rows are the reason."""
        # In a transaction of the caller's it would outlast the purge.
        own = not connections[self._using].in_atomic_block
        try:
            with write_transaction(self._using):
                if own:
                    self._impatient()
                rows, kept = self._due(pks)
                self._collect([row.pk for row in rows])
        except Exception as error:
            about_rows = self._somebodys(error) if isinstance(error, OperationalError) else of_the_rows(error)
            if not about_rows:
                raise
            return error
        for row in rows:
            self.report.count(row.workflow, failed=row.status == Status.ERRORED)
        for label, by in kept:
            self.report.protect(label, by)
        return None

    def _somebodys(self, error: OperationalError) -> bool:
        """Whether somebody holds one of the rows; on SQLite he holds all of them, for the next half as well."""
        return connections[self._using].vendor == "postgresql" and contended(error)

    def _impatient(self) -> None:
        connection = connections[self._using]
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('lock_timeout', %s, true)", [PATIENCE])

    def _due(self, pks: Sequence[int]) -> tuple[list[Finished], list[tuple[str, str]]]:
        """Those that nobody else has, locked, and still due; and what protects the others, as far as one can see beforehand."""
        rows = WorkflowInstance.objects.using(self._using).filter(pk__in=pks).order_by("pk")
        locked = [Finished(*row) for row in rows.select_for_update(skip_locked=True).values_list(*COLUMNS)]
        now = clock.read(self._using)
        due = [row for row in locked if row.due(now)]
        waited_for = awaited(self._using, due)
        due = [row for row in due if row.pk not in waited_for]
        by = protecting(self._using, [row.pk for row in due])
        protected = [(row.label, by[row.pk]) for row in due if row.pk in by]
        return [row for row in due if row.pk not in by], protected

    def _collect(self, pks: Sequence[int]) -> None:
        if not pks:
            return
        # Without their big columns; whatever listens to their deletion can ask for them.
        rows = plain_rows(self._using, pks).only("workflow", "instance_id")
        if self.report.dry_run:
            Collector(using=self._using, origin=rows).collect(rows)
        else:
            rows.delete()

    def _refused(self, pk: int, error: Exception) -> None:
        row = plain_rows(self._using, [pk]).only("workflow", "instance_id").first()
        if row is None:
            return
        if isinstance(error, OperationalError):
            self.report.locked += 1
        else:
            if not isinstance(error, IntegrityError):
                logger.warning("The purge keeps %s: code of the project refuses.", row.label, exc_info=error)
            self.report.protect(row.label, ", ".join(protectors(error)))


def protecting(using: str, pks: Sequence[int]) -> dict[int, str]:
    """Those that rows of the project protect by ``on_delete=PROTECT``, with the models. The collector would refuse the whole
    batch for each of them; what protects them some other way it tells one by one."""
    found: dict[int, str] = {}
    for relation in WorkflowInstance._meta.related_objects:
        if getattr(relation, "on_delete", None) is not models.PROTECT or not pks:
            continue
        model: Any = relation.related_model
        name = relation.field.attname
        rows = model._base_manager.using(using).filter(**{f"{relation.field.name}__in": pks})
        for pk in rows.order_by().values_list(name, flat=True).distinct():
            found[pk] = f"{found[pk]}, {model._meta.label}" if pk in found else model._meta.label
    return found


__all__ = ["Purge", "protecting", "purge"]
