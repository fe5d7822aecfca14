"""A verb over many chosen instances that goes on over several requests: what is left of it, carried by the form (case SEC-13).

Which rows it is about is settled when the action is chosen, as key and run: what others change meanwhile neither adds a row nor
lets one run twice. The form carries the rest as signed text, about a byte or two for each row, so that nothing has to be kept on
the server: it works with every kind of session, and in two windows at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any, Final

from django.core import signing

SALT: Final = "durableflow.admin.bulk"
LASTS: Final = timedelta(days=1)


class StaleJob(Exception):
    """The text was changed, is too old, or is somebody else's."""


@dataclass
class Job:
    """``left``: keys in ascending order for each run number. ``told``: for each status how many were chosen, and whether they fit;
    ``others``: the first keys of those that do not. ``options``: what the form says, None until it was confirmed. ``done``,
    ``undoing``: how many are done, and of how many what they did is being undone first. ``back``: the query of the list."""

    verb: str
    user: str
    left: dict[int, list[int]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    told: list[tuple[str, int, bool]] = field(default_factory=list)
    options: dict[str, Any] | None = None
    others: list[int] = field(default_factory=list)
    done: int = 0
    undoing: int = 0
    back: str = ""

    @property
    def number_left(self) -> int:
        """How many rows have not had their turn."""
        return sum(map(len, self.left.values()))

    @property
    def looked_at(self) -> int:
        """How many rows have had their turn, or were left out at once."""
        return self.done + self.skipped.total()

    def choose(self, rows: Iterable[tuple[int, int]]) -> None:
        """Take (key, run number) pairs in ascending order of keys."""
        for key, run in rows:
            self.left.setdefault(run, []).append(key)

    def take(self, most: int) -> tuple[int, list[int]]:
        """A run number and the next keys, which are not left any more."""
        run = next(iter(self.left))
        keys, rest = self.left[run][:most], self.left[run][most:]
        if rest:
            self.left[run] = rest
        else:
            del self.left[run]
        return run, keys

    def first(self, most: int) -> list[int]:
        """The first keys that are left."""
        return sorted(key for keys in self.left.values() for key in keys[:most])[:most]

    def token(self) -> str:
        """The job as signed text."""
        left = {
            run: [keys[0], *(later - sooner for sooner, later in pairwise(keys))] for run, keys in self.left.items()
        }
        return signing.dumps({**vars(self), "left": left, "skipped": dict(self.skipped)}, salt=SALT, compress=True)

    @classmethod
    def read(cls, token: str, user: str) -> Job:
        """The job that a form of ``user`` carries. Raises StaleJob."""
        try:
            stored = signing.loads(token, salt=SALT, max_age=LASTS)
        except signing.BadSignature as error:
            raise StaleJob from error
        if stored["user"] != user:
            raise StaleJob
        stored["left"] = {int(run): list(accumulate(steps)) for run, steps in stored["left"].items()}
        stored["skipped"] = Counter(stored["skipped"])
        return cls(**stored)
