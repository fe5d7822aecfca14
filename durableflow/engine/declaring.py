"""Rows from ``Meta.schedules``: written when a broker, a drain or the testing kit first looks, once per process and change of its
code, never when an app gets ready (design 9).

The code owns cron line, zone, params, catch-up and overlap of a declared row; ``enabled`` is for staff. A row whose declaration is
gone is deleted; those of workflows that this code does not know, and those that staff have added, are left alone. Of two
versions of the code the one whose process was started last says what holds.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

from durableflow.authoring.schedule import Schedule
from durableflow.core import clock, codec, registry
from durableflow.core.cron import next_slot
from durableflow.core.schedules import check_catch_up
from durableflow.core.transactions import write_transaction
from durableflow.models import WorkflowInstance, WorkflowSchedule
from durableflow.models import schedule_verbs as verbs

logger = logging.getLogger("durableflow.engine")

_OWNED: Final = ("workflow", "cron", "timezone", "params", "catch_up", "overlap")
_TIMING: Final = ("workflow", "cron", "timezone")
Wanted = dict[tuple[str, str], dict[str, Any]]

# What this process has declared, by database: the options of its workflows at that time.
_done: dict[tuple[int, str], list[Any]] = {}
_silent = False


def silence() -> None:
    """This process declares nothing from now on (for test suites, whose drains should find only what a test made)."""
    global _silent
    _silent = True


def declare_if_new(using: str) -> None:
    """Declare what this process's code says, unless it has done so since that changed."""
    key, options = (os.getpid(), using), registry.options()
    if _silent or _done.get(key) == options:
        return
    declare(using)
    _done[key] = options


def declare(using: str) -> None:
    """Bring the rows of declared schedules to what ``Meta.schedules`` of the known workflows says. Reads first, and writes only
    what has changed, in one transaction."""
    wanted = _wanted()
    names = [name for _, cls in registry.items() for name in cls.options.names]
    if not _differ(wanted, _stored(using, names), names):
        return
    with write_transaction(using):
        stored = _stored(using, names, lock=True)
        now = clock.read(using)
        held = _held(stored)
        gone = [row for row in stored if row.declared and (_key(row) not in wanted or held[_key(row)] is not row)]
        _delete(using, gone)
        missing = []
        for key, values in wanted.items():
            row = held.get(key)
            if row is None:
                missing.append(_new(key, values, now))
            elif not row.declared:
                logger.warning(
                    "The schedule %s of %s is not declared: staff have added one of the same name. Rename either.",
                    key[1],
                    key[0],
                )
            elif (changed := _changed(row, values)) or _stuck(row):
                _update(using, row, values, changed, now)
        # Another process may have made one in the same moment.
        WorkflowSchedule._base_manager.using(using).bulk_create(missing, ignore_conflicts=True)
        verbs.tell(using)


def _wanted() -> Wanted:
    return {
        (name, schedule.name): _values(name, schedule)
        for name, cls in registry.items()
        for schedule in cls.options.schedules
    }


def _values(workflow: str, schedule: Schedule) -> dict[str, Any]:
    return {
        "workflow": workflow,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "params": codec.loads(codec.dumps(schedule.params)),  # as it will be read
        "catch_up": check_catch_up(schedule.catch_up),
        "overlap": str(schedule.overlap),
    }


def _stored(using: str, names: list[str], *, lock: bool = False) -> list[WorkflowSchedule]:
    rows = WorkflowSchedule._base_manager.using(using).filter(workflow__in=names).order_by("pk")
    return list(rows.select_for_update(no_key=True) if lock else rows)


def _key(row: WorkflowSchedule) -> tuple[str, str]:
    """Under the present name of its workflow: a renamed one keeps its rows, and that they are paused."""
    cls = registry.find(row.workflow)
    return (row.workflow if cls is None else cls.options.name, row.name)


def _held(stored: list[WorkflowSchedule]) -> dict[tuple[str, str], WorkflowSchedule]:
    """The row that counts for each key. A rename that is rolled back, or deployed bit by bit, leaves one under each name: the one
    under the present name, which no other can get."""
    held: dict[tuple[str, str], WorkflowSchedule] = {}
    for row in stored:
        key = _key(row)
        if key not in held or row.workflow == key[0]:
            held[key] = row
    return held


def _differ(wanted: Wanted, stored: list[WorkflowSchedule], names: list[str]) -> bool:
    declared = [row for row in stored if row.declared]
    if sorted(map(_key, declared)) != sorted(wanted):
        return True
    return any(_changed(row, wanted[_key(row)]) or _stuck(row) for row in declared)


def _changed(row: WorkflowSchedule, values: dict[str, Any]) -> list[str]:
    return [name for name in _OWNED if not verbs.same(getattr(row, name), values[name])]


def _stuck(row: WorkflowSchedule) -> bool:
    """What could not fire is tried anew by each process that starts: it may have been that process's fault."""
    return bool(row.enabled and row.problem)


def _new(key: tuple[str, str], values: dict[str, Any], now: Any) -> WorkflowSchedule:
    slot = next_slot(values["cron"], values["timezone"], now)
    return WorkflowSchedule(name=key[1], declared=True, next_slot=slot, look_at=slot, **values)


def _update(using: str, row: WorkflowSchedule, values: dict[str, Any], changed: list[str], now: Any) -> None:
    new = {name: values[name] for name in changed}
    if row.enabled and (row.problem or any(name in _TIMING for name in changed)):
        new["next_slot"] = new["look_at"] = next_slot(values["cron"], values["timezone"], now)
        new |= {"problem": "", "buffered_slot": None}
        if row.buffered_slot is not None:
            row.drop_buffered(row.buffered_slot, using)
    WorkflowSchedule._base_manager.using(using).filter(pk=row.pk).update(**new)


def _delete(using: str, gone: list[WorkflowSchedule]) -> None:
    """The rows of declarations that are gone; their instances keep the text of the cron line."""
    for row in gone:
        # In the order in which everybody locks instances (design 4, "Lock order").
        instances = WorkflowInstance._base_manager.using(using).filter(schedule=row.pk).order_by("pk")
        list(instances.select_for_update(no_key=True).values_list("pk"))
    WorkflowSchedule._base_manager.using(using).filter(pk__in=[row.pk for row in gone]).delete()
