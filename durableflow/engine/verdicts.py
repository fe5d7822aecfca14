"""What this process may do with a due row, decided in the statement that finds it (design 4 "Takeover", 6 "Engine failures").

The names and versions of the workflows that this process knows stand in the statement itself: they change as seldom as
its code does, so that it stays prepared.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any, Final

from durableflow.core import registry
from durableflow.core.statuses import Hold

Code = tuple[tuple[str, int, int | None], ...]

TAKE: Final = "take"
SUSPECT: Final = "suspect"
LIMIT: Final = Hold.LIMIT.value
UNKNOWN: Final = Hold.UNKNOWN_WORKFLOW.value
NEWER: Final = Hold.NEWER_CODE.value
HELD: Final = (UNKNOWN, NEWER)

MAX_GIVE_BACKS: Final = 10
FIRST_HOLD: Final = 15.0
"""Seconds until the next look at a row that this code may not run; they double with each look."""
LONGEST_HOLD: Final = 300.0
HOLD_DOUBLINGS: Final = 5  # 2**5 * FIRST_HOLD is above LONGEST_HOLD


class Known:
    """What this process's code knows now: conditions on a row of the instance table, as SQL for either database."""

    def __init__(self, code: Code) -> None:
        names = [name for name, _, _ in code]
        self._versions = "".join(f" WHEN '{name}' THEN {int(version)}" for name, version, _ in code if version)
        version = f"CASE workflow{self._versions} ELSE 0 END" if self._versions else "0"
        self.code = code
        self.named = _among(names)
        self.newer = f"code_version > {version}"
        self.limited = _among([name for name, _, maximum in code if maximum is not None])

    def raised(self, row: str, greatest: str) -> str:
        """SQL for a claim: from here on the instance is one of this code's version, and goes back to no older one ('' where no
        workflow has a version). ``greatest``: the database's word for it."""
        if not self._versions:
            return ""
        return f"code_version = {greatest}({row}code_version, CASE {row}workflow{self._versions} ELSE 0 END), "


def _among(names: list[str]) -> str:
    # Names of workflows are letters, digits, '_' and '-' (core/names.py): nothing to escape.
    return f"workflow IN ({', '.join(repr(name) for name in names)})" if names else "1 = 0"


_known = lru_cache(maxsize=64)(Known)
_options: list[Any] = []
_now_known = Known(())


def known() -> Known:
    """What this process's code knows now: the same object as long as that does not change."""
    global _options, _now_known
    options = registry.options()
    if options != _options:
        code = [(name, item.version, item.max_concurrency) for item in options for name in item.names]
        _now_known = _known(tuple(sorted(code, key=operator.itemgetter(0))))
        _options = options
    return _now_known


def known_code() -> Code:
    """Name, version and limit of all workflows that this process's code has, also under their previous names."""
    return known().code


def verdict(rules: Known) -> str:
    """SQL for what happens to a due row: TAKE, SUSPECT (the first look at an expired lease), one of HELD, or LIMIT (it
    needs a slot first).

    What is to be paused, and what has been given back too often, is taken whatever it is: nothing of it is run; the executor
    pauses the one, and blocks the other with the reason.
    """
    return f"""CASE WHEN lease_token IS NOT NULL AND NOT suspect THEN '{SUSPECT}'
        WHEN status = 'waiting_for_pause' THEN '{TAKE}'
        WHEN give_backs >= {MAX_GIVE_BACKS} THEN '{TAKE}'
        WHEN NOT ({rules.named}) THEN '{UNKNOWN}'
        WHEN {rules.newer} THEN '{NEWER}'
        WHEN NOT holds_slot AND {rules.limited} THEN '{LIMIT}'
        ELSE '{TAKE}' END"""


def hold_seconds(give_backs: int) -> float:
    """Seconds until the next look at a row that has been given back so often before."""
    return min(LONGEST_HOLD, FIRST_HOLD * float(2 ** min(give_backs, HOLD_DOUBLINGS)))
