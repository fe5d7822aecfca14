"""Errors as they are stored: without the engine's own frames, and without what sensitive steps have returned (case
SEC-09)."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final

from durableflow.core import failures
from durableflow.core.redact import Secrets

OWN_MODULES: Final = ("durableflow.engine.", "durableflow.authoring.")


class StepSecrets(Secrets):
    """What the sensitive steps of one execution have returned."""

    def describe(self, error: BaseException, step: str | None, sensitive: bool) -> dict[str, Any]:
        """An error as it is stored, masked in what is shown of it. Of a sensitive step it is kept as it is: its record
        masks the whole."""
        # Not by assignment: a frozen dataclass refuses that.
        error.with_traceback(_without_engine(error.__traceback__))
        if step is None:
            return self.masked(failures.describe(error))
        described = failures.describe(error, step=step)
        if not sensitive:
            for key in ("message", "traceback"):
                described[key] = self.mask(described[key])
        return described

    def masked(self, described: dict[str, Any]) -> dict[str, Any]:
        """What ended an instance, masked with its causes and members: a parent, who knows none of these secrets, shows them as
        its own. What rebuilds an error is left out where it cannot be masked; ``run`` is over and needs it no more."""
        shown = dict(described)
        for key in ("message", "traceback"):
            shown[key] = self.mask(described[key])
        if "args" in shown and (args := self.mask_json(shown.pop("args"))) is not None:
            shown["args"] = args
        if "attrs" in shown:
            attrs = {name: self.mask_json(text) for name, text in shown["attrs"].items()}
            shown["attrs"] = {name: text for name, text in attrs.items() if text is not None}
        if "cause" in shown:
            shown["cause"] = self.masked(shown["cause"])
        if "errors" in shown:
            shown["errors"] = [self.masked(member) for member in shown["errors"]]
        return shown


def _without_engine(traceback: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that lead from the engine to the author's code: they help nobody who reads the error."""
    while traceback is not None and traceback.tb_next is not None:
        if not traceback.tb_frame.f_globals.get("__name__", "").startswith(OWN_MODULES):
            break
        traceback = traceback.tb_next
    return traceback
