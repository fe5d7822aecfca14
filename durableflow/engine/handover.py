"""What user code finds in a thread of ours, in a context that was copied from another one."""

from __future__ import annotations

from contextvars import copy_context

from asgiref import sync as asgiref_sync


def adopt_locals() -> None:
    """asgiref's ``Local`` keeps what another thread has set apart, unless it is handed over: Django's language and time zone."""
    restore = getattr(asgiref_sync, "_restore_context", None)
    if restore is not None:
        restore(copy_context())
