"""The history of an instance, with stored entries expanded to what happened one by one (design 2, "HistoryEntry").

A step that succeeds at once is stored as one entry that knows its start. A reader sees ``step_started``,
``attempt_started``, ``attempt_completed``, ``step_completed``; all four have the stored entry's id, and a page never
separates them. So the last id that a reader has seen is a cursor: ids within an instance are committed in rising order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from durableflow.core.entries import HISTORY_TYPES, stored_types
from durableflow.models import HistoryEntry, WorkflowInstance
from durableflow.timeline.masking import Veil

__all__ = ["HISTORY_TYPES", "HistoryPage", "HistoryView", "expand", "history", "history_page", "told"]


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
        rows = rows.filter(type__in=stored_types(types))
    found = list(rows if limit is None else rows[: limit + 1])
    has_more = limit is not None and len(found) > limit
    found = found[:limit]
    entries = [view for views in told(instance, found, types) for view in views]
    return HistoryPage(entries=entries, last_id=found[-1].pk if found else after, has_more=has_more)


def told(
    instance: WorkflowInstance, entries: Iterable[HistoryEntry], types: Collection[str] | None = None
) -> list[list[HistoryView]]:
    """What each of these stored entries says, of ``types`` alone if they are given. One query, whatever their number: what
    sensitive steps have returned by now is masked."""
    veil = Veil.over(instance)
    return [[view for view in expand(row, veil) if types is None or view.type in types] for row in entries]


def expand(entry: HistoryEntry, veil: Veil) -> Iterator[HistoryView]:
    """What one stored entry says, in the order in which it happened."""
    data = entry.data if isinstance(entry.data, dict) else {}
    *before, _own = entry.types
    for type in before:
        at = entry.at if type == "attempt_completed" else _moment(data["started"])
        yield _view(
            entry, veil, type=type, at=at, data=None if type == "step_started" else {"attempt": data.get("attempt")}
        )
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
