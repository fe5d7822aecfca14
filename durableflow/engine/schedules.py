"""Schedules as part of the look: rows from ``Meta.schedules``, and whatever is due of them (design 9).

A broker and a drain ask when the next slot is due at most each second, or when its moment has come: no claim costs a statement
more. A row whose workflow this process does not know is left to those that do, and nothing is ever imported by what is stored
(case SEC-08).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Final

from durableflow.core import clock
from durableflow.engine.declaring import declare_if_new
from durableflow.engine.firing import fire
from durableflow.engine.sql import is_postgres, moment, run
from durableflow.engine.verdicts import known
from durableflow.models import WorkflowSchedule
from durableflow.models import schedule_verbs as verbs

ASK_EVERY: Final = 1.0
"""Seconds: other processes save schedules too, and clocks are set."""
AT_ONCE: Final = 100
PATIENCE: Final = 0.5
"""Seconds for which one look fires: thousands may be due at midnight, and what they start is waited for as well."""
_TABLE: Final = WorkflowSchedule._meta.db_table


@dataclass
class _Seen:
    """When this process has asked, and when the next slot is due, both by the monotonic clock (None: none is)."""

    asked: float
    due: float | None
    changed: int
    code: Any


_seen: dict[tuple[int, str], _Seen] = {}


def look(using: str) -> None:
    """Fire what is due, if it is time to ask. Raises ``django.db`` errors that pass by themselves."""
    if not _time_to_ask(using):
        return
    declare_if_new(using)
    end = time.monotonic() + PATIENCE
    changed, code = verbs.changed(), known().code
    while True:
        asked = time.monotonic()
        found = upcoming(using)
        due = [pk for pk, seconds in found if seconds <= 0]
        fired = 0
        for pk in due:
            fired += fire(using, pk)
            if time.monotonic() > end:
                break
        if not fired or time.monotonic() > end:
            break
    later = [seconds for _, seconds in found if seconds > 0]
    # What somebody else fires at this moment is looked at with the next question.
    soonest = asked if fired else asked + later[0] if later else None
    _seen[os.getpid(), using] = _Seen(asked, soonest, changed, code)


def seconds_until_next(using: str) -> float | None:
    """Seconds until the next slot that this process knows of, never less than 0; None: it knows of none. Asks nobody."""
    seen = _seen.get((os.getpid(), using))
    return None if seen is None or seen.due is None else max(0.0, seen.due - time.monotonic())


def upcoming(using: str) -> list[tuple[int, float]]:
    """The schedules of workflows that this process knows which are looked at next: primary key and seconds from now, the first
    hundred."""
    # The condition is that of the index.
    where = f"FROM {_TABLE} WHERE enabled AND look_at IS NOT NULL AND {known().named} ORDER BY look_at LIMIT {AT_ONCE}"
    if is_postgres(using):
        now = clock.postgres("clock")
        return [
            (pk, seconds)
            for pk, seconds in run(using, f"SELECT id, extract(epoch FROM look_at - {now})::float8 {where}")
        ]
    at = clock.host_now()
    rows = [(pk, moment(look_at)) for pk, look_at in run(using, f"SELECT id, look_at {where}")]
    return [(pk, (look_at - at).total_seconds()) for pk, look_at in rows if look_at is not None]


def _time_to_ask(using: str) -> bool:
    seen, now = _seen.get((os.getpid(), using)), time.monotonic()
    if seen is None or clock.stopped() is not None or now - seen.asked >= ASK_EVERY:
        return True
    return (seen.due is not None and now >= seen.due) or seen.changed != verbs.changed() or seen.code != known().code
