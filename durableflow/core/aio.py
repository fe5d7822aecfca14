"""The one helper behind every ``a``-twin."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

P = ParamSpec("P")
R = TypeVar("R")


def async_twin(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """The same verb for ``await``: it runs in Django's thread for synchronous code, on that thread's connection."""

    @wraps(function)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        return await sync_to_async(function, thread_sensitive=True)(*args, **kwargs)

    twin.__name__ = f"a{function.__name__}"
    twin.__qualname__ = twin.__qualname__.rpartition(".")[0] + f".a{function.__name__}"
    return twin
