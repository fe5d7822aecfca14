"""The history of an instance, with stored entries expanded to what happened one by one (design 2, "HistoryEntry").

A step that succeeds at once is stored as one entry that knows its start. A reader sees ``step_started``,
``attempt_started``, ``attempt_completed``, ``step_completed``; all four have the stored entry's id, and a page never
separates them. So the last id that a reader has seen is a cursor: ids within an instance are committed in rising order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from durableflow.models import HistoryEntry, WorkflowInstance
from durableflow.timeline.masking import Veil

HISTORY_TYPES: Final = (
    "workflow_queued",
    "workflow_started",
    "workflow_running",
    "workflow_waiting",
    "workflow_paused",
    "workflow_completed",
    "workflow_errored",
    "workflow_terminated",
    "rollback_started",
    "rollback_step_completed",
    "rollback_step_errored",
    "rollback_attempt_errored",
    "rollback_attempt_lost",
    "rollback_completed",
    "rollback_errored",
    "step_started",
    "step_completed",
    "step_errored",
    "attempt_started",
    "attempt_completed",
    "attempt_errored",
    "attempt_lost",
    "sleep_started",
    "sleep_completed",
    "wait_started",
    "wait_completed",
    "wait_timed_out",
    "wait_cancelled",
    "event_received",
    "decided",
    "child_started",
    "child_finished",
    "race_completed",
)
# Which stored types a reader's type may come from, beside itself.
SOURCES: Final = {
    "step_started": ("step_completed", "attempt_errored", "attempt_lost"),
    "attempt_started": ("step_completed", "attempt_errored", "attempt_lost"),
    "attempt_completed": ("step_completed",),
}
# Kinds of durable calls that have attempts.
ATTEMPTED: Final = frozenset({"", "do", "notify"})


@dataclass(frozen=True, kw_only=True)
class HistoryView:
    """One thing that happened.

    ``id``: of the stored entry, the cursor. ``data``: plain and masked, or None. ``actor``: name, '' for the engine.
    """

    id: int
    run_number: int
    type: str
    step: str
    kind: str
    data: Any
    actor: str
    via: str
    reason: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class HistoryPage:
    """Some history.

    ``last_id``: pass it as ``after`` to go on, also when ``entries`` is empty; ``has_more``: whether there was more.
    """

    entries: list[HistoryView]
    last_id: int
    has_more: bool


def history(
    instance: WorkflowInstance, after: int = 0, types: Collection[str] | None = None, limit: int | None = None
) -> list[HistoryView]:
    """The entries of ``history_page``."""
    return history_page(instance, after, types, limit).entries


def history_page(
    instance: WorkflowInstance, after: int = 0, types: Collection[str] | None = None, limit: int | None = None
) -> HistoryPage:
    """What happened after the stored entry ``after``, oldest first, in all runs. Two queries.

    ``types``: only these, of ``HISTORY_TYPES``. ``limit``: of stored entries; the expansion of the last one is always
    whole.
    """
    rows = instance.history.filter(id__gt=after).order_by("id")
    if types is not None:
        stored = {source for type in types for source in (type, *SOURCES.get(type, ()))}
        rows = rows.filter(type__in=sorted(stored))
    found = list(rows if limit is None else rows[: limit + 1])
    has_more = limit is not None and len(found) > limit
    found = found[:limit]
    veil = Veil.over(instance)
    entries = [view for row in found for view in expand(row, veil) if types is None or view.type in types]
    return HistoryPage(entries=entries, last_id=found[-1].pk if found else after, has_more=has_more)


def expand(entry: HistoryEntry, veil: Veil) -> Iterator[HistoryView]:
    """What one stored entry says, in the order in which it happened."""
    data = entry.data if isinstance(entry.data, dict) else {}
    started, attempt = data.get("started"), data.get("attempt")
    if entry.kind in ATTEMPTED and entry.type in SOURCES["attempt_started"]:
        number = {"attempt": attempt}
        if started is not None:
            if attempt == 1:
                yield _view(entry, veil, type="step_started", at=_moment(started), data=None)
            yield _view(entry, veil, type="attempt_started", at=_moment(started), data=number)
        if entry.type == "step_completed" and attempt is not None:
            yield _view(entry, veil, type="attempt_completed", data=number)
    yield _view(entry, veil)


def _view(entry: HistoryEntry, veil: Veil, **changes: Any) -> HistoryView:
    values: dict[str, Any] = {
        "id": entry.pk,
        "run_number": entry.run_number,
        "type": entry.type,
        "step": entry.step,
        "kind": entry.kind,
        "data": entry.data,
        "actor": entry.actor_name,
        "via": entry.via,
        "reason": entry.reason,
        "at": entry.at,
        **changes,
    }
    values["data"] = veil.data(values["data"], step=entry.step)
    return HistoryView(**values)


def _moment(started: Any) -> datetime:
    return started if isinstance(started, datetime) else datetime.fromisoformat(started)
