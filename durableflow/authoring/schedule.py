"""``Schedule``: when a workflow starts by itself, declared in ``Meta.schedules`` (design 9; api.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final, Literal

from durableflow.core import codec
from durableflow.core.conf import get_settings
from durableflow.core.cron import check_cron, check_zone
from durableflow.core.schedules import check_catch_up, check_overlap, check_schedule_name, default_name

MAX_SCHEDULES: Final = 100


@dataclass(frozen=True)
class Schedule:
    """One cron line of a workflow: each slot, a moment that it means, starts one instance.

    - ``cron``: five fields, minute, hour, day of the month, month, day of the week, read as local time of ``timezone`` (an IANA
      name). A line that names minutes and hours fires once per local day: in a gap of the clock at its end, of a time that comes
      twice at the first. One with ``*`` (or ``*/n``) as minute or hour follows real time.
    - ``params``: of each instance.
    - ``name``: of the row that staff see, and the beginning of the ids of its instances; default "schedule", then "schedule-2" and
      so on by the position in ``Meta.schedules``. Give one, so that a pause by staff belongs to it wherever it stands.
    - ``catch_up``: what becomes of slots that nobody was there to start (60 s late or more): "latest" starts only the newest slot
      that is due, "none" none of them, a number that many of the newest (1 to 100).
    - ``overlap``: when an earlier instance of this schedule, or one that was started by hand, has not ended, be it that it waits or
      is paused: "allow" starts another beside it, "skip" skips the slot, "buffer_one" starts one slot when it ends.

    Skipped slots are recorded with the reason. Raises ValueError that names the field, for params that cannot be stored
    CodecError and LimitExceeded.
    """

    cron: str
    _: KW_ONLY
    timezone: str = "UTC"
    params: Any = None
    name: str = ""
    catch_up: Literal["none", "latest"] | int = "latest"
    overlap: Literal["allow", "skip", "buffer_one"] = "allow"

    def __post_init__(self) -> None:
        object.__setattr__(self, "cron", check_cron(self.cron))  # frozen
        check_zone(self.timezone)
        check_catch_up(self.catch_up)
        check_overlap(self.overlap)
        if self.name != "":
            check_schedule_name(self.name)
        codec.dumps(self.params, what="params of the schedule", max_bytes=get_settings().LIMITS.params)


def check_schedules(given: object) -> tuple[Schedule, ...]:
    """What ``Meta.schedules`` says, each with a name. A text is the cron line of a schedule. Raises ValueError."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"schedules must be a list of Schedule(...), not {given!r}.")
    if len(given) > MAX_SCHEDULES:
        raise ValueError(f"schedules has {len(given)} entries; at most {MAX_SCHEDULES} are allowed.")
    found = tuple(_named(position, entry) for position, entry in enumerate(given))
    names = [schedule.name for schedule in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"Two of the schedules are named {name!r}. Give each a name of its own.")
    return found


def _named(position: int, entry: object) -> Schedule:
    schedule = Schedule(entry) if isinstance(entry, str) else entry
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedules must be a list of Schedule(...), with {entry!r} in it.")
    return schedule if schedule.name else replace(schedule, name=default_name(position))
