"""What ``restart(from_step)`` keeps and what it drops (design 7, 9; reference 11).

Kept is what was started before the step, dropped the step and all that was started after it. A record that means nothing without
another one goes with that, whatever was started in between by other branches: the children of a join, the waits of a race, the
``notify`` of a wait. What is kept moves to the new run, by its own row, so that children and pending events stay what they are;
what is dropped stays under the old number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from django.db import connections
from django.db.models import Q

from durableflow.core import clock
from durableflow.core.scopenames import groups_of
from durableflow.core.statuses import (
    STEP_FINISHED,
    PendingStatus,
    RollbackStatus,
    SentKind,
    Status,
    StepKind,
    StepStatus,
)
from durableflow.models import family
from durableflow.models.repair import GROUPS, WAITS, reopen_broken, reopen_cancelled, reset, stored_error

CLOSED: Final = "restart"
"""What an event is ``consumed_by`` that no step has read and a restart has closed. No step has such an identity."""
HOW: Final = "was restarted"
AT_ONCE: Final = 1_000
COLUMNS: Final = ("pk", "seq", "scope", "kind", "name", "count", "rollback_status", "rollback_attempts", "remaining")


class Known(NamedTuple):
    """What has to be known of a record."""

    pk: int
    seq: int
    scope: str
    kind: str
    name: str
    count: int  # type: ignore[assignment]  # the word for it; tuple.count is not used
    rollback_status: str
    rollback_attempts: int
    remaining: int | None

    @property
    def undone(self) -> bool:
        """Whether its rollback handler has started: what it did may be undone, so that its result is worth nothing."""
        return self.rollback_attempts > 0 or self.rollback_status not in ("", RollbackStatus.PENDING)

    @property
    def text(self) -> str:
        """Its identity as ``consumed_by`` has it."""
        return f"{self.scope}/{self.kind}:{self.name}#{self.count}"


@dataclass
class Split:
    """``kept`` and ``dropped``: records of the run. ``reopened``: keys of kept groups that go on, because a part of them is dropped;
    ``anew``: of the race in which the step is, which begins anew."""

    kept: list[Known] = field(default_factory=list)
    dropped: list[Known] = field(default_factory=list)
    reopened: set[int] = field(default_factory=set)
    anew: set[int] = field(default_factory=set)


def split(row: Any, step: Any) -> Split:
    """What a restart from ``step``, a record of the locked instance's present run, keeps. Raises ValueError for a record that is no
    place to restart from."""
    records = [
        Known(*values)
        for values in row.steps.filter(run_number=row.run_number).order_by("seq").values_list(*COLUMNS)
    ]  # fmt: skip
    around: dict[tuple[str, str, int], list[Known]] = {}
    for record in records:
        if record.kind in GROUPS or record.remaining is not None:
            around.setdefault((record.scope, record.name, record.count), []).append(record)
    target = _target(row, records, around, step)
    anew = {group.pk for group in _groups(around, target) if group.kind == StepKind.RACE}
    found, is_kept = Split(anew=anew), dict[int, bool]()
    waits: dict[tuple[str, str, int], Known] = {}
    for record in records:
        key = (record.scope, record.name, record.count)
        if record.kind in WAITS:
            waits[key] = record
        leader = _leader(record, around, waits.get(key))
        if leader is not None:
            keep = is_kept[leader.pk] and leader.pk not in anew
        else:
            keep = record.seq < target.seq and not record.undone
        is_kept[record.pk] = keep
        (found.kept if keep else found.dropped).append(record)
    for record in found.dropped:
        found.reopened |= {group.pk for group in _groups(around, record) if is_kept[group.pk]}
    return found


def _target(row: Any, records: Sequence[Known], around: dict[Any, list[Known]], step: Any) -> Known:
    target = next(record for record in records if record.pk == step.pk)
    where = f"{step.kind} {step.label!r} of {row.label}"
    if target.kind == StepKind.PATCH:
        raise ValueError(f"{where} says which code the run follows; it is no step to restart from.")
    if target.kind == StepKind.NOTIFY:  # a part of its wait
        own = (target.scope, target.name, target.count)
        return next(
            record for record in records if record.kind in WAITS and (record.scope, record.name, record.count) == own
        )
    joins = [group for group in _groups(around, target)[:1] if group.remaining is not None]
    if joins:
        raise ValueError(
            f"{where} is one of the children that {joins[0].name!r} has started together. Restart from {joins[0].name!r}, or restart "
            "that child itself."
        )
    return target


def _groups(around: dict[Any, list[Known]], record: Known) -> list[Known]:
    """The groups around a record, innermost first."""
    return [group for key in groups_of(record.scope) for group in around.get(key, ())]


def _leader(record: Known, around: dict[Any, list[Known]], wait: Known | None) -> Known | None:
    """The record with which this one is kept or dropped."""
    for group in _groups(around, record):
        if group.kind == StepKind.RACE or group.remaining is not None:
            return group
    return wait if record.kind == StepKind.NOTIFY else None


# Writing --------------------------------------------------------------------------------------------------------------------


def carry_over(row: Any, found: Split, run_number: int) -> None:
    """Move what is kept to the new run, and end what is dropped. The caller holds the row's lock, and changes ``row`` itself."""
    old, using = row.run_number, row._state.db
    for some in _chunks([record.pk for record in found.kept]):
        row.steps.filter(pk__in=some).update(run_number=run_number, rollback_status="")
    kept, dropped = row.steps.filter(run_number=run_number), row.steps.filter(run_number=old)
    row.pending_events.filter(step__run_number=run_number).update(run_number=run_number)
    now = clock.expression(connections[using].vendor)
    row.pending_events.filter(status=PendingStatus.OPEN).exclude(run_number=run_number).update(
        status=PendingStatus.CANCELLED, closed=now
    )
    family.end_children(using, [row.pk], HOW, waited_in=old)
    dropped.exclude(status__in=sorted(STEP_FINISHED)).update(status=StepStatus.CANCELLED, finished=now)
    reset(kept.filter(pk__in=found.anew))
    for some in _chunks(sorted(found.reopened)):
        kept.filter(pk__in=some).update(status=StepStatus.PENDING, finished=None)
    reopen_cancelled(kept)
    if row.status == Status.ERRORED:
        reopen_broken(kept, stored_error(row))
    _carry_events(row, found, run_number)


def _carry_events(row: Any, found: Split, run_number: int) -> None:
    """What a kept step has read stays read, in the new run: a sender that repeats it is told so. What a kept wait may still read
    moves along; everything else that nobody has read is closed. What comes later is moved at its delivery."""
    readers = {record.text for record in found.kept if record.kind in WAITS}
    read = row.sent_events.filter(consumed_run=row.run_number).exclude(consumed_by=CLOSED)
    own = [pk for pk, reader in read.values_list("pk", "consumed_by") if reader in readers]
    for some in _chunks(own):
        row.sent_events.filter(pk__in=some).update(run_number=run_number, consumed_run=run_number)
    open_waits = row.pending_events.filter(run_number=run_number, step__status=StepStatus.PENDING)
    types = {type for known in open_waits.values_list("types", flat=True) for type in known}
    unread = row.sent_events.filter(consumed_by="", kind__in=(SentKind.EVENT, SentKind.DECISION))
    wanted = Q(kind=SentKind.EVENT, type__in=sorted(types)) | Q(kind=SentKind.DECISION, pending_event__in=open_waits)
    unread.filter(wanted, run_number=row.run_number).update(run_number=run_number)
    close_events(row, unread.exclude(run_number=run_number).exclude(Q(delivered=False) & wanted))


def close_events(row: Any, unread: Any) -> None:
    """No run will read these events (design 2)."""
    unread.update(consumed_by=CLOSED, consumed_run=row.run_number)


def _chunks(pks: Sequence[int]) -> Iterable[Sequence[int]]:
    return (pks[start : start + AT_ONCE] for start in range(0, len(pks), AT_ONCE))
