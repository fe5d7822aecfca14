"""The testing kit: workflows run in the test's own thread, connection and transaction (api.md, "Elsewhere").

``harness()`` is a context manager, ``WorkflowTestMixin`` gives Django test cases ``self.workflows``, and pytest gets the
fixture ``workflows``. ``replay_check`` runs recorded histories against today's code. The names are resolved when they are used,
so that pytest can load the plugin before Django is set up.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durableflow.testing.checking import ReplayBroken, ReplayReport, replay_check
    from durableflow.testing.kit import Harness, harness
    from durableflow.testing.mixin import WorkflowTestMixin

_HOME_OF = {
    "Harness": "durableflow.testing.kit",
    "ReplayBroken": "durableflow.testing.checking",
    "ReplayReport": "durableflow.testing.checking",
    "WorkflowTestMixin": "durableflow.testing.mixin",
    "harness": "durableflow.testing.kit",
    "replay_check": "durableflow.testing.checking",
}

__all__ = ["Harness", "ReplayBroken", "ReplayReport", "WorkflowTestMixin", "harness", "replay_check"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'durableflow.testing' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
