"""Who has paused an instance, why, and what its clock still holds (design 6, "Pause"; case TIM-09)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from durableflow.core import clock
from durableflow.core.statuses import STEP_FINISHED, Status, StepKind, StepStatus
from durableflow.models import WorkflowInstance
from durableflow.models.lifecycle import moved_deadline
from durableflow.models.step import step_label

MOST_TIMERS: Final = 200
ASKED: Final = ("workflow_paused", "workflow_waiting_for_pause")


@dataclass(frozen=True, kw_only=True)
class TimerView:
    """Something that ends by itself. ``label``: its step, '' for the whole instance (``max_duration``). ``at``: when it ends,
    of a paused instance if it was resumed now. ``left``: what it has left, None where it keeps its date (``sleep_until``)."""

    label: str
    kind: str
    at: datetime
    left: timedelta | None


@dataclass(frozen=True, kw_only=True)
class PauseView:
    """A pause that somebody has asked for, or a block. ``since``: when it took effect, None while bodies still run; ``asked``:
    when it was asked for. ``by``, ``via`` and ``reason``: of whoever asked, '' where nobody has."""

    since: datetime | None
    asked: datetime | None
    by: str
    via: str
    reason: str
    running: tuple[str, ...]
    timers: tuple[TimerView, ...]


def pause_of(instance: WorkflowInstance) -> PauseView | None:
    """The pause in which the instance is, or that it is about to make; None where it is in none. At most three queries.

    ``running``: of one that is about to pause, the steps whose bodies are known to run still.
    """
    if instance.status not in (Status.PAUSED, Status.WAITING_FOR_PAUSE):
        return None
    pausing = instance.status == Status.WAITING_FOR_PAUSE
    entry = None if instance.blocked else _entry(instance)
    return PauseView(
        since=None if pausing else instance.paused_at,
        asked=None if entry is None else entry.at,
        by="" if entry is None else entry.actor_name,
        via="" if entry is None else entry.via,
        reason="" if entry is None else entry.reason,
        running=tuple(_running(instance)) if pausing else (),
        timers=tuple(timers_of(instance)),
    )


def timers_of(instance: WorkflowInstance) -> list[TimerView]:
    """What ends by itself in the present run, the next first, and how long it has left: from the pause on where the instance is
    paused, else from now. One query."""
    now = instance.paused_at or clock.host_now()
    rows: Any = instance.steps.filter(run_number=instance.run_number, wake_at__isnull=False)
    rows = rows.exclude(status__in=sorted(STEP_FINISHED)).order_by("wake_at", "seq")
    found = [
        TimerView(
            label=step_label(scope, name, count),
            kind=kind,
            at=at if kind == StepKind.SLEEP_UNTIL else clock.running_on(at, instance.paused_at) or at,
            left=None if kind == StepKind.SLEEP_UNTIL else max(at - now, timedelta()),
        )
        for scope, kind, name, count, at in rows.values_list("scope", "kind", "name", "count", "wake_at")[:MOST_TIMERS]
    ]
    if instance.deadline_at is not None and instance.status not in (Status.COMPLETE, Status.ERRORED, Status.TERMINATED):
        at = deadline_of(instance) or instance.deadline_at
        whole = TimerView(label="", kind="", at=at, left=max(instance.deadline_at - now, timedelta()))
        found.append(whole)
    return found


def deadline_of(instance: WorkflowInstance) -> datetime | None:
    """When the present run has to have ended (``max_duration``); while the instance is paused, if it was resumed now."""
    paused = instance.paused_at
    return instance.deadline_at if paused is None else moved_deadline(instance, paused, clock.host_now())


def _entry(instance: WorkflowInstance) -> Any:
    """Who asked last: where bodies had to end first, the entry of the pause itself names them too."""
    entries = instance.history.filter(run_number=instance.run_number, type__in=ASKED).order_by("-id")
    return entries.only("id", "actor_name", "via", "reason", "at").first()


def _running(instance: WorkflowInstance) -> list[str]:
    rows = instance.steps.filter(run_number=instance.run_number, status=StepStatus.STARTED).order_by("seq")
    return [step_label(*row) for row in rows.values_list("scope", "name", "count")[:MOST_TIMERS]]
