"""What no screen and no API shows: values under the keys that the project names in ``DURABLEFLOW["REDACT"]``, and texts
that quote what a sensitive step has returned (api.md, case SEC-09).

A workflow always gets the real values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from durableflow.core.conf import get_settings
from durableflow.core.failures import REDACTED
from durableflow.core.fields import Unreadable
from durableflow.core.plain import to_plain

SHORTEST_SECRET: Final = 4
"""Shorter texts occur by chance, and hiding them would make every text unreadable."""


def redact(value: Any) -> Any:
    """``value`` (plain JSON) with ``[REDACTED]`` in place of whatever stands under a redacted key, at any depth.

    Keys are compared without regard to case. Fresh containers where something is hidden; the argument is never changed.
    """
    hidden = frozenset(name.casefold() for name in get_settings().REDACT)
    return _redact(value, hidden) if hidden else value


def shown(value: Any) -> Any:
    """A stored value as people and programs may see it: plain JSON, redacted.

    Never raises for a value that was read from the database.
    """
    return redact(to_plain(value))


def _redact(value: Any, hidden: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {
            key: REDACTED if str(key).casefold() in hidden else _redact(member, hidden) for key, member in value.items()
        }
    if isinstance(value, list):
        return [_redact(member, hidden) for member in value]
    return value


class Secrets:
    """Values of which no text may show a part."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._texts: set[str] = set()
        for value in values:
            self.add(value)

    def add(self, value: Any) -> None:
        """Hide from now on what is in ``value``."""
        self._texts.update(text for text in _texts(value) if len(text) >= SHORTEST_SECRET)

    def mask_json(self, text: str) -> str | None:
        """The same for a JSON text, in which a secret stands as JSON writes it; None if it is none any more then (a number was
        hidden)."""
        masked = self.mask(text)
        for secret in sorted(self._texts, key=len, reverse=True):
            masked = masked.replace(json.dumps(secret)[1:-1], REDACTED)
        try:
            json.loads(masked)
        except ValueError:
            return None
        return masked

    def mask(self, text: str) -> str:
        """``text`` with ``[REDACTED]`` in place of every secret."""
        for secret in sorted(self._texts, key=len, reverse=True):  # a secret may contain another one
            text = text.replace(secret, REDACTED)
        return text


def _texts(value: Any) -> Iterator[str]:
    """The texts, numbers and bytes in a value, as an error's message would quote them."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for member in value:
            yield from _texts(member)
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, str | int | float | Decimal | UUID) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, Unreadable):
        yield value.text
