"""Documents for programs: the names are those of the REST API, without its addresses."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from durableflow import timeline
from durableflow.core.redact import shown
from durableflow.management.choosing import EVERYBODY
from durableflow.models import PendingEvent, Priority, WorkflowInstance
from durableflow.timeline import Relative, StepView, Veil


def named(row: WorkflowInstance) -> dict[str, Any]:
    """Which instance it is, and where it is now: the answer of a verb."""
    names = ("workflow", "instance_id", "status", "run_number")
    return {name: getattr(row, name) for name in names}


def instance_row(row: WorkflowInstance) -> dict[str, Any]:
    """An instance in a list. ``blocked``: whether a person is needed."""
    names = ("hold", "trigger", "scheduled_for", "created", "started", "finished", "wake_at", "starts_at", "paused_at")
    return {
        **named(row),
        "blocked": bool(row.blocked),
        "priority": Priority(row.priority).name.lower(),
        "created_by": row.created_by_name,
        **{name: getattr(row, name) for name in names},
    }


def instance_document(row: WorkflowInstance, veil: Veil) -> dict[str, Any]:
    """An instance with all that is known of it, masked; its steps apart. ``pause``: null where it is in none."""
    pause = timeline.pause_of(row)
    waits = timeline.open_waits(row)
    return {
        **instance_row(row),
        "code_version": row.code_version,
        "deadline_at": timeline.deadline_of(row),
        "params": shown(row.params),
        "output": shown(row.output),
        "progress": shown(row.progress),
        "rollback": shown(row.rollback),
        "reason": timeline.reason(row, waits=waits, veil=veil),
        "advice": timeline.advice(row, timeline.error_of(row, veil)),
        "pause": None if pause is None else asdict(pause),
        "error": shown(timeline.error_of(row, veil)),
        "waiting_for": timeline.waiting_for(row, waits),
        "parent": _relative(timeline.parent_of(row, EVERYBODY)),
        "available_actions": sorted(row.available_actions(EVERYBODY)),
    }


def step_document(view: StepView, children: list[Relative]) -> dict[str, Any]:
    """A step. ``child``: the instance that it has started, of several the latest."""
    return {**asdict(view), "child": _relative(children[0]) if children else None}


def pending_document(row: PendingEvent) -> dict[str, Any]:
    """A pending event in a list; its instance, users and groups should be fetched with it. ``paused_at``: of its instance."""
    names = ("kind", "name", "count", "title", "types", "opened", "permission", "allow_requester")
    return {
        "id": row.pk,
        "workflow": row.instance.workflow,
        "instance_id": row.instance.instance_id,
        "status": str(row.current_status),
        **{name: getattr(row, name) for name in names},
        "deadline": row.current_deadline,
        "paused_at": row.instance.paused_at,
        "users": sorted(user.get_username() for user in row.users.all()),
        "groups": sorted(group.name for group in row.groups.all()),
    }


def _relative(relative: Relative | None) -> dict[str, Any] | None:
    if relative is None:
        return None
    names = ("workflow", "instance_id", "status", "step")
    return {name: getattr(relative, name) for name in names if getattr(relative, name)}
