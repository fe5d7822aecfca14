"""What the watchdog sees in the database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError, transaction
from django.utils import timezone

from durableflow.cluster import watchdog
from durableflow.cluster.table import Table
from durableflow.cluster.watchdog import OVERDUE, SILENT, Guard, claimable_since, complaint, observe
from durableflow.models import WorkflowInstance
from tests.support.concurrency import Task, eventually
from tests.workflows.cluster_samples import ClusterSteps

pytestmark = pytest.mark.django_db(transaction=True)


def overdue(seconds: float) -> WorkflowInstance:
    row = ClusterSteps.create({"log": "/dev/null", "name": "w"})
    WorkflowInstance.objects.filter(pk=row.pk).update(wake_at=timezone.now() - timedelta(seconds=seconds))
    return row


def test_it_sees_how_long_work_has_waited() -> None:
    assert claimable_since("default") == 0
    overdue(OVERDUE + 40)
    assert OVERDUE + 39 < claimable_since("default") < OVERDUE + 70


@pytest.mark.postgresql_only
def test_a_row_that_a_transaction_holds_is_nobodys_fault() -> None:
    row = overdue(OVERDUE + 40)
    seen: list[float] = []
    with transaction.atomic():
        WorkflowInstance.objects.select_for_update().get(pk=row.pk)
        Task(lambda: seen.append(claimable_since("default"))).result()
    assert seen == [0.0]
    assert claimable_since("default") > OVERDUE


@pytest.mark.sqlite_only
def test_a_write_lock_that_somebody_holds_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite a user's transaction locks everything: the watchdog cannot tell, and does not judge."""
    monkeypatch.setattr(watchdog, "SQLITE_PATIENCE", 10)
    overdue(OVERDUE + 40)
    seen: list[float | None] = []
    with transaction.atomic():
        WorkflowInstance.objects.update(give_backs=0)
        Task(lambda: seen.append(observe("default").overdue)).result()
    assert seen == [None]
    observed = observe("default").overdue
    assert observed is not None and observed > OVERDUE


@pytest.mark.sqlite_only
def test_a_pusher_that_waits_for_the_write_lock_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the project lets a statement wait for longer than the watchdog does, and nothing is overdue yet."""
    monkeypatch.setattr(watchdog, "SQLITE_PATIENCE", 10)
    monkeypatch.setattr(Table, "silent", lambda _table: SILENT + 1)
    seen: list[str] = []
    with transaction.atomic():
        WorkflowInstance.objects.update(give_backs=0)
        Task(lambda: seen.append(complaint(observe("default")))).result()
    assert seen == [""]
    assert "no sign of life" in complaint(observe("default"))


@pytest.mark.sqlite_only
def test_a_write_lock_that_somebody_keeps_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The cluster goes on, and somebody is told whom it waits for."""
    monkeypatch.setattr(watchdog, "SQLITE_PATIENCE", 10)
    monkeypatch.setattr(watchdog, "LOOK", 0.01)
    monkeypatch.setattr(watchdog, "OVERDUE", 0.2)
    # What other tests have left in the table of this process is not what this one is about.
    for sign in ("silent", "unguarded", "idle_workers"):
        monkeypatch.setattr(Table, sign, lambda *_arguments: 0)
    looks, alarms = list[str](), list[str]()
    monkeypatch.setattr(watchdog, "complaint", lambda seen: looks.append(complaint(seen)) or looks[-1])
    overdue(100)
    guard = Guard("default", alarms.append)
    with caplog.at_level("INFO", "durableflow.cluster"):
        with transaction.atomic():
            WorkflowInstance.objects.update(give_backs=0)
            guard.start()
            eventually(lambda: "some transaction holds it" in caplog.text, "it is told")
            before = len(looks)
            eventually(lambda: len(looks) > before + 5, "it looks on")
        eventually(lambda: "can be worked with again" in caplog.text, "it is over")
        guard.stop()
    assert caplog.text.count("has waited for the database (database is locked)") == 1
    assert alarms == [] and set(looks) == {""}


def test_a_database_that_is_away_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(using: str) -> float:
        raise OperationalError("the connection is closed")

    monkeypatch.setattr(watchdog, "claimable_since", away)
    assert observe("default").overdue is None
