"""The verbs of ``manage.py durableflow``, one module each."""

from __future__ import annotations

from durableflow.management.verbs.base import Verb
from durableflow.management.verbs.drain import Drain

VERBS: tuple[type[Verb], ...] = (Drain,)

__all__ = ["VERBS", "Verb"]
