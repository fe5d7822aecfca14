"""What a person should know about trouble, in a sentence or two: for people who did not write the program."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _

from durableflow.core.statuses import Hold, Status
from durableflow.models import WorkflowInstance


def advice(instance: WorkflowInstance, error: dict[str, Any] | None = None) -> str:
    """What the instance's state means and what helps, or ''. No query.

    ``error``: what ended it, as ``error_of`` gives it.
    """
    if instance.status == Status.PAUSED and instance.blocked:
        return _(
            "Nothing is lost or undone: it stands still. Once the cause is repaired, Resume lets it go on where it stopped."
        )
    if instance.status in (Status.ERRORED, Status.TERMINATED) and instance.rollback:
        return _rolled_back(instance.rollback)
    if instance.status == Status.ERRORED and error is not None:
        package, _dot, name = str(error.get("type", "")).rpartition(".")
        return _after(name) if package.partition(".")[0] == "durableflow" else ""
    if instance.hold and instance.status in (Status.QUEUED, Status.WAITING, Status.ROLLING_BACK):
        return _held(instance.hold)
    return ""


def _rolled_back(rollback: Any) -> str:
    if isinstance(rollback, dict) and rollback.get("failed"):
        return _(
            "Some of what it had done could not be undone: the steps say why. Retry runs only those rollback handlers again; what "
            "is undone stays so."
        )
    return ""


def _after(name: str) -> str:
    return {
        "WorkerLost": _(
            "The process that ran this step ended before it could tell the result, so nobody knows whether the step had its "
            "effect. Look at the outside system first. Retry then runs the step again, with the same idempotency key."
        ),
        "StepTimeout": _("The step took longer than it may, in each of its attempts. Retry runs it again."),
        "EventTimeout": _("Nobody answered in time. Retry waits for an answer once more."),
        "WorkflowTimeout": _(
            "It took longer in all than its workflow may. Finished steps are kept; Retry lets it go on, with the whole time "
            "again."
        ),
    }.get(name, "")


def _held(hold: str) -> str:
    told: dict[str, str] = {
        Hold.LIMIT: _(
            "As many instances of its kind run as may run at once. It starts by itself when one of them ends."
        ),
        Hold.UNKNOWN_WORKFLOW: _(
            "The running program does not contain this workflow: it may be older or newer than the instance. It goes on by "
            "itself when a worker that contains it is started."
        ),
        Hold.NEWER_CODE: _(
            "A newer version of the program has worked on it. It goes on by itself when workers with that version run."
        ),
    }
    return told.get(hold, "")  # a web server may be older than the worker that gave the reason
