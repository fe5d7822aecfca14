"""The kit's hand in an execution: mocked bodies, crashes, bodies that break the test's transaction (design 10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durableflow.core.statuses import StepKind
from durableflow.engine.interception import Interceptor
from durableflow.engine.journal import Identity
from durableflow.engine.lease import Lease
from durableflow.engine.unwind import ProcessDied
from durableflow.testing.mocks import Mocks
from durableflow.testing.savepoints import guarded


class KitInterceptor(Interceptor):
    """Intercepts one execution. ``crashed``: its process has "died"; what it holds has to be taken over."""

    def __init__(self, mocks: Mocks, lease: Lease, before_exit: Callable[[], None]) -> None:
        self.crashed = False
        self._mocks, self._lease, self._before_exit = mocks, lease, before_exit

    def body(self, workflow: str, identity: Identity, attempt: int, body: Callable[[], Any]) -> Callable[[], Any]:
        """The mock of a ``do`` step, else the real body in a savepoint of the test's transaction."""
        mocked = None
        if identity.kind == StepKind.DO:
            mocked = self._mocks.body(workflow, identity.name, identity.count)
        return guarded(mocked or body)

    def job(self, job: Callable[[], Any]) -> Callable[[], Any]:
        """In a savepoint of the test's transaction."""
        return guarded(job)

    def before_checkpoint(self, workflow: str, identity: Identity, attempt: int) -> None:
        """Die where ``crash_before_checkpoint`` said so."""
        if self._mocks.take_crash(identity.name):
            self.crashed = True
            self._lease.lost = True  # a run() that swallows the exception below can write nothing either
            raise ProcessDied(f"{self._lease.label} crashed before the checkpoint of {identity.label!r}")

    def before_exit(self) -> None:
        """The engine is about to end the process."""
        self._before_exit()
