"""The tables of durableflow and the verbs on their rows (design 2)."""

from durableflow.models.chores import Chore
from durableflow.models.heartbeat import Heartbeat
from durableflow.models.history import HistoryEntry
from durableflow.models.instance import WorkflowInstance
from durableflow.models.instance_fields import Priority
from durableflow.models.limits import ConcurrencyLimit
from durableflow.models.pending import PendingEvent
from durableflow.models.schedule import SkippedSlots, WorkflowSchedule
from durableflow.models.sent import SentEvent
from durableflow.models.step import StepRecord

__all__ = [
    "Chore",
    "ConcurrencyLimit",
    "Heartbeat",
    "HistoryEntry",
    "PendingEvent",
    "Priority",
    "SentEvent",
    "SkippedSlots",
    "StepRecord",
    "WorkflowInstance",
    "WorkflowSchedule",
]
