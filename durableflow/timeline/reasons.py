"""One sentence: why an instance is in its status."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.utils import timezone
from django.utils.translation import gettext as _

from durableflow.core import clock, failures
from durableflow.core.statuses import RollbackStatus, Status, StepKind, StepStatus
from durableflow.models import WorkflowInstance
from durableflow.models.step import step_label
from durableflow.timeline.masking import Veil, error_of
from durableflow.timeline.waits import open_waits

MOST_NAMED: Final = 10
LONGEST_MESSAGE: Final = 300


def reason(instance: WorkflowInstance, *, waits: list[dict[str, Any]] | None = None, veil: Veil | None = None) -> str:
    """Why the instance is in its status, as a sentence for people, masked. At most three queries.

    ``waits`` and ``veil``: what ``open_waits`` and ``Veil.over`` gave already.
    """
    if instance.hold and instance.status != Status.PAUSED:
        return f"{instance.get_hold_display()}."
    if instance.status == Status.QUEUED:
        return _queued(instance)
    if instance.status == Status.RUNNING:
        return _running(instance)
    if instance.status == Status.WAITING:
        return _waiting(instance, open_waits(instance) if waits is None else waits)
    if instance.status == Status.PAUSED and instance.blocked:
        return _("Blocked, a person is needed: %s") % (veil or Veil.over(instance)).text(instance.blocked)
    if instance.status == Status.ROLLING_BACK:
        return _rolling_back(instance)
    if instance.status == Status.ERRORED:
        return _joined(_failed(instance, veil), _undone(instance))
    if instance.status == Status.TERMINATED:
        return " ".join((_("Terminated."), _undone(instance))).rstrip()
    return {
        Status.WAITING_FOR_PAUSE: _("Pauses as soon as the step that runs has ended."),
        Status.PAUSED: _("Its clock stands still until somebody resumes it."),
        Status.COMPLETE: _("Complete."),
    }[Status(instance.status)]


def _queued(instance: WorkflowInstance) -> str:
    if instance.wake_at is not None and instance.wake_at > clock.host_now():
        return _("Starts at %s.") % _time(instance.wake_at)
    return _("Waits for a free worker.")


def _running(instance: WorkflowInstance) -> str:
    if instance.wake_at is not None and instance.wake_at <= clock.host_now():
        return _("Its worker has not been heard of since %s; another one takes it over.") % _time(instance.wake_at)
    step = _step(instance, status=StepStatus.STARTED)
    if step is None:
        return _("A worker executes it.")
    return _("A worker executes step %(step)s.") % {"step": _label(step)}


def _waiting(instance: WorkflowInstance, waits: list[dict[str, Any]]) -> str:
    if instance.wake_at is not None and instance.wake_at <= clock.host_now():
        return _("Due: waits for a free worker.")
    if waits:
        return " ".join(_wait(wait) for wait in waits)
    step = _step(instance, status=StepStatus.PENDING, wake_at__isnull=False)
    if step is None:
        child = _step(instance, status=StepStatus.PENDING, kind=StepKind.CHILD)
        return _("Waits.") if child is None else _child(child)
    if step["kind"] == StepKind.CHILD:
        return _child(step)
    values = {"step": _label(step), "time": _time(step["wake_at"]), "number": step["attempts"] + 1}
    if step["kind"] in (StepKind.SLEEP, StepKind.SLEEP_UNTIL):
        return _("Sleeps in %(step)s until %(time)s.") % values
    return _("Attempt %(number)s of step %(step)s is due at %(time)s.") % values


def _child(step: dict[str, Any]) -> str:
    values = {
        "step": _label(step),
        "number": step["remaining"],
        "time": _time(step["wake_at"]) if step["wake_at"] else "",
    }
    if step["remaining"] is not None:
        return _("Waits for child workflows in %(step)s: %(number)s have not ended.") % values
    if step["wake_at"]:
        return _("Waits for its child workflow in %(step)s until %(time)s.") % values
    return _("Waits for its child workflow in %(step)s.") % values


def _wait(wait: dict[str, Any]) -> str:
    values = {
        "step": _label(wait),
        "types": ", ".join(wait["types"]),
        "time": _time(wait["deadline"]) if wait["deadline"] else "",
    }
    if wait["kind"] == StepKind.WAIT_FOR_APPROVAL:
        if wait["deadline"]:
            return _("Waits for a decision in %(step)s until %(time)s.") % values
        return _("Waits for a decision in %(step)s.") % values
    if wait["deadline"]:
        return _("Waits for an event of type %(types)s in %(step)s until %(time)s.") % values
    return _("Waits for an event of type %(types)s in %(step)s.") % values


def _rolling_back(instance: WorkflowInstance) -> str:
    """What is being undone, the last step first."""
    rows = instance.steps.filter(
        run_number=instance.run_number, rollback_status__in=(RollbackStatus.PENDING, RollbackStatus.STARTED)
    ).order_by("-seq")
    step: Any = rows.values(
        "scope", "name", "count", "rollback_status", "rollback_attempts", "rollback_wake_at"
    ).first()
    if step is None:
        return _("What was done has been undone; it ends now.")
    values = {"step": _label(step), "number": step["rollback_attempts"] + 1}
    if step["rollback_wake_at"] is not None:
        values["time"] = _time(step["rollback_wake_at"])
        return _("What was done is being undone. Attempt %(number)s to undo %(step)s is due at %(time)s.") % values
    return _("What was done is being undone, next: %(step)s.") % values


def _undone(instance: WorkflowInstance) -> str:
    """What came of the rollback; '' if there was none."""
    rollback = instance.rollback
    if not isinstance(rollback, dict):
        return ""
    if rollback["failed"]:
        return _("Not undone: %s.") % ", ".join(rollback["failed"][:MOST_NAMED])
    return _("Its rollback handlers have run.")


def _joined(first: str, second: str) -> str:
    """Two sentences, of which the first may end in the middle of somebody's message."""
    if not second:
        return first
    return f"{first} {second}" if first.endswith((".", "!", "?", "…")) else f"{first}. {second}"


def _brief(message: str) -> str:
    """A message in one line that can be read at a glance; the error itself has all of it."""
    line = " ".join(message[: LONGEST_MESSAGE * 2].split())
    return f"{line[:LONGEST_MESSAGE]}…" if len(line) > LONGEST_MESSAGE or len(message) > LONGEST_MESSAGE * 2 else line


def _failed(instance: WorkflowInstance, veil: Veil | None) -> str:
    """What ended it; of a group of errors the first one, which says more than how many there are."""
    stored = instance.error_data
    first, more = failures.leaves(stored) if isinstance(stored, dict) else (stored, 0)
    if first is stored:
        error = error_of(instance, veil)
    else:
        error = (veil or Veil.over(instance)).error(failures.public(first))
    if error is None:
        return _("Failed.")
    what = f"{error['type']}: {_brief(error['message'])}" if error["message"] else error["type"]
    if more:
        what = _("%(error)s, and %(number)s more") % {"error": what, "number": f"{more:,}"}
    if error["step"]:
        return _("Failed in step %(step)s: %(error)s") % {"step": error["step"], "error": what}
    return _("Failed: %s") % what


def _step(instance: WorkflowInstance, **conditions: Any) -> dict[str, Any] | None:
    rows = instance.steps.filter(run_number=instance.run_number, **conditions).order_by("wake_at", "seq")
    found: Any = rows.values("scope", "kind", "name", "count", "attempts", "wake_at", "remaining").first()
    return found  # type: ignore[no-any-return]


def _label(step: dict[str, Any]) -> str:
    return step_label(step["scope"], step["name"], step["count"])


def _time(moment: datetime) -> str:
    return timezone.localtime(moment).strftime("%Y-%m-%d %H:%M:%S %Z")
