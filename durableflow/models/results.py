"""Waiting for an instance to end (api.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from asgiref.sync import sync_to_async

from durableflow.core import atomicity, clock
from durableflow.core.exceptions import WorkflowFailed
from durableflow.core.statuses import FINISHED, Status
from durableflow.models.instance_fields import InstanceFields

FIRST_LOOK, LAST_LOOK = 0.01, 0.5


class ResultVerbs(InstanceFields):
    """``result``."""

    class Meta:
        abstract = True

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the instance has ended and return its output.

        ``timeout``: seconds, None: for ever. Raises WorkflowFailed when it ended errored or terminated, TimeoutError,
        and RuntimeError inside ``atomic()``: there the end could never become visible (unless the instance has ended
        already).
        """
        waiting = _Waiting(timeout)
        while (pause := self._look(waiting)) is not None:
            time.sleep(pause)
        return self._end()

    async def aresult(self, timeout: float | None = None) -> Any:
        """``result`` for ``await``: everything else of the event loop goes on meanwhile, synchronous code too."""
        waiting = _Waiting(timeout)
        while (pause := await sync_to_async(self._look)(waiting)) is not None:
            await asyncio.sleep(pause)
        return await sync_to_async(self._end)()

    def _look(self, waiting: _Waiting) -> float | None:
        """Seconds until the next look; None once the instance has ended."""
        model: Any = type(self)
        status = model._default_manager.using(self._state.db).values_list("status", flat=True).get(pk=self.pk)
        if status in FINISHED:
            return None
        if where := atomicity.opened():
            raise RuntimeError(
                f"result() of {self.label} inside {where} can never see the end: call it after the commit."
            )
        if waiting.timeout is None and clock.stopped() is not None:
            raise RuntimeError(f"{self.label} is {status} and the test's clock stands still: it would never end.")
        pause = waiting.next_pause()
        if pause is None:
            raise TimeoutError(f"{self.label} has not ended within {waiting.timeout} seconds; it is {status}.")
        return pause

    def _end(self) -> Any:
        self.refresh_from_db()
        if self.status == Status.COMPLETE:
            return self.output
        raise failed(self.workflow, self.instance_id, self.status, self.error)  # type: ignore[attr-defined]


class _Waiting:
    """How long somebody still waits, and in which steps."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout
        self._pause = FIRST_LOOK

    def next_pause(self) -> float | None:
        """Seconds to the next look, longer each time; None when the time is over."""
        pause, self._pause = self._pause, min(self._pause * 1.5, LAST_LOOK)
        if self._end is None:
            return pause
        left = self._end - time.monotonic()
        return min(pause, left) if left > 0 else None


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
