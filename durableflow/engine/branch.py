"""One branch of a gather or a map, as those see it who run it (design 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from durableflow.engine.journal import Identity
from durableflow.engine.replay import Scope


class State(Enum):
    """ready -> running -> done; or running -> parked -> ready."""

    READY = "ready"
    RUNNING = "running"
    PARKED = "parked"
    DONE = "done"


@dataclass(eq=False)
class Branch:
    """One branch. ``run``: makes one pass over it in the scope it is given. ``turn``: which pass this is; the outcome of an
    earlier one, whose thread was given up, comes too late. ``heard``: what had arrived when this pass began
    (``Session.news``). ``wake_at`` of a parked one: None for until something arrives; ``asked``: the same as it asked for it."""

    scope: str
    run: Callable[[Scope], Any]
    only: Identity | None = None
    state: State = State.READY
    turn: int = 0
    heard: int = 0
    value: Any = None
    error: Exception | None = None
    wake_at: datetime | None = None
    asked: datetime | None = None
