"""Statuses and the one transition table (design 2)."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _


class Status(models.TextChoices):
    """Where an instance is. Staff labels may differ from the value (design 2)."""

    QUEUED = "queued", _("Queued")
    RUNNING = "running", _("Running")
    WAITING = "waiting", _("Waiting")
    WAITING_FOR_PAUSE = "waiting_for_pause", _("Pausing")
    PAUSED = "paused", _("Paused")
    ROLLING_BACK = "rolling_back", _("Rolling back")
    COMPLETE = "complete", _("Complete")
    ERRORED = "errored", _("Failed")
    TERMINATED = "terminated", _("Terminated")


FINISHED: Final = frozenset({Status.COMPLETE, Status.ERRORED, Status.TERMINATED})
ACTIVE: Final = frozenset(Status) - FINISHED
# An event is refused where nobody can ever read it (design 2).
DEAF: Final = FINISHED | {Status.ROLLING_BACK}


class Hold(models.TextChoices):
    """A machine's reason why an instance is not run; it clears by itself (design 2)."""

    LIMIT = "limit", _("Waiting for a free slot")
    UNKNOWN_WORKFLOW = "unknown_workflow", _("No running worker knows this workflow")
    NEWER_CODE = "newer_code", _("Waiting for workers with newer code")
    WINDOW = "window", _("Waiting for its turn among its parent's children")


class HeartbeatKind(models.TextChoices):
    """What kind of process group tells of itself."""

    CLUSTER = "cluster", _("Cluster")
    DRAIN = "drain", _("Drain")


class Trigger(models.TextChoices):
    """What started an instance."""

    CODE = "code", _("Code")
    ADMIN = "admin", _("Admin")
    API = "api", _("API")
    CLI = "cli", _("Command line")
    SCHEDULE = "schedule", _("Schedule")
    PARENT = "parent", _("Parent workflow")


class Via(models.TextChoices):
    """The door through which somebody acted."""

    CODE = "code", _("Code")
    ADMIN = "admin", _("Admin")
    API = "api", _("API")
    CLI = "cli", _("Command line")
    LINK = "link", _("Link")
    ENGINE = "engine", _("System")


class StepKind(models.TextChoices):
    """What a durable call does; part of a step's identity (design 6, 12)."""

    DO = "do", _("Step")
    SLEEP = "sleep", _("Sleep")
    SLEEP_UNTIL = "sleep_until", _("Sleep until")
    WAIT_FOR_EVENT = "wait_for_event", _("Wait for event")
    WAIT_FOR_APPROVAL = "wait_for_approval", _("Wait for approval")
    NOTIFY = "notify", _("Notify")
    GATHER = "gather", _("Gather")
    MAP = "map", _("Map")
    RACE = "race", _("Race")
    CHILD = "child", _("Child workflow")
    NOW = "now", _("Now")
    PATCH = "patch", _("Patch")


class StepStatus(models.TextChoices):
    """Where a step record is. ``pending``: known, but no body in flight (a retry delay, an open wait, a reset step)."""

    PENDING = "pending", _("Pending")
    STARTED = "started", _("Started")
    COMPLETE = "complete", _("Complete")
    FAILED = "failed", _("Failed")
    CANCELLED = "cancelled", _("Cancelled")


STEP_FINISHED: Final = frozenset({StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.CANCELLED})


class RollbackStatus(models.TextChoices):
    """How far a step's rollback handler is (design 7). A step that is not to be undone has none."""

    PENDING = "pending", _("Pending")
    STARTED = "started", _("Started")
    COMPLETE = "complete", _("Complete")
    FAILED = "failed", _("Failed")


class PendingStatus(models.TextChoices):
    """Where a pending event is."""

    OPEN = "open", _("Open")
    RECEIVED = "received", _("Received")
    TIMED_OUT = "timed_out", _("Timed out")
    CANCELLED = "cancelled", _("Cancelled")


class SentKind(models.TextChoices):
    """What lies in the inbox."""

    EVENT = "event", _("Event")
    DECISION = "decision", _("Decision")
    CHILD = "child", _("Child")
    PARENT = "parent", _("Parent")


# verb -> {status before: status after} (design 2). Verbs of people ask this table; the engine's own say the same in SQL, under
# the lease that only an instance in the status before can have. One that is rolling back stays so whoever claims it, suspends it
# or gives it back; it may end as errored or terminated.
_ALIVE: Final = (Status.RUNNING, Status.WAITING_FOR_PAUSE)
TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    "claim": {
        Status.QUEUED: Status.RUNNING,
        Status.WAITING: Status.RUNNING,
        Status.RUNNING: Status.RUNNING,
        Status.WAITING_FOR_PAUSE: Status.WAITING_FOR_PAUSE,
    },
    "suspend": {Status.RUNNING: Status.WAITING, Status.WAITING_FOR_PAUSE: Status.PAUSED},
    "give_back": {Status.RUNNING: Status.QUEUED, Status.WAITING_FOR_PAUSE: Status.PAUSED},
    "complete": dict.fromkeys(_ALIVE, Status.COMPLETE),
    "fail": dict.fromkeys(_ALIVE, Status.ERRORED),
    "roll_back": dict.fromkeys(_ALIVE, Status.ROLLING_BACK),
    "block": dict.fromkeys(_ALIVE, Status.PAUSED),
    "pause": {
        Status.QUEUED: Status.PAUSED,
        Status.WAITING: Status.PAUSED,
        Status.RUNNING: Status.WAITING_FOR_PAUSE,
    },
    "resume": {Status.PAUSED: Status.QUEUED, Status.WAITING_FOR_PAUSE: Status.RUNNING},
    "terminate": dict.fromkeys(
        (Status.QUEUED, Status.RUNNING, Status.WAITING, Status.WAITING_FOR_PAUSE, Status.PAUSED), Status.TERMINATED
    ),
    "retry": {Status.ERRORED: Status.QUEUED},
    "restart": {status: Status.QUEUED for status in Status if status not in (Status.QUEUED, Status.ROLLING_BACK)},
    "complete_step": {
        Status.QUEUED: Status.QUEUED,
        Status.WAITING: Status.WAITING,
        Status.PAUSED: Status.PAUSED,
        Status.ERRORED: Status.QUEUED,
    },
    "send_event": {status: status for status in Status if status not in DEAF},
}


def allowed(verb: str, status: str) -> bool:
    """Whether ``verb`` may be applied to an instance in ``status``."""
    return status in TRANSITIONS[verb]
