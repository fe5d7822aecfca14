"""An attempt in this process: who may still write its outcome (design 6, "Attempts")."""

from __future__ import annotations

import threading
from enum import Enum

from durableflow.engine.journal import Identity


class AttemptState(Enum):
    """running -> committing -> done, or running -> abandoned."""

    RUNNING = "running"
    COMMITTING = "committing"
    DONE = "done"
    ABANDONED = "abandoned"


class Attempt:
    """One try of a body. Only the one that is committing may write, so a late result of an abandoned body is dropped
    (case RET-04)."""

    def __init__(self, identity: Identity, number: int) -> None:
        self.identity = identity
        self.number = number
        self.state = AttemptState.RUNNING
        self._lock = threading.Lock()

    def begin_commit(self) -> bool:
        """Claim the right to write the outcome; False if the attempt was abandoned meanwhile."""
        return self._move(AttemptState.RUNNING, AttemptState.COMMITTING)

    def finish(self) -> None:
        """The outcome is written."""
        self._move(AttemptState.COMMITTING, AttemptState.DONE)

    def abandon(self) -> bool:
        """Give up on a body that does not end; False if it is already writing."""
        return self._move(AttemptState.RUNNING, AttemptState.ABANDONED)

    def _move(self, before: AttemptState, after: AttemptState) -> bool:
        with self._lock:
            if self.state is not before:
                return False
            self.state = after
            return True
