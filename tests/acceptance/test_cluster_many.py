"""Many instances and many drains in real clusters: nothing piles up."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from django_q.models import OrmQ, Schedule, Task

from durableflow import Priority
from durableflow.core import clock
from durableflow.models import StepRecord, WorkflowInstance
from tests.support.cluster import cluster, until
from tests.support.ledger import Ledger
from tests.workflows.many_samples import ManyBusy, ManyGates, ManyLate, ManySleepers

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
DRAINS = int(os.environ.get("OPS06_DRAINS", "60"))
"""Times that work comes after a moment without any, so that each is a drain of its own at least; 20,000 by hand."""
SLEEPERS = int(os.environ.get("OPS10_SLEEPERS", "400"))
"""Instances due at the same moment; 10,000 by hand."""
AHEAD = 20
"""Executions that may begin before that of an urgent instance, after it was created: some of each worker."""
GROWTH = 40 << 20
"""Bytes by which a worker may grow meanwhile: caches and the largest chunk, far less than all instances."""


def open_ones() -> int:
    return WorkflowInstance.objects.active().count()


def resident(pid: int) -> int:
    """The memory that a process has, in bytes; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@pytest.mark.parametrize("save_limits", [(0, 250), (-1, None)], ids=["all and some", "none and the default"])
def test_drains_leave_nothing_in_the_tables_of_django_q2(
    save_limits: tuple[int | None, int | None], tmp_path: Path
) -> None:
    """OPS-06: two clusters; whatever ``save_limit`` says, no drain is queued in the database or leaves a result."""
    ledger = Ledger(tmp_path / "ledger")
    with ExitStack() as stack:
        clusters = []
        for number, limit in enumerate(save_limits):
            settings = {} if limit is None else {"save_limit": limit}
            clusters.append(stack.enter_context(cluster(tmp_path / f"log{number}", q_cluster=settings)))
        for number in range(DRAINS):
            ManyLate.create({"name": f"n{number}", "log": str(ledger.path)})
            until(lambda number=number: ledger.lines[-1:] == [f"late n{number}"], "it has run")
            assert OrmQ.objects.count() == 0
        until(lambda: open_ones() == 0, "all have ended")
        for running in clusters:
            assert running.stop() == 0
    assert len(ledger.lines) == DRAINS
    assert (OrmQ.objects.count(), Task.objects.count(), Schedule.objects.count()) == (0, 0, 0)


def test_everybody_sleeps_until_nine(tmp_path: Path) -> None:
    """OPS-10: all wake once; what is urgent and started while they are due does not wait for them; no worker's memory
    grows with their number."""
    ledger = Ledger(tmp_path / "ledger")
    nine = timezone.now() + timedelta(days=1)
    with cluster(tmp_path / "log") as running:
        with transaction.atomic():
            for n in range(SLEEPERS):
                params: Any = {"until": nine.timestamp(), "log": str(ledger.path)}
                ManySleepers.create(params, instance_id=f"s{n}")
        until(lambda: WorkflowInstance.objects.filter(status=S.WAITING).count() == SLEEPERS, "all sleep", 600)
        before = {pid: resident(pid) for pid in running.members()}
        with transaction.atomic():  # nine o'clock comes
            StepRecord.objects.update(wake_at=timezone.now())
            WorkflowInstance.objects.filter(status=S.WAITING).update(wake_at=timezone.now())
        until(lambda: len(ledger.lines) > SLEEPERS // 20, "they wake")
        urgent = ManyLate.create({"name": "urgent", "log": str(ledger.path)}, priority=Priority.HIGH)
        created = clock.read("default")
        late = ManyLate.create({"name": "new", "log": str(ledger.path)})
        until(lambda: open_ones() == 0, "all have ended", 600)
        grown = {pid: resident(pid) - was for pid, was in before.items() if resident(pid)}
        assert running.stop() == 0
    assert Counter(ledger.lines) == Counter([f"woke s{n}" for n in range(SLEEPERS)] + ["late new", "late urgent"])
    for row in (urgent, late):
        row.refresh_from_db()
        assert row.status == S.COMPLETE
    ahead = WorkflowInstance.objects.filter(finished__gte=created, finished__lt=urgent.started)
    assert ahead.count() <= AHEAD, "it does not wait for those that woke"
    assert max(grown.values()) < GROWTH, grown


def test_an_answered_gate_goes_on_soon(tmp_path: Path) -> None:
    """OPS-09: 500 asleep, 50 busy, four workers; thirty events. The median is below two seconds: what the slowest of thirty
    takes depends on the machine; the benchmark of events tells its percentiles."""
    stop = tmp_path / "stop"
    with cluster(tmp_path / "log", q_cluster={"workers": 4}) as running:
        with transaction.atomic():
            for n in range(500):
                ManyLate.create({"name": f"{n}", "log": str(tmp_path / "ledger")}, start_at="1 day")
            busy = [ManyBusy.create({"stop": str(stop)}) for _ in range(50)]
        until(lambda: StepRecord.objects.filter(name="rest", status="complete").count() > len(busy), "they are busy")
        gate = ManyGates.create()
        sent: list[float] = []
        for n in range(31):
            until(lambda n=n: gate.steps.filter(name="gate", count=n + 1).exists(), "it waits")
            sent.append(time.time())
            gate.send_event("gate", n < 30)
        until(lambda: WorkflowInstance.objects.filter(pk=gate.pk, status=S.COMPLETE).exists(), "it ends")
        assert all(not row.is_finished for row in WorkflowInstance.objects.filter(pk__in=[row.pk for row in busy]))
        stop.touch()
        assert running.stop() == 0
    gate.refresh_from_db()
    late = sorted(on - at for on, at in zip(gate.output, sent, strict=False))
    assert len(late) == 30 and late[15] < 2, late
