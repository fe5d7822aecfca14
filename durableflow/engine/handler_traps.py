"""Rollback handlers that would all see the last value of a loop (design 7; as the branches of a group, ENG-06).

``for city in cities: step.do("book", book, city, rollback=lambda undo: cancel(city))``: handlers run after the loop, when ``city``
is the last of them. The second of such calls is refused, and no handler that shares the variable runs: it would undo something
else than its step has done.
"""

from __future__ import annotations

from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any, Final

from durableflow.core.exceptions import InvalidConfig
from durableflow.engine.journal import Identity

_UNBOUND: Final = object()
_PLAIN: Final = (str, int, float, bytes, bool, type(None))


class Traps:
    """The variables that the handlers of one execution refer to. ``trapped``: the calls whose handlers must not run."""

    def __init__(self) -> None:
        self.trapped: set[Identity] = set()
        self._checked: set[Identity] = set()
        # By the handler's code and the variable's cell, both kept so that their ids stay theirs.
        self._seen: dict[tuple[int, int], tuple[CodeType, CellType, Any, list[Identity]]] = {}

    def check(self, identity: Identity, handler: Any) -> None:
        """Raise InvalidConfig where another call's handler is of the same code and sees a variable that has changed since."""
        function = _function(handler)
        if function is None or not function.__closure__ or identity in self._checked:
            return
        self._checked.add(identity)
        changed = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            content = _content(cell)
            key = id(function.__code__), id(cell)
            _code, _cell, before, users = self._seen.setdefault(key, (function.__code__, cell, content, []))
            users.append(identity)
            if not _same(before, content):
                changed.append(name)
                self.trapped.update(users)
        if changed:
            names = ", ".join(changed)
            raise InvalidConfig(
                f"step {identity.name!r}: rollback: the handlers of {', '.join(user.label for user in users[-2:])} share the variable "
                f"{names}, which has changed between the two calls: when they run, all would see its last value. Use undo.output, "
                f"functools.partial, or a default argument (lambda undo, {changed[0]}={changed[0]}: ...).",
                step=identity.name,
                field="rollback",
            )


def _function(handler: Any) -> FunctionType | None:
    while isinstance(handler, partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    return handler if isinstance(handler, FunctionType) else None


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _UNBOUND


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)
