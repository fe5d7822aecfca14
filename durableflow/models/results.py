"""Waiting for an instance to end (api.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asgiref.sync import sync_to_async

from durableflow.core import atomicity, clock
from durableflow.core.exceptions import WorkflowFailed
from durableflow.core.statuses import FINISHED, Status
from durableflow.core.transactions import alias_of
from durableflow.models.instance_fields import InstanceFields
from durableflow.models.watching import await_until, wait_until


class ResultVerbs(InstanceFields):
    """``result``."""

    class Meta:
        abstract = True

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the instance has ended and return its output.

        ``timeout``: seconds, None: for ever. Raises WorkflowFailed when it ended errored or terminated, TimeoutError,
        and RuntimeError inside ``atomic()``: there the end could never become visible (unless the instance has ended
        already). On PostgreSQL a wait of more than 0.1 seconds does not poll (``models.watching``).
        """
        waiting = _Waiting(self, timeout)
        if not wait_until(self, waiting.look, timeout):
            raise waiting.too_long()
        return self._end()

    async def aresult(self, timeout: float | None = None) -> Any:
        """``result`` for ``await``: no thread waits, and everything else of the event loop goes on meanwhile, synchronous
        code too."""
        waiting = _Waiting(self, timeout)
        if not await await_until(self, waiting.look, timeout):
            raise waiting.too_long()
        return await sync_to_async(self._end)()

    def _end(self) -> Any:
        self.refresh_from_db(using=alias_of(self))
        if self.status == Status.COMPLETE:
            return self.output
        raise failed(self.workflow, self.instance_id, self.status, self.error)  # type: ignore[attr-defined]


class _Waiting:
    """Somebody who waits for the end of an instance. It keeps what its status was at the last look."""

    def __init__(self, instance: InstanceFields, timeout: float | None) -> None:
        self._instance = instance
        self._timeout = timeout
        self._status = ""

    def look(self) -> bool:
        """Whether the instance has ended. Raises RuntimeError where its end could never be seen."""
        # Where changes go: what tells of them comes from there, and a replica may be behind.
        model: Any = type(self._instance)
        rows = model._default_manager.using(alias_of(self._instance)).filter(pk=self._instance.pk)
        self._status = rows.values_list("status", flat=True).get()
        if self._status in FINISHED:
            return True
        label = self._instance.label
        if where := atomicity.opened():
            raise RuntimeError(f"result() of {label} inside {where} can never see the end: call it after the commit.")
        if self._timeout is None and clock.stopped() is not None:
            raise RuntimeError(f"{label} is {self._status} and the test's clock stands still: it would never end.")
        return False

    def too_long(self) -> TimeoutError:
        """The error of one who has waited in vain."""
        return TimeoutError(
            f"{self._instance.label} has not ended within {self._timeout} seconds; it is {self._status}."
        )


def failed(workflow: str, instance_id: str, status: str, error: Mapping[str, Any] | None) -> WorkflowFailed:
    """The error for an instance that ended without success. ``error``: its stored error as everybody may see it."""
    why = f"{error['type']}: {error['message']}" if error else "no error is recorded"
    return WorkflowFailed(
        f"{workflow}/{instance_id} is {status}: {why}",
        workflow=workflow,
        instance_id=instance_id,
        status=status,
        error=error,
    )
