"""How the engine leaves user code, and what it does then. Pure Python."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Suspend:
    """Park the instance until ``wake_at`` (None: until an event)."""

    wake_at: datetime | None
    where: str


@dataclass(frozen=True)
class Block:
    """Stop for a person, with the reason; nothing is ended (design 6, "Engine failures").

    ``astray``: ``seq`` of the records that a program which does not fit the journal has made or met. The program that
    does fit need not meet them, so putting the old code back repairs the instance.
    """

    error: Exception
    astray: tuple[int, ...] = ()


@dataclass(frozen=True)
class Expire:
    """``max_duration`` is over: the instance ends without telling ``run``."""

    error: Exception


@dataclass(frozen=True)
class GiveBack:
    """The instance is queued again, nothing is charged. ``stop``: because the process must stop; else it only runs elsewhere."""

    stop: bool = True


@dataclass(frozen=True)
class Pause:
    """Somebody has asked for a pause: nothing new begins, what is in flight ends and is stored, and then the row says whether the
    instance is paused or, where that was taken back meanwhile, queued again."""


@dataclass(frozen=True)
class Drop:
    """The lease is lost: somebody else owns the instance, so nothing more is written."""

    where: str


@dataclass(frozen=True)
class Renew:
    """The run is over, and the instance goes on with the next one (``continue_as_new``): its ``params`` as a text, and what
    derives from them and from the workflow's options."""

    params: str
    concurrency_key: str
    max_duration: timedelta | None
    code_version: int


Outcome = Suspend | Block | Expire | GiveBack | Pause | Drop | Renew


class Unwind(BaseException):
    """Unwinds ``run``. A BaseException, so that ``except Exception`` in user code cannot catch it (case ENG-02)."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"durableflow leaves the workflow here: {outcome}")
        self.outcome = outcome


class LeaseLost(BaseException):
    """Another executor owns the instance, or nobody does: drop the work, write nothing (design 4, "Fence")."""


class AlreadyFinished(BaseException):
    """This very lease has written the record as finished, and now writes something else: the exception that led here came
    after the checkpoint was committed (a signal's, or one for want of memory). The checkpoint counts."""


class BranchesInFlight(Exception):
    """An instance cannot be let go yet: others of its branches are in their bodies."""


class WriteFailed(BaseException):
    """A statement of the engine failed, and not in a way that passes by itself: no error of the workflow, which must
    not end by it (design 6, "Engine failures"). ``error``: what the database said."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class ProcessDied(BaseException):
    """The testing kit's crash: from here on nothing is written, as if the process were gone."""
