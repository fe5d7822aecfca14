"""What happened to an instance, as screens and programs show it: a read model without HTML (design 3, 10).

Everything here is masked already: outputs and errors of sensitive steps, and what ``DURABLEFLOW["REDACT"]`` names (case
SEC-09). Each function needs a number of queries that does not grow with the instance.
"""

from durableflow.core.redact import redact, shown
from durableflow.timeline.advice import advice
from durableflow.timeline.groups import GroupView, groups
from durableflow.timeline.history import HISTORY_TYPES, HistoryPage, HistoryView, history, history_page, told
from durableflow.timeline.masking import Veil, error_of
from durableflow.timeline.pauses import PauseView, TimerView, deadline_of, pause_of, timers_of
from durableflow.timeline.reasons import reason
from durableflow.timeline.relatives import Relative, children_of, members_scope, parent_of
from durableflow.timeline.steps import AttemptView, RollbackView, StepView, output_of, steps
from durableflow.timeline.waits import WaitView, open_waits, waited_types, waiting_for

__all__ = [
    "HISTORY_TYPES",
    "AttemptView",
    "GroupView",
    "HistoryPage",
    "HistoryView",
    "PauseView",
    "Relative",
    "RollbackView",
    "StepView",
    "TimerView",
    "Veil",
    "WaitView",
    "advice",
    "children_of",
    "deadline_of",
    "error_of",
    "groups",
    "history",
    "history_page",
    "members_scope",
    "open_waits",
    "output_of",
    "parent_of",
    "pause_of",
    "reason",
    "redact",
    "shown",
    "steps",
    "timers_of",
    "told",
    "waited_types",
    "waiting_for",
]
