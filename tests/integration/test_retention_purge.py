"""The purge beside others: protected and locked rows, verbs in between, other purges, and kills (design 9; case LIF-13)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, models

from durableflow.models import HistoryEntry, StepRecord, WorkflowInstance
from durableflow.operations import Purged, bulk_delete, purge
from durableflow.operations.purge import Purge
from shop.models import Order
from tests.integration.retention_flows import Plain, left, old
from tests.support.concurrency import child, held, together

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


def steps(rows: list[WorkflowInstance], number: int = 3) -> None:
    StepRecord.objects.bulk_create(
        StepRecord(instance=row, run_number=1, kind="do", name="s", count=n, seq=n, execution=1, status="complete")
        for row in rows
        for n in range(number)
    )


def protect(monkeypatch: pytest.MonkeyPatch, how: Any) -> None:
    monkeypatch.setattr(Order._meta.get_field("checkout").remote_field, "on_delete", how)


@pytest.mark.parametrize("how", [models.PROTECT, models.RESTRICT])
@pytest.mark.parametrize("dry_run", [False, True])
def test_protected_rows_stay_and_hold_up_nobody(monkeypatch: pytest.MonkeyPatch, how: Any, dry_run: bool) -> None:
    """Also where they are the oldest of all, and more than a batch takes; the report says which, and what protects them."""
    rows = old(30)
    steps(rows)
    protect(monkeypatch, how)
    for row in [*rows[:12], rows[20]]:
        Order.objects.create(checkout=row)
    work = Purge("default", size=5, dry_run=dry_run)
    while work.batch():
        pass
    assert work.report.workflows == {"ret-plain": Purged(success=17)}
    assert work.report.protected == {"shop.Order": 13} and work.report.locked == 0
    assert ("ret-plain/o-00020", "shop.Order") in work.report.protected_instances
    assert len(left()) == (30 if dry_run else 13)
    assert StepRecord.objects.count() == 3 * len(left())


def test_a_verb_between_the_look_and_the_delete_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 9: conditions are looked at again under the lock."""
    rows = old(4)
    WorkflowInstance.objects.filter(pk=rows[2].pk).update(status=Status.ERRORED)
    original = Purge._due

    def late(self: Purge, pks: Any) -> Any:
        WorkflowInstance.objects.get(pk=rows[1].pk).restart()
        WorkflowInstance.objects.get(pk=rows[2].pk).retry()
        monkeypatch.setattr(Purge, "_due", original)
        return original(self, pks)

    monkeypatch.setattr(Purge, "_due", late)
    assert purge().total == 2
    assert left() == ["o-00001", "o-00002"]
    assert {row.status for row in WorkflowInstance.objects.all()} == {Status.QUEUED}


@pytest.mark.postgresql_only
def test_rows_that_somebody_holds_are_passed_over() -> None:
    """Nobody waits for a user's transaction: neither for the row, nor for one that points to it."""
    rows = old(12)
    order = Order.objects.create(checkout=rows[5])
    with held(rows[3], lock="FOR KEY SHARE"), held(order):
        report = purge()
        assert (report.total, report.locked) == (10, 1)
    assert left() == ["o-00003", "o-00005"]
    assert purge().total == 2
    order.refresh_from_db()
    assert order.checkout is None


def test_a_constraint_of_the_database_alone_protects_too() -> None:
    """A table that Django does not know refers to an instance: that one stays, the others go."""
    rows = old(5)
    make = "CREATE TABLE outside (id integer PRIMARY KEY, instance bigint REFERENCES durableflow_workflowinstance (id))"
    with connection.cursor() as cursor:
        cursor.execute(make)
        try:
            cursor.execute("INSERT INTO outside VALUES (1, %s)", [rows[1].pk])
            report = purge()
            assert (report.total, report.protected) == (4, {"a constraint of the database": 1})
            assert left() == ["o-00001"]
            deleted = bulk_delete(WorkflowInstance.objects.all(), by=None)
            assert deleted.done == [] and deleted.reasons() == {"protected": 1}
        finally:
            cursor.execute("DROP TABLE outside")


def test_a_signal_of_the_project_that_refuses_stops_nobody() -> None:
    """Else the oldest row would end each purge before it has deleted anything."""
    rows = old(12)

    def refuse(instance: Any, **_: Any) -> None:
        if instance.instance_id in ("o-00000", "o-00007"):
            raise RuntimeError(f"the books of {instance.instance_id} are open")

    models.signals.pre_delete.connect(refuse, sender=WorkflowInstance)
    try:
        report = purge()
        assert (report.total, report.protected) == (10, {"code of the project (RuntimeError)": 2})
        assert left() == ["o-00000", "o-00007"]
        again = [Plain.create(instance_id=f"n-{n}") for n in range(3)]
        deleted = bulk_delete(WorkflowInstance.objects.all(), by=None)
    finally:
        models.signals.pre_delete.disconnect(refuse, sender=WorkflowInstance)
    assert len(rows) == 12 and [row.pk for row in deleted.done] == [row.pk for row in again]
    assert deleted.reasons() == {"protected": 2}
    assert "has raised RuntimeError: the books of o-00000 are open" in deleted.skipped[0][1]


def test_two_purges_at_once_share_the_work() -> None:
    """Each row once, no deadlock, no error."""
    steps(old(60))
    reports = [task.result() for task in together(purge, purge)]
    rest = purge()
    assert sum(report.total for report in reports) + rest.total == 60
    assert left() == [] and not StepRecord.objects.exists()


@pytest.mark.parametrize("where", ["before", "after"])
def test_lif_13_half_a_purge_is_finished_by_the_next(where: str) -> None:
    """LIF-13: killed in its second batch, before or after it has deleted there: the first is gone, the second is whole."""
    steps(old(50))
    with child("tests.integration.retention_flows:purge_and_hang", where) as process:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        process.kill()
        process.wait()
        assert len(left()) == 30 and left()[0] == "o-00020"
        assert StepRecord.objects.count() == 90 and HistoryEntry.objects.count() == 30
    again = Plain.create("new", instance_id="o-00000")  # its id is free
    assert purge().total == 30
    assert left() == [again.instance_id] and not StepRecord.objects.exists()


def test_many_steps_are_many_batches() -> None:
    """SEC-13: what one transaction deletes is bounded by the steps, not by the instances alone."""
    steps(old(7), 4)
    work = Purge("default", records=10)
    totals = []
    while work.batch():
        totals.append(work.report.total)
    assert totals == [2, 4, 6, 7] and left() == []


@pytest.mark.postgresql_only
def test_no_look_reads_the_whole_table() -> None:
    """Design 9: with many instances each look of the purge, and each delete, goes by an index."""
    Plain.bulk_create(range(3_000))
    WorkflowInstance.objects.filter(pk__gt=0).update(
        status=Status.COMPLETE, wake_at=None, finished="2100-01-01T00:00:00Z"
    )
    for row in old(3):
        row.history.update(reason="old")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    plans: list[str] = []

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        # Deletes of big tables are by key or by instance.
        if sql.startswith(("SELECT", "DELETE", "UPDATE")) and "durableflow" in sql and " FOR UPDATE" not in sql:
            with connection.cursor() as other:
                other.cursor.execute("SET enable_bitmapscan = off")
                other.cursor.execute(f"EXPLAIN {sql}", params)
                plans.append(sql + "\n" + "\n".join(line for (line,) in other.cursor.fetchall()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        work = Purge("default")
        while work.batch():
            pass
    assert work.report.total == 3
    text = "\n".join(plans)
    assert "durableflow_finished" in text and "durableflow_own_retention" in text
    big = ("workflowinstance", "historyentry")
    scans = [plan for plan in plans if any(f"Seq Scan on durableflow_{table}" in plan for table in big)]
    assert not scans, scans[0]
