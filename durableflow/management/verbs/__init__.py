"""The verbs of ``manage.py durableflow``, one module each."""

from __future__ import annotations

from durableflow.management.verbs.base import Verb
from durableflow.management.verbs.check_replay import CheckReplay
from durableflow.management.verbs.complete_step import CompleteStep
from durableflow.management.verbs.decide import Decide
from durableflow.management.verbs.delete import Delete
from durableflow.management.verbs.drain import Drain
from durableflow.management.verbs.health import HealthVerb
from durableflow.management.verbs.list import ListVerb
from durableflow.management.verbs.pause import Pause
from durableflow.management.verbs.pending import Pending
from durableflow.management.verbs.purge import PurgeVerb
from durableflow.management.verbs.restart import Restart
from durableflow.management.verbs.resume import Resume
from durableflow.management.verbs.retry import Retry
from durableflow.management.verbs.schedules import Schedules
from durableflow.management.verbs.send import Send
from durableflow.management.verbs.show import Show
from durableflow.management.verbs.start import Start
from durableflow.management.verbs.tail import Tail
from durableflow.management.verbs.terminate import Terminate

# In the order in which --help lists them: looking, starting and answering, acting, operating.
VERBS: tuple[type[Verb], ...] = (
    ListVerb,
    Show,
    Tail,
    Pending,
    Start,
    Send,
    Decide,
    Pause,
    Resume,
    Retry,
    Restart,
    CompleteStep,
    Terminate,
    Delete,
    Schedules,
    PurgeVerb,
    Drain,
    HealthVerb,
    CheckReplay,
)

__all__ = ["VERBS", "Verb"]
