"""``step.logger``: each line once, however often ``run`` is replayed (case OPS-02)."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from logging import LoggerAdapter
from typing import Any

from durableflow.engine.lease import Claim


class ReplayLogger(LoggerAdapter[logging.Logger]):
    """Silent while ``replaying()``, with the instance's ids in ``extra``."""

    def __init__(self, claim: Claim, replaying: Callable[[], bool]) -> None:
        ids = {"workflow": claim.workflow, "instance_id": claim.instance_id, "run_number": claim.run_number}
        super().__init__(logging.getLogger(f"durableflow.workflow.{claim.workflow}"), ids)
        self._replaying = replaying

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the ids to the author's own ``extra``."""
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  the name is logging's
        """Whether a line of this level is written now."""
        return not self._replaying() and super().isEnabledFor(level)
