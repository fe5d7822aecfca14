"""Was it somebody's lock, or is the database away?"""

from __future__ import annotations

from typing import Final

from django.db import Error

_HELD: Final = frozenset({"55P03", "40P01", "40001"})  # lock not available, deadlock, serialization failure
_SQLITE_BUSY: Final = frozenset({5, 6})


def held(error: Error) -> bool:
    """Whether somebody held the row for too long: then the next row may do."""
    cause = error.__cause__
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    return getattr(cause, "sqlstate", None) in _HELD or code in _SQLITE_BUSY


__all__ = ["held"]
