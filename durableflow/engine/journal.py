"""Identities and records of durable calls, as the replay sees them. Pure Python."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

PENDING: Final = "pending"
STARTED: Final = "started"
COMPLETE: Final = "complete"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
FINISHED: Final = frozenset({COMPLETE, FAILED, CANCELLED})
NOTIFY: Final = "notify"
PATCH: Final = "patch"


class Identity(NamedTuple):
    """What names a durable call: from the program text alone, fixed when the call is made, never from timing (design
    6, case ENG-06)."""

    scope: str
    kind: str
    name: str
    count: int  # type: ignore[assignment]  # the word for it; tuple.count is not used

    @property
    def label(self) -> str:
        """How people see it: ``charge card-1``."""
        own = f"{self.name}-{self.count}"
        return f"{self.scope}/{own}" if self.scope else own

    @property
    def text(self) -> str:
        """The identity as one text, for columns that must not be foreign keys."""
        return f"{self.scope}/{self.kind}:{self.name}#{self.count}"


@dataclass(slots=True)
class Record:
    """A row of the journal. ``output`` and ``error`` are undecoded texts: most replays need only some of them. ``ended``: a number
    that rises in the order in which calls ended, where somebody has asked for it."""

    identity: Identity
    seq: int
    execution: int
    key_run: int
    status: str
    sensitive: bool = False
    config: str | None = None
    output: str | None = None
    error: str | None = None
    attempts: int = 0
    attempts_before_retry: int = 0
    freed: bool = False
    wake_at: datetime | None = None
    token: int | None = None
    met: bool = False
    ended: int | None = None

    @property
    def finished(self) -> bool:
        """Whether it is a checkpoint. Presence decides, never the value (case ENG-01)."""
        return self.status in FINISHED

    @property
    def used(self) -> int:
        """Attempts that count to the present budget."""
        return self.attempts - self.attempts_before_retry
