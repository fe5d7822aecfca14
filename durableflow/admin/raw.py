"""Large stored values: pages show them only where they are small, and link to the whole as JSON."""

from __future__ import annotations

import re
from typing import Any, Final

from django.db.models import QuerySet
from django.db.models.functions import Length, Substr
from django.utils.safestring import SafeString

from durableflow.core import codec
from durableflow.core.exceptions import CodecError
from durableflow.core.failures import REDACTED
from durableflow.pages.values import cut_note, json_html
from durableflow.timeline import shown

INLINE: Final = 4_000
"""Stored characters up to which a value in a list of many stands on the page itself."""
ERROR_TYPE: Final = re.compile(r'\{"type": ?"([^"\\]{1,250})"')
HINT: Final = 300
HINT_SHOWN: Final = 60


def with_start(queryset: QuerySet[Any], column: str, size: int = INLINE) -> QuerySet[Any]:
    """Rows without the value in ``column`` but with the start of its stored text (``<column>_start``) and its length."""
    annotations: dict[str, Any] = {f"{column}_start": Substr(column, 1, size), f"{column}_size": Length(column)}
    found: QuerySet[Any] = queryset.defer(column).annotate(**annotations)
    return found


def value_html(row: Any, column: str, full_url: str, *, sensitive: bool = False) -> SafeString | str:
    """The value whose start ``with_start`` read; '' where there is none. Of a sensitive step only a mask."""
    text, size = getattr(row, f"{column}_start"), getattr(row, f"{column}_size")
    if text is None:
        return ""
    if sensitive:
        return json_html(REDACTED)
    if size > len(text):
        return cut_note(full_url)
    return json_html(shown(_read(text)), full_url)


def hint(text: str | None, size: int | None) -> str:
    """A stored progress in one short line for lists: ``charged``, ``state: charged, done: 3``."""
    if text is None:
        return ""
    if (size or 0) > len(text):
        return "…"
    value = shown(_read(text))
    if isinstance(value, dict):
        line = ", ".join(f"{key}: {_brief(member)}" for key, member in value.items())
    else:
        line = _brief(value)
    return f"{line[:HINT_SHOWN]}…" if len(line) > HINT_SHOWN else line


def error_class(text: str | None) -> str:
    """The class of a stored error by the start of its text, which begins with it: ``CardDeclined``; '' where it says none."""
    found = ERROR_TYPE.match(text or "")
    return found[1].rpartition(".")[2] if found else ""


def _brief(value: Any) -> str:
    return "…" if isinstance(value, dict | list) else str(value)


def _read(text: str) -> Any:
    try:
        return codec.loads(text)
    except CodecError as error:
        return f"({error})"
