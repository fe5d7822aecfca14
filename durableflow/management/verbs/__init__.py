"""The verbs of ``manage.py durableflow``, one module each."""

from __future__ import annotations

from durableflow.management.verbs.base import Verb
from durableflow.management.verbs.check_replay import CheckReplay
from durableflow.management.verbs.drain import Drain
from durableflow.management.verbs.health import HealthVerb

VERBS: tuple[type[Verb], ...] = (CheckReplay, Drain, HealthVerb)

__all__ = ["VERBS", "Verb"]
