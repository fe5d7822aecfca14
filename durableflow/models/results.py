"""Waiting for an instance to end (api.md)."""

from __future__ import annotations

import time
from typing import Any

from durableflow.core import atomicity, clock
from durableflow.core.aio import async_twin
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
        end = None if timeout is None else time.monotonic() + timeout
        pause = FIRST_LOOK
        model: Any = type(self)
        manager = model._default_manager.using(self._state.db)
        while (status := manager.values_list("status", flat=True).get(pk=self.pk)) not in FINISHED:
            if where := atomicity.opened():
                raise RuntimeError(
                    f"result() of {self.label} inside {where} can never see the end: call it after the commit."
                )
            if timeout is None and clock.stopped() is not None:
                raise RuntimeError(f"{self.label} is {status} and the test's clock stands still: it would never end.")
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{self.label} has not ended within {timeout} seconds; it is {status}.")
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, LAST_LOOK)
        self.refresh_from_db()
        if self.status == Status.COMPLETE:
            return self.output
        raise _failure(self)

    aresult = async_twin(result)


def _failure(instance: Any) -> WorkflowFailed:
    error = instance.error
    why = f"{error['type']}: {error['message']}" if error else "no error is recorded"
    return WorkflowFailed(
        f"{instance.label} is {instance.status}: {why}",
        workflow=instance.workflow,
        instance_id=instance.instance_id,
        error=error,
    )
