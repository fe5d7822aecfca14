"""What a plain body may return to be awaited, where no event loop runs: ``notify`` and rollback handlers may be async functions."""

from __future__ import annotations

import inspect
from typing import Any

from asgiref.sync import async_to_sync


def awaited(value: Any) -> Any:
    """``value``, or what awaiting it gives.

    It runs in an event loop, in a thread of its own or in that of the workflow's ``async def run``; what it gives to
    ``sync_to_async`` comes back to this thread and its connection.
    """
    if not inspect.isawaitable(value):
        return value

    async def wait() -> Any:
        return await value

    return async_to_sync(wait)()
