"""Whether a function that is called much later can be called then: better to hear of it when it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any, Final
from weakref import WeakSet

# By what their code is bound to: looking at a signature takes longer than all else that a call checks.
_plain: Final[WeakSet[CodeType]] = WeakSet()
_bound: Final[WeakSet[CodeType]] = WeakSet()


def check_one_argument(function: Callable[..., Any], what: str, gets: str) -> None:
    """Raise ValueError unless ``function`` can be called with one argument. ``what`` names it, ``gets`` the argument.

    A class is none: to make an object of it would count as having done the work. A callable that does not tell its signature,
    as some of C do, passes.
    """
    if isinstance(function, type):
        raise ValueError(f"{what} must be a function of one argument, {gets}, not the class {function.__qualname__}.")
    code = getattr(function, "__code__", None)
    known = _bound if getattr(function, "__self__", None) is not None else _plain
    if code is not None and code in known:
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ValueError(
            f"{what} must be a function of one argument, {gets}; {function!r} takes {signature} ({error})."
        ) from error
    if code is not None:
        known.add(code)
