"""Which rows a verb over many rows is about (design 9, case SEC-13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from django.db import connections, models, router

from durableflow.models import StepRecord, WorkflowInstance, limits

T = TypeVar("T")
ROWS_AT_ONCE: Final = 100
"""Rows that are read at a time, and that lie between two calls of ``progress``."""
RECORDS_AT_ONCE: Final = 20_000
"""Step records that one transaction deletes, an instance that has more by itself apart."""


@dataclass(frozen=True)
class Chosen:
    """The rows that a queryset gave when it was asked, in ascending order of their keys: what the verb changes does not change
    which rows it is about. ``names``: workflow and id of each, for those that are gone when their turn comes; ``runs``: in which run
    each was."""

    using: str
    names: dict[int, tuple[str, str]]
    runs: dict[int, int]

    def __len__(self) -> int:
        return len(self.names)

    def chunks(self) -> Iterator[list[WorkflowInstance]]:
        """The rows as they are now, a hundred at a time, without their big columns. One that has been deleted meanwhile comes as
        an object with key, workflow and id alone, and ``_state.adding``."""
        for some in portions(list(self.names), ROWS_AT_ONCE):
            found = {row.pk: row for row in self._rows(some)}
            yield [found.get(pk) or self._gone(pk) for pk in some]

    def _rows(self, pks: Sequence[int]) -> models.QuerySet[Any]:
        return WorkflowInstance.objects.using(self.using).light().filter(pk__in=pks)

    def _gone(self, pk: int) -> WorkflowInstance:
        workflow, instance_id = self.names[pk]
        return WorkflowInstance(pk=pk, workflow=workflow, instance_id=instance_id)

    def lock_limits(self) -> None:
        """In a transaction of the caller's all limits are locked before the first instance (design 4, "Lock order"); outside of
        one each verb does so for its own row."""
        if connections[self.using].in_atomic_block:
            keys: set[str] = set()
            for some in portions(list(self.names), ROWS_AT_ONCE):
                rows = WorkflowInstance.objects.using(self.using).filter(pk__in=some).exclude(concurrency_key="")
                keys.update(rows.order_by().values_list("concurrency_key", flat=True))
            limits.lock_known(self.using, keys)


def choose(queryset: models.QuerySet[Any]) -> Chosen:
    """Ask a queryset for its rows, whatever its order, slice or joins. Raises TypeError if they are no instances."""
    query: Any = queryset
    if not issubclass(queryset.model, WorkflowInstance) or query._fields is not None:
        raise TypeError(
            f"Verbs over many rows take a queryset of WorkflowInstance without values(), not {queryset.model.__name__} rows."
        )
    using = query._db or router.db_for_write(queryset.model, **query._hints)
    rows = sorted(queryset.values_list("pk", "workflow", "instance_id", "run_number"))
    return Chosen(using, {row[0]: (row[1], row[2]) for row in rows}, {row[0]: row[3] for row in rows})


def portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """``items`` in their order, at most ``size`` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def weighed(using: str, pks: Sequence[int], most: int = RECORDS_AT_ONCE) -> Iterator[list[int]]:
    """Instances in their order, so many at a time as have ``most`` step records: the collector holds them all (case SEC-13)."""
    counted = StepRecord.objects.using(using).filter(instance__in=pks).order_by().values_list("instance")
    steps = dict(counted.annotate(models.Count("pk")))
    some: list[int] = []
    weight = 0
    for pk in pks:
        if some and weight + steps.get(pk, 0) > most:
            yield some
            some, weight = [], 0
        some.append(pk)
        weight += steps.get(pk, 0)
    if some:
        yield some


__all__ = ["RECORDS_AT_ONCE", "Chosen", "choose", "portions", "weighed"]
