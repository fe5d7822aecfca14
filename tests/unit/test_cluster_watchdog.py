"""When the watchdog ends a cluster: a function of what is observed."""

from __future__ import annotations

import pytest

from durableflow.cluster.watchdog import LOOKS, OVERDUE, SILENT, Observed, Watchdog, complaint

WELL = Observed(overdue=0.0, idle=2, silent=0.5)
STUCK = Observed(overdue=OVERDUE + 1, idle=1, silent=0.5)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (WELL, ""),
        (STUCK, "1 worker is idle"),
        (Observed(overdue=OVERDUE + 1, idle=2, silent=0), "2 workers are idle"),
        (Observed(overdue=OVERDUE, idle=2, silent=0), ""),
        (Observed(overdue=9999, idle=0, silent=0), ""),  # all are busy
        (Observed(overdue=None, idle=2, silent=9999), ""),  # the database does not answer
        (Observed(overdue=0.0, idle=2, silent=SILENT + 1), "no sign of life"),
        (Observed(overdue=0.0, idle=0, silent=SILENT), ""),
        (Observed(overdue=0.0, idle=2, silent=0.5, unguarded=SILENT + 1), "the sentinel has given no sign"),
        (Observed(overdue=None, idle=2, silent=0.5, unguarded=9999), ""),
    ],
)
def test_what_is_wrong(seen: Observed, words: str) -> None:
    said = complaint(seen)
    assert words in said and bool(said) == bool(words)


def test_it_takes_several_looks_in_a_row() -> None:
    """After the machine has slept, or the database was away, the first look finds old work, rightly unclaimed."""
    dog = Watchdog()
    for seen in (STUCK, STUCK, WELL, *[STUCK] * (LOOKS - 1), WELL):
        assert dog.look(seen) == ""
    assert [bool(dog.look(STUCK)) for _ in range(LOOKS)] == [False] * (LOOKS - 1) + [True]
