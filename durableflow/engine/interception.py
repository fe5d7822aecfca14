"""The seam through which the testing kit replaces bodies and simulates crashes (design 10, "Testing kit")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durableflow.engine.journal import Identity


class Interceptor:
    """Does nothing; the testing kit derives from it."""

    def body(self, workflow: str, identity: Identity, attempt: int, body: Callable[[], Any]) -> Callable[[], Any]:
        """The body to run in place of ``body``."""
        return body

    def job(self, job: Callable[[], Any]) -> Callable[[], Any]:
        """What to run in place of ``job``, which async code gives to ``sync_to_async``."""
        return job

    def before_checkpoint(self, workflow: str, identity: Identity, attempt: int) -> None:
        """Called when a body has returned and nothing is written yet; may raise ProcessDied."""

    def before_exit(self) -> None:
        """Called before the engine ends this process with a message on standard error."""


PASS = Interceptor()
