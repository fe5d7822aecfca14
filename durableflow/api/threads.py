"""Threads of long answers on ASGI: asked for a moment, and given back.

asgiref keeps a thread for each request as long as it is answered, and Django a database connection for each such thread. A
stream that lasts for hours must keep neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from asgiref.sync import SyncToAsync, sync_to_async
from django.db import close_old_connections, connections

THREADS: Final = 4
"""How many streams of a process ask the database at the same moment; a question takes a few milliseconds."""
_pools: dict[int, ThreadPoolExecutor] = {}


async def in_own_thread(function: Callable[[], Any]) -> Any:
    """What ``function()`` returns, called in one of a few threads that all streams share."""
    return await sync_to_async(_asked, thread_sensitive=False, executor=_pool())(function)


async def leave_request_thread() -> None:
    """Close what the present request's thread has open, and end the thread. Whatever needs one after the answer gets a new
    one."""
    await sync_to_async(_close_all, thread_sensitive=True)()
    context = SyncToAsync.thread_sensitive_context.get(None)
    executor = None if context is None else SyncToAsync.context_to_thread_executor.pop(context, None)
    if executor is not None:
        executor.shutdown(wait=False)


def _pool() -> ThreadPoolExecutor:
    pid = os.getpid()
    if pid not in _pools:  # the threads of a parent have stayed there
        _pools.clear()
        _pools[pid] = ThreadPoolExecutor(THREADS, thread_name_prefix="durableflow-stream")
    return _pools[pid]


def _asked(function: Callable[[], Any]) -> Any:
    close_old_connections()
    try:
        return function()
    finally:
        close_old_connections()  # by CONN_MAX_AGE, as after a request


def _close_all() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
