"""What a check finds, and from when on it is trouble."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from durableflow.core.statuses import HeartbeatKind


class Level(StrEnum):
    """How things are. ``warning``: somebody should look today; ``critical``: due work is not executed."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """From when on it is trouble, in seconds.

    ``live``: who has been silent for longer is not counted as live. ``warning``, ``critical``: how long an instance is
    due without a worker. ``undelivered``: how long a sent event waits for a look.
    """

    live: float
    warning: float
    critical: float
    undelivered: float


CLUSTER_TERMS: Final = Terms(live=30, warning=10, critical=60, undelivered=5)
"""A cluster tells of itself each 10 seconds and claims within milliseconds."""
DRAIN_TERMS: Final = Terms(live=180, warning=120, critical=300, undelivered=120)
"""Where a scheduler calls ``drain()``: it may do so once a minute, as the fallback does, and take another half."""

MOST_COUNTED: Final = 1000
"""Counts stop one above, so that a check costs the same whatever there is."""
MOST_LISTED: Final = 5
"""So many blocked instances are listed with their reasons, the latest first."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A cluster, or a process that drains. Times in seconds before the check.

    ``fresh``: seen lately; ``live``: that, and not said to end. ``host``, ``pid``: for people.
    """

    kind: HeartbeatKind
    host: str
    pid: str
    workers: int
    busy: int
    version: str
    stopping: bool
    fresh: bool
    live: bool
    started: float
    seen: float
    last_claim: float | None


@dataclass(frozen=True, kw_only=True)
class Due:
    """The instance that has been due for the longest time. ``seconds``: for how long; ``pk``: its primary key."""

    pk: int
    workflow: str
    instance_id: str
    seconds: float

    @property
    def label(self) -> str:
        """``checkout/order-42``."""
        return f"{self.workflow}/{self.instance_id}"


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """An instance that needs a person, with the reason, masked. ``since``: when it was blocked."""

    pk: int
    workflow: str
    instance_id: str
    reason: str
    since: datetime | None

    @property
    def label(self) -> str:
        """``checkout/order-42``."""
        return f"{self.workflow}/{self.instance_id}"


@dataclass(frozen=True)
class Reason:
    """Why it is not ok. ``code`` is for programs and never changes: ``database``, ``no_worker``, ``overdue``,
    ``undelivered``, ``blocked``; ``text`` is a sentence for people."""

    level: Level
    code: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Health:
    """What a check has found. Counts that are above ``MOST_COUNTED`` mean: more than that.

    ``oldest_due``: the instance that has been due for the longest time; rows on hold, parked or leased are not due.
    ``overdue``: how many have been due for longer than ``terms.warning``. ``last_seen``, ``last_claim``: seconds since
    any process told of itself, and since the last claim that one told of; None where none has within a day.
    ``undelivered``: age in seconds of the oldest sent event that nobody has looked at. ``holds``: instances on hold by
    reason.
    """

    reasons: tuple[Reason, ...] = ()
    terms: Terms = CLUSTER_TERMS
    processes: tuple[Process, ...] = ()
    oldest_due: Due | None = None
    overdue: int = 0
    last_seen: float | None = None
    last_claim: float | None = None
    undelivered: float | None = None
    blocked: int = 0
    blocked_latest: tuple[Blocked, ...] = ()
    holds: Mapping[str, int] = field(default_factory=dict)

    @property
    def status(self) -> Level:
        """The worst of the reasons."""
        levels = {reason.level for reason in self.reasons}
        return next((level for level in (Level.CRITICAL, Level.WARNING) if level in levels), Level.OK)

    @property
    def live(self) -> tuple[Process, ...]:
        """The processes that are counted as live."""
        return tuple(process for process in self.processes if process.live)

    @property
    def between_drains(self) -> bool:
        """Whether a scheduler's drain has ended in good order and the next one is not yet missing."""
        ended = any(each.fresh and each.stopping and each.kind is HeartbeatKind.DRAIN for each in self.processes)
        return ended and self.terms is DRAIN_TERMS

    @property
    def workers(self) -> int:
        """Executions that the live processes can run at the same time."""
        return sum(process.workers for process in self.live)

    @property
    def busy(self) -> int:
        """Of those, how many ran when the processes last told."""
        return sum(process.busy for process in self.live)
