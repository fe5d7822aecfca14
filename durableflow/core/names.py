"""The rules for names (api.md, design 12): what they may hold, how long they are, how they are shown.

Workflow names, instance ids and event types stand in URLs, command lines and admin pages, so whatever is accepted
works in all of them (case SEC-14). Wrong characters are a ValueError with the rule, a wrong size is a
LimitExceeded; nothing is ever cut or replaced.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from durableflow.core.exceptions import LimitExceeded

MAX_WORKFLOW_NAME: Final = 64
MAX_INSTANCE_ID: Final = 100
MAX_STEP_NAME: Final = 256
MAX_EVENT_TYPE: Final = 100

LATEST: Final = "latest"
"""Stands for the newest instance on the command line, so no instance may be called so."""

NAME_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
"""Workflow names, instance ids and event types, without their length: for URL patterns and schemas."""

_NAME: Final = re.compile(NAME_PATTERN)
_RULE: Final = "Allowed are the letters A-Z and a-z, digits, '_' and '-', not starting with '-'."
# Control characters, lone surrogates, line and paragraph separators. Format characters stay: scripts need joiners.
_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def check_instance_id(value: str) -> str:
    """The id itself, as a plain str: 1 to 100 characters of the rule, not `latest`. Raises ValueError,
    LimitExceeded."""
    name = _check_name("instance_id", value, MAX_INSTANCE_ID)
    if name == LATEST:
        raise ValueError(f"instance_id must not be {LATEST!r}: the command line uses it for the newest instance.")
    return name


def check_workflow_name(value: str) -> str:
    """The name itself, as a plain str: 1 to 64 characters of the rule. Raises ValueError, LimitExceeded."""
    return _check_name("workflow name", value, MAX_WORKFLOW_NAME)


def check_event_type(value: str) -> str:
    """The type itself, as a plain str: 1 to 100 characters of the rule. Raises ValueError, LimitExceeded."""
    return _check_name("event type", value, MAX_EVENT_TYPE)


def check_step_name(value: str) -> str:
    """The name itself, as a plain str: 1 to 256 characters of any script, none of them a control character.

    Raises ValueError, LimitExceeded.
    """
    name = _check_text("step name", value, MAX_STEP_NAME, "It needs 1 to 256 characters.")
    if not name.isprintable():  # the quick answer for nearly every name
        for position, character in enumerate(name):
            if unicodedata.category(character) in _REFUSED_CATEGORIES:
                raise ValueError(
                    f"The step name {name!a} has the control character U+{ord(character):04X} at position {position}. "
                    "Every script is allowed, control characters and line breaks are not."
                )
    return name


def check_text(what: str, value: object, maximum: int | None = None) -> str:
    """A free text that every database can store, of ``maximum`` characters at most. Raises ValueError, LimitExceeded."""
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a str, not {value!r}.")
    if _UNSTORABLE.search(value):
        raise ValueError(f"{what} has a NUL character or a lone surrogate, which databases cannot store.")
    if maximum is not None and len(value) > maximum:
        raise LimitExceeded.of(what, len(value), maximum, unit="characters")
    return str.__str__(value)


def kebab(class_name: str) -> str:
    """The default name of a workflow class: `NightlyExport` is `nightly-export`, `HTTPSync` is `http-sync`."""
    return _WORD_START.sub("-", class_name).lower()


def _check_name(what: str, value: object, maximum: int) -> str:
    name = _check_text(what, value, maximum, _RULE)
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"The {what} {name!a} has characters that are not allowed. {_RULE}")
    return name


def _check_text(what: str, value: object, maximum: int, rule: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"The {what} must be a str, not {type(value).__name__}. {rule}")
    name = str.__str__(value)
    if not name:
        raise ValueError(f"The {what} must not be empty. {rule}")
    if len(name) > maximum:
        raise LimitExceeded.of(f"The {what}", len(name), maximum, unit="characters")
    return name
