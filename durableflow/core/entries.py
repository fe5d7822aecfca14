"""The types of history entries, and which of them one stored entry stands for (design 2, "HistoryEntry").

A step that succeeds at once is stored as one entry, ``step_completed``, that knows its start; a reader sees the reference's
sequence ``step_started``, ``attempt_started``, ``attempt_completed``, ``step_completed``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

HISTORY_TYPES: Final = (
    "workflow_queued",
    "workflow_started",
    "workflow_running",
    "workflow_waiting",
    "workflow_waiting_for_pause",
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


def types_of(type: str, kind: str, data: Any) -> tuple[str, ...]:
    """What a stored entry of this type, step kind and data stands for, in the order in which it happened; its own type is
    the last."""
    known = data if isinstance(data, dict) else {}
    started, attempt = known.get("started"), known.get("attempt")
    found: list[str] = []
    if kind in ATTEMPTED and type in SOURCES["attempt_started"]:
        if started is not None:
            found += ["step_started", "attempt_started"] if attempt == 1 else ["attempt_started"]
        if type == "step_completed" and attempt is not None:
            found.append("attempt_completed")
    return (*found, type)


def stored_types(types: Collection[str]) -> list[str]:
    """The stored types that may stand for one of ``types``, sorted."""
    return sorted({source for type in types for source in (type, *SOURCES.get(type, ()))})
