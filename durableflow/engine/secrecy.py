"""Errors as they are stored: without the engine's own frames, and without what sensitive steps have returned (case
SEC-09)."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from types import TracebackType
from typing import Any, Final
from uuid import UUID

from durableflow.core import failures

OWN_MODULES: Final = ("durableflow.engine.", "durableflow.authoring.")
MIN_SECRET: Final = 6  # shorter texts occur by chance


class Secrets:
    """What the sensitive steps of one execution have returned."""

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def hide(self, value: Any) -> None:
        """Remember a value, so that no later text shows what is in it."""
        self._texts.update(text for text in _texts(value) if len(text) >= MIN_SECRET)

    def mask(self, text: str) -> str:
        """A text that is shown outside ``run``, without the secrets."""
        for secret in sorted(self._texts, key=len, reverse=True):  # a secret may contain another one
            text = text.replace(secret, failures.REDACTED)
        return text

    def describe(self, error: BaseException, step: str | None, sensitive: bool) -> dict[str, Any]:
        """An error as it is stored, masked in what is shown of it. Of a sensitive step it is kept as it is: its record
        masks the whole."""
        # Not by assignment: a frozen dataclass refuses that.
        error.with_traceback(_without_engine(error.__traceback__))
        described = failures.describe(error) if step is None else failures.describe(error, step=step)
        if not sensitive:
            for key in ("message", "traceback"):
                described[key] = self.mask(described[key])
        return described


def _without_engine(traceback: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that lead from the engine to the author's code: they help nobody who reads the error."""
    while traceback is not None and traceback.tb_next is not None:
        if not traceback.tb_frame.f_globals.get("__name__", "").startswith(OWN_MODULES):
            break
        traceback = traceback.tb_next
    return traceback


def _texts(value: Any) -> Iterator[str]:
    """What a message would quote of a value."""
    if isinstance(value, str | int | Decimal | UUID) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _texts(item)
