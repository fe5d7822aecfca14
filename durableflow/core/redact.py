"""What no screen and no API shows: values under the keys that the project names in ``DURABLEFLOW["REDACT"]`` (api.md,
case SEC-09).

Values are hidden where they leave through a face, never where they are stored: a workflow always gets the real ones.
"""

from __future__ import annotations

from typing import Any

from durableflow.core.conf import get_settings
from durableflow.core.failures import REDACTED
from durableflow.core.plain import to_plain


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
