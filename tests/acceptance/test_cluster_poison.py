"""Poison in a real cluster: an instance whose step harms its process ends clearly, the others go on."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from durableflow.models import WorkflowInstance
from tests.support.cluster import cluster, until
from tests.support.ledger import Ledger
from tests.workflows.poison_samples import BODIES, ClusterAfterPoison, ClusterPoison

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status

FINISHES = ("complete", "", 1)


def twice(error: str) -> tuple[str, str, int]:
    """Tried, tried again, and failed with that error."""
    return "errored", error, 2


REFUSED = ("errored", "durableflow.CodecError", 1)
"""Status, type of the error, starts of the body."""
EXPECTED: dict[str, tuple[str, str, int]] = {
    # RET-13: an error of whatever kind is a failed attempt.
    "exits": twice("SystemExit"),
    "interrupts": twice("KeyboardInterrupt"),
    "closes a generator": twice("GeneratorExit"),
    "memory": twice("MemoryError"),
    "recursion": twice("RecursionError"),
    "unreadable error": twice("tests.workflows.poison_samples.UnreadableError"),
    "demanding error": twice("tests.workflows.poison_samples.DemandingError"),
    "local error": twice("tests.workflows.poison_samples.Local"),
    "error with odd text": twice("ValueError"),
    "error group": twice("ExceptionGroup"),
    # SER-02: what cannot be stored is not tried again.
    "model": REFUSED,
    "queryset": REFUSED,
    "lambda": REFUSED,
    "file": REFUSED,
    "cycle": REFUSED,
    # OPS-08, RET-02: what does not end in time has timed out, however it resists.
    "swallows": twice("durableflow.StepTimeout"),
    "C code": twice("durableflow.StepTimeout"),
    # OPS-07, design 6: connections are repaired, what is left open is refused.
    "broken transaction": FINISHES,
    "closed connections": FINISHES,
    "open block": ("errored", "durableflow.InvalidDurableCall", 1),
    "manual mode": ("errored", "durableflow.InvalidDurableCall", 1),
    "signals": FINISHES,
    "forks": FINISHES,
    "threads": FINISHES,
    "floods": FINISHES,
    "recursion limit": FINISHES,
    "exhausts memory": twice("MemoryError"),
    "keeps memory": twice("MemoryError"),
    "child goes on": FINISHES,
    "child exits": FINISHES,
    "swallows for ever": twice("durableflow.StepTimeout"),
    "C code with the lock for long": twice("durableflow.StepTimeout"),
    # An instance that its own step stops.
    "deletes": ("gone", "", 1),
    "terminates": ("terminated", "", 1),
    # RET-03: the lost worker is an attempt.
    "dies": twice("durableflow.WorkerLost"),
    "killed": twice("durableflow.WorkerLost"),
    "crashes": twice("durableflow.WorkerLost"),
    "C code with the lock": twice("durableflow.StepTimeout"),
}
OR: dict[str, tuple[str, str, int]] = {
    # Whether a process without memory can still write that depends on what was free.
    "exhausts memory": twice("durableflow.WorkerLost"),
    "keeps memory": twice("durableflow.WorkerLost"),
}
ENDLESS = ("swallows for ever", "C code with the lock for long")
HARD = ("dies", "killed", "crashes", "C code with the lock")
SPOILS = ("closed connections", "recursion limit", "exhausts memory", "keeps memory")
"""What harms the process for whoever comes next; each alone, so that a failure tells which."""
FORKS = ("child goes on", "child exits")
SOFT = tuple(kind for kind in EXPECTED if kind not in (*HARD, *SPOILS, *ENDLESS, *FORKS))
SHORT = {"LEASE": 2}
"""Where a body keeps its process from renewing."""
LONG = {"LEASE": 15}
"""A worker that gets no processor for some seconds on a busy machine has lost nothing."""
GROUPS = [
    pytest.param(SOFT, LONG, id="soft"),
    pytest.param(HARD, SHORT, id="hard"),
    *(pytest.param((kind,), SHORT, id=kind) for kind in SPOILS),
    *(pytest.param((kind,), LONG, id=kind) for kind in FORKS),
    *(pytest.param((kind,), LONG, id=kind) for kind in ENDLESS),
    pytest.param(("swallows for ever", "swallows", "C code"), {**LONG, "THREADS": 4}, id="endless in threads"),
]


def test_all_kinds_are_expected_somewhere() -> None:
    assert set(BODIES) == set(EXPECTED)


def settled(rows: Collection[WorkflowInstance]) -> bool:
    open_ones = WorkflowInstance.objects.filter(pk__in=[row.pk for row in rows]).active().exclude(status=S.PAUSED)
    return not open_ones.exists()


def outcome(row: WorkflowInstance, starts: int) -> tuple[str, str, int]:
    now = WorkflowInstance.objects.filter(pk=row.pk).first()
    if now is None:
        return "gone", "", starts
    return now.status, now.error["type"] if now.error else now.blocked, starts


@pytest.mark.parametrize(("kinds", "settings"), GROUPS)
def test_poison_harms_its_own_instance_alone(kinds: tuple[str, ...], settings: dict[str, int], tmp_path: Path) -> None:
    """RET-03, RET-13, SER-02, OPS-07, OPS-08, OPS-13: all kinds at once in two workers, and a healthy instance beside and
    after each of them, whose time-out works; the cluster stops as it should."""
    ledger = Ledger(tmp_path / "ledger")
    with cluster(tmp_path / "log", durableflow=settings, POISON_STUCK_AFTER="2") as running:
        params: list[Any] = [{"kind": kind, "log": str(ledger.path)} for kind in kinds]
        poison = {row["kind"]: ClusterPoison.create(row) for row in params}
        beside = [ClusterAfterPoison.create(row) for row in params]
        until(lambda: settled([*poison.values(), *beside]), "all have ended", 120)
        after = [ClusterAfterPoison.create(row) for row in params[:4]]
        until(lambda: settled(after), "the workers serve on")
        assert running.stop() == 0
        assert not running.alive()
    starts = {kind: sum(line.startswith(f"{kind}: start") for line in ledger.lines) for kind in kinds}
    found = {kind: outcome(row, starts[kind]) for kind, row in poison.items()}
    wrong = [
        f"{kind}: {found[kind]}, expected {EXPECTED[kind]}"
        for kind in kinds
        if found[kind] not in (EXPECTED[kind], OR.get(kind))
    ]
    assert not wrong, "\n".join(wrong)
    assert {kind: ledger.count(f"{kind}: before") for kind in kinds} == dict.fromkeys(kinds, 1)
    for row in (*beside, *after):
        row.refresh_from_db()
        assert (row.status, row.output) == (S.COMPLETE, "timed out"), (row.params, row.error, row.blocked)
