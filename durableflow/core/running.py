"""Which ``run`` this code is a part of: what it does itself, outside of a step, it does again at each replay (case OPS-02)."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

program: Final[ContextVar[str]] = ContextVar("durableflow_program", default="")
"""The instance whose ``run`` is executed here, as messages name it; '' outside of any. It stays in the bodies of its steps."""
