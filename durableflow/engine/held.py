"""Rows that are held by code that may not run them, found by code that may (design 6 "Engine failures", case ENG-13).

In a rolling deploy workers with old and new code look at the same rows. One that does not know a workflow holds the row,
and does not look again for a while. One that knows it need not wait for that: it asks for held rows that it may run at
its first look, when its code has changed, and each few seconds.
"""

from __future__ import annotations

from typing import Final

from durableflow.engine.pulse import Pulse
from durableflow.engine.sql import INSTANCE, run
from durableflow.engine.taking import Found, held_here
from durableflow.engine.verdicts import known_code

EVERY: Final = 2.0
"""Seconds between two looks at held rows."""


_pulse = Pulse(EVERY)


def found(using: str, limit: int) -> Found | None:
    """Held rows that this process may run, up to ``limit``; None where it is too early to ask or there are none."""
    if not _pulse.due(using, known_code()):
        return None
    pks = waiting(using, limit)
    if not pks:
        return None
    _pulse.again(using)  # there may be more of them
    return Found(pks=tuple(pks), held=True)


def waiting(using: str, limit: int = 1) -> list[int]:
    """The keys of held rows that this process may run, the oldest instances first. Takes no lock."""
    sql = f"SELECT id FROM {INSTANCE} WHERE {held_here()} ORDER BY workflow, id LIMIT {int(limit)}"
    return [pk for (pk,) in run(using, sql)]
