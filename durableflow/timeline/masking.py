"""Hiding what sensitive steps returned or raised (case SEC-09: one unmasked sibling defeats the mask)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from durableflow.core.failures import REDACTED
from durableflow.core.redact import Secrets, shown
from durableflow.models import WorkflowInstance
from durableflow.models.step import step_label


class Veil:
    """What must not be seen of one instance: the errors of its sensitive steps, and their outputs where another error
    quotes them.
    """

    def __init__(self, labels: Iterable[str] = (), outputs: Iterable[Any] = ()) -> None:
        self.labels = frozenset(labels)
        self._secrets = Secrets(outputs)

    @classmethod
    def over(cls, instance: WorkflowInstance) -> Veil:
        """The veil over ``instance``: one query."""
        rows = list(
            instance.steps.filter(sensitive=True).values_list("scope", "name", "count", "raw_output").order_by("id")
        )
        return cls((step_label(*row[:3]) for row in rows), (row[3] for row in rows))

    def text(self, text: str) -> str:
        """``text`` without the outputs of sensitive steps."""
        return self._secrets.mask(text)

    def error(self, error: dict[str, Any] | None, *, step: str = "") -> dict[str, Any] | None:
        """A public error (``type``, ``message``, ``traceback``, ``step``), masked.

        ``step``: whose error it is, if it does not say so.
        """
        if error is None:
            return None
        owner = step or str(error.get("step", ""))
        kept = {
            "type": str(error.get("type", "")),
            "message": self.text(str(error.get("message", ""))),
            "traceback": self.text(str(error.get("traceback", ""))),
            "step": str(error.get("step", "")) or step,
        }
        if owner in self.labels:
            kept |= {"message": REDACTED, "traceback": ""}
        return kept

    def data(self, data: Any, *, step: str = "") -> Any:
        """The data of a history entry, plain and masked."""
        if not isinstance(data, dict):
            return shown(data)
        kept = dict(data)
        if isinstance(kept.get("error"), dict):
            kept["error"] = self.error(kept["error"], step=step)
        if isinstance(kept.get("blocked"), str):
            kept["blocked"] = self.text(kept["blocked"])
        if step in self.labels and kept.get("output") is not None:
            kept["output"] = REDACTED
        return shown(kept)


def error_of(instance: WorkflowInstance, veil: Veil | None = None) -> dict[str, Any] | None:
    """What ended the instance, masked, or None. One query where no veil is given and there is an error."""
    error = instance.error
    if error is None:
        return None
    return (veil or Veil.over(instance)).error(error)
