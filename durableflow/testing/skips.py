"""What does not wait in a test: sleeps, retry delays, deadlines of waits (design 10, "Testing kit")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import F, QuerySet

from durableflow.core.statuses import PendingStatus, StepKind, StepStatus
from durableflow.models import PendingEvent, StepRecord, WorkflowInstance
from durableflow.testing.addresses import Address

_SLEEPS: Final = (StepKind.SLEEP, StepKind.SLEEP_UNTIL)
_WAITS: Final = (StepKind.WAIT_FOR_EVENT, StepKind.WAIT_FOR_APPROVAL)
_BODIES: Final = (StepKind.DO, StepKind.NOTIFY)


@dataclass(frozen=True)
class Waiting:
    """A record that waits for a moment."""

    pk: Any
    instance: Any
    workflow: str
    name: str
    count: int


@dataclass
class Skip:
    """One that was asked for. ``address`` None: all of them."""

    method: str
    address: Address | None = None
    used: bool = False

    def matches(self, found: Waiting) -> bool:
        """Whether this record is meant."""
        return self.address is None or self.address.matches(found.workflow, found.name, found.count)

    def __str__(self) -> str:
        return f"{self.method}({self.address})"


@dataclass
class Skips:
    """All of one harness."""

    sleeps: list[Skip] = field(default_factory=list)
    delays: list[Skip] = field(default_factory=list)
    timeouts: list[Skip] = field(default_factory=list)
    seen: dict[str, None] = field(default_factory=dict)

    def unused(self) -> list[str]:
        """Those of a certain step that nothing has used; for all of a kind there need not be any."""
        return [str(skip) for skip in (*self.sleeps, *self.delays, *self.timeouts) if skip.address and not skip.used]

    def apply(self, using: str, now: datetime) -> None:
        """Have what is meant end now, of instances that are moved by the clock: of a paused one when it is resumed."""
        current = StepRecord.objects.using(using).filter(
            run_number=F("instance__run_number"), instance__wake_at__isnull=False
        )
        later = current.filter(status=StepStatus.PENDING, wake_at__gt=now)
        self._end(using, now, self.sleeps, later.filter(kind__in=_SLEEPS))
        # One that races with a timer has no deadline of its own, and none here.
        waits = later.filter(kind__in=_WAITS, pending_events__status=PendingStatus.OPEN)
        self._end(using, now, self.timeouts, waits)
        self._end(using, now, self.delays, later.filter(kind__in=_BODIES))
        self._end(using, now, self.delays, current.filter(rollback_wake_at__gt=now))

    def _end(self, using: str, now: datetime, skips: list[Skip], records: QuerySet[StepRecord]) -> None:
        if not skips:
            return
        found = [Waiting(*row) for row in records.values_list("pk", "instance", "instance__workflow", "name", "count")]
        self.seen |= {each.name: None for each in found}
        meant = [each for each in found if _use(skips, each)]
        if not meant:
            return
        rows = StepRecord.objects.using(using).filter(pk__in=[each.pk for each in meant])
        rows.filter(wake_at__gt=now).update(wake_at=now)
        rows.filter(rollback_wake_at__gt=now).update(rollback_wake_at=now)
        PendingEvent.objects.using(using).filter(step__in=rows, status=PendingStatus.OPEN).update(deadline=now)
        _wake(using, {each.instance for each in meant}, now)


def _use(skips: list[Skip], found: Waiting) -> bool:
    """Whether one of them means it. All that do are used."""
    meant = [skip for skip in skips if skip.matches(found)]
    for skip in meant:
        skip.used = True
    return bool(meant)


def _wake(using: str, instances: Iterable[Any], now: datetime) -> None:
    WorkflowInstance.objects.using(using).filter(pk__in=instances, wake_at__gt=now).update(wake_at=now)
