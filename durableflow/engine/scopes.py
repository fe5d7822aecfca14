"""Scopes of parallel work: their names, and which one a durable call belongs to (design 6, 7).

A branch finds its scope by a context variable, so that the same ``step`` serves all branches. Names come from the program
text alone (case ENG-06).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from durableflow.core.exceptions import LimitExceeded
from durableflow.core.scopenames import component
from durableflow.engine.journal import Identity
from durableflow.engine.replay import Scope

MAX_SCOPE: Final = 400
"""Characters of the column."""

current: ContextVar[Scope | None] = ContextVar("durableflow_scope", default=None)
"""The scope of the branch that runs in this context; it may be that of another execution, further out."""


def inner(identity: Identity, branch: object = None) -> str:
    """The scope of a branch of the group ``identity``; without ``branch`` that of all its items. Raises LimitExceeded."""
    own = component(identity.name, identity.count, branch)
    scope = f"{identity.scope}/{own}" if identity.scope else own
    if len(scope) > MAX_SCOPE:
        raise LimitExceeded(
            f"The branches of {identity.label!r} are nested so deeply, or their names are so long, that the path to them has "
            f"{len(scope)} characters; {MAX_SCOPE} are possible. Use shorter names or fewer levels."
        )
    return scope


@contextmanager
def inside(scope: Scope) -> Iterator[None]:
    """Durable calls of this context belong to ``scope``."""
    token = current.set(scope)
    try:
        yield
    finally:
        current.reset(token)
