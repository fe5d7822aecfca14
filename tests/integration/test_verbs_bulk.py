"""Verbs over many rows: ``durableflow.operations`` (api.md; case SEC-13)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection, models, transaction
from django.test.utils import CaptureQueriesContext

from durableflow import Step, Workflow, WorkflowEvent, drain, operations
from durableflow.models import ConcurrencyLimit, HistoryEntry, StepRecord, WorkflowInstance
from shop.models import Order
from tests.conftest import UserFactory
from tests.integration.limit_flows import Limited
from tests.support.concurrency import together

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class Failing(Workflow[Any, Any]):
    class Meta:
        name = "bulk-failing"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("one", lambda: 1)
        step.do("boom", self.boom, retries=0)

    def boom(self) -> None:
        raise ValueError("no")


def make(number: int, **columns: Any) -> list[WorkflowInstance]:
    """Instances in a state that nobody has worked for."""
    rows = [Failing.create(instance_id=f"b-{n}") for n in range(number)]
    if columns:
        WorkflowInstance.objects.update(**columns)
    return rows


def errored(number: int) -> list[WorkflowInstance]:
    return make(number, status=Status.ERRORED, wake_at=None, finished="2026-01-01T00:00:00Z")


def every() -> Any:
    return WorkflowInstance.objects.all()


def test_each_verb_reaches_each_row() -> None:
    """Each is the row's own verb, with its history, its reason and its door."""
    make(3)
    for name, status in (
        ("pause", Status.PAUSED),
        ("resume", Status.QUEUED),
        ("terminate", Status.TERMINATED),
        ("restart", Status.QUEUED),
    ):
        report = getattr(operations, f"bulk_{name}")(every(), by=None, reason=f"why {name}", via="cli")
        assert [row.instance_id for row in report.done] == ["b-0", "b-1", "b-2"], name
        assert report.skipped == [] and {row.status for row in report.done} == {status}
        last = [row.history.order_by("id").last() for row in every()]
        assert {(entry.reason, entry.via) for entry in last} == {(f"why {name}", "cli")}
    WorkflowInstance.objects.update(status=Status.ERRORED, wake_at=None, finished="2026-01-01T00:00:00Z")
    assert len(operations.bulk_retry(every(), by=None).done) == 3
    assert {row.status for row in every()} == {Status.QUEUED}
    assert len(operations.bulk_delete(every(), by=None).done) == 3
    assert not every().exists() and not HistoryEntry.objects.exists()


def test_what_refuses_is_left_out_and_holds_up_nobody(user_factory: UserFactory) -> None:
    """SEC-13: n done, m refused, each with its reason; the status that it met, and a code for programs."""
    rows = errored(4)
    WorkflowInstance.objects.filter(pk=rows[1].pk).update(status=Status.COMPLETE)
    report = operations.bulk_retry(every(), by=None)
    assert [row.pk for row in report.done] == [rows[0].pk, rows[2].pk, rows[3].pk]
    ((row, reason),) = report.skipped
    assert row.pk == rows[1].pk and (reason.code, reason.status) == ("invalid_transition", "complete")
    assert "bulk-failing/b-1" in reason
    assert str(report) == "3 done, 1 skipped (invalid_transition: 1)"

    again = operations.bulk_retry(every(), by=None)
    assert again.done == [] and again.reasons() == {"invalid_transition": 4}  # a second click does nothing

    nobody = user_factory("nobody")
    report = operations.bulk_terminate(every(), by=nobody)
    assert report.done == [] and {why.code for _row, why in report.skipped} == {"permission_denied"}
    assert "durableflow.operate_workflowinstance" in report.skipped[0][1]


def test_rights_are_asked_for_each_row(user_factory: UserFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """``by`` may hold the right for some rows only."""
    rows = make(3)
    person = user_factory("person")
    mine = rows[1].pk
    monkeypatch.setattr(type(person), "has_perm", lambda self, perm, obj=None: obj is not None and obj.pk == mine)
    for verb in (operations.bulk_pause, operations.bulk_delete):
        report = verb(every(), by=person)
        assert [row.pk for row in report.done] == [mine]
        assert [row.pk for row, _why in report.skipped] == [rows[0].pk, rows[2].pk]
    assert set(every().values_list("pk", flat=True)) == {rows[0].pk, rows[2].pk}


def test_which_rows_is_settled_at_the_beginning() -> None:
    """A filter on what the verb changes, an order, a slice and a join that repeats rows all work."""
    make(250)
    report = operations.bulk_pause(every().filter(status=Status.QUEUED), by=None)
    assert len(report.done) == 250
    report = operations.bulk_resume(every().order_by("-created", "instance_id")[:20], by=None)
    assert len(report.done) == 20 and [row.pk for row in report.done] == sorted(row.pk for row in report.done)
    twice = every().filter(history__type__startswith="workflow_", status=Status.PAUSED)
    report = operations.bulk_resume(twice, by=None)
    assert len(report.done) == 230 and report.skipped == []
    with pytest.raises(TypeError, match=r"without values\(\)"):
        operations.bulk_resume(every().values("pk"), by=None)
    with pytest.raises(TypeError, match="HistoryEntry"):
        operations.bulk_resume(HistoryEntry.objects.all(), by=None)
    with pytest.raises(ValueError, match="reason"):
        operations.bulk_pause(every(), by=None, reason="\0")


def test_progress_and_rows_that_go_meanwhile() -> None:
    """SEC-13: one of them changes its status, and one is deleted, while the others are worked on."""
    rows = errored(250)
    seen: list[tuple[int, int]] = []

    def progress(looked: int, total: int) -> None:
        seen.append((looked, total))
        if looked == 100:
            WorkflowInstance.objects.get(pk=rows[150].pk).retry()
            WorkflowInstance.objects.get(pk=rows[151].pk).delete()

    report = operations.bulk_retry(every(), by=None, progress=progress)
    assert seen == [(100, 250), (200, 250), (250, 250)]
    assert len(report.done) == 248
    (changed, why), (gone, because) = report.skipped
    assert (changed.pk, why.code, why.status) == (rows[150].pk, "invalid_transition", "queued")
    assert (gone.label, because.code) == ("bulk-failing/b-151", "not_found")

    deleted = operations.bulk_delete(every(), by=None, progress=lambda looked, total: gone_too(looked, rows[240]))
    assert len(deleted.done) == 248 and deleted.reasons() == {"not_found": 1}


def test_a_row_that_goes_between_its_read_and_its_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-13: the hundred rows of a chunk are read at once."""
    rows = errored(3)
    retry = WorkflowInstance.retry

    def first_deletes_second(row: WorkflowInstance, **said: Any) -> None:
        if row.pk == rows[0].pk:
            WorkflowInstance.objects.filter(pk=rows[1].pk).delete()
        retry(row, **said)

    monkeypatch.setattr(WorkflowInstance, "retry", first_deletes_second)
    report = operations.bulk_retry(every(), by=None)
    assert [row.pk for row in report.done] == [rows[0].pk, rows[2].pk]
    assert [(row.pk, why.code) for row, why in report.skipped] == [(rows[1].pk, "not_found")]


def gone_too(looked: int, row: WorkflowInstance) -> None:
    if looked == 100:
        WorkflowInstance.objects.filter(pk=row.pk).delete()


def test_two_clicks_at_once_do_each_row_once() -> None:
    """SEC-13: whoever comes second finds it done, and says so."""
    errored(40)
    clicks = together(
        lambda: operations.bulk_retry(every(), by=None), lambda: operations.bulk_retry(every().order_by("-id"), by=None)
    )
    reports = [click.result() for click in clicks]
    assert sum(len(report.done) for report in reports) == 40
    assert sum(len(report.skipped) for report in reports) == 40
    assert HistoryEntry.objects.filter(data__contains="retry").count() == 40
    assert len(operations.bulk_delete(every(), by=None).done) == 40


def test_a_restart_of_a_row_that_somebody_restarts_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-06: two clicks at once, of which one finds the row when a worker has taken the other's run: once, whatever it is now."""
    made = errored(2)
    restart = WorkflowInstance.restart

    def late(row: Any, **said: Any) -> None:
        if row.pk == made[0].pk:
            restart(WorkflowInstance.objects.get(pk=row.pk))
            WorkflowInstance.objects.filter(pk=row.pk).update(status="waiting")
        restart(row, **said)

    monkeypatch.setattr(WorkflowInstance, "restart", late)
    report = operations.bulk_restart(every(), by=None)
    ((skipped, why),) = report.skipped
    assert [row.pk for row in report.done] == [made[1].pk]
    assert (skipped.pk, why.code, "run 1 was meant" in why) == (made[0].pk, "invalid_transition", True)
    assert set(WorkflowInstance.objects.values_list("run_number", flat=True)) == {2}


def test_rows_are_light_and_queries_are_bounded() -> None:
    """SEC-13: no big column is read, and a row more costs as many statements as the verb alone."""
    errored(120)
    with CaptureQueriesContext(connection) as few:
        assert len(operations.bulk_retry(every().order_by("id")[:10], by=None).done) == 10
    with CaptureQueriesContext(connection) as many:
        report = operations.bulk_retry(every().filter(status=Status.ERRORED), by=None)
    assert len(report.done) == 110
    assert {"params", "output", "error_data"} <= report.done[0].get_deferred_fields()
    assert len(many) <= 110 * len(few) / 10


def test_many_are_deleted_in_few_statements_with_their_steps() -> None:
    """SEC-13: rows with steps, history and waits go through the collector many at a time."""
    rows = make(100)
    StepRecord.objects.bulk_create(
        StepRecord(
            instance=row, run_number=1, kind="do", name="s", count=n, seq=n, execution=1, status="complete", config={}
        )
        for row in rows
        for n in range(1, 41)
    )
    with CaptureQueriesContext(connection) as queries:
        report = operations.bulk_delete(every(), by=None)
    assert len(report.done) == 100 and all(row.pk for row in report.done)
    assert not StepRecord.objects.exists() and not HistoryEntry.objects.exists()
    assert len(queries) < 250, len(queries)


def test_a_deletion_is_told(caplog: pytest.LogCaptureFixture, superuser: Any) -> None:
    """The history goes with the instance: the log says who deleted what, and why."""
    make(1)
    with caplog.at_level(logging.INFO, logger="durableflow.audit"):
        operations.bulk_delete(every(), by=superuser, reason="was a test", via="api")
    (record,) = [record for record in caplog.records if record.name == "durableflow.audit"]
    for part in ("bulk-failing/b-0", "superuser", "was a test"):
        assert part in record.getMessage()


def test_deleting_needs_its_own_right(user_factory: UserFactory) -> None:
    make(2)
    operator = user_factory("operator", permissions=["durableflow.operate_workflowinstance"])
    report = operations.bulk_delete(every(), by=operator)
    assert report.done == [] and report.reasons() == {"permission_denied": 2}
    operator.user_permissions.add(Permission.objects.get(codename="delete_workflowinstance"))
    operator = type(operator).objects.get(pk=operator.pk)
    assert len(operations.bulk_delete(every(), by=operator).done) == 2


def test_inside_a_transaction_all_or_nothing_is_the_callers() -> None:
    """Each verb is a savepoint of it: what refuses leaves it usable, and what rolls it back undoes all."""
    rows = errored(3)
    WorkflowInstance.objects.filter(pk=rows[0].pk).update(status=Status.COMPLETE)
    with pytest.raises(RuntimeError), transaction.atomic():
        report = operations.bulk_retry(every(), by=None)
        assert (len(report.done), len(report.skipped)) == (2, 1)
        raise RuntimeError
    assert sorted(every().values_list("status", flat=True)) == ["complete", "errored", "errored"]
    with transaction.atomic():
        operations.bulk_retry(every(), by=None)
    assert drain() == 2


def test_inside_a_transaction_all_limits_are_locked_first() -> None:
    """Design 4, "Lock order": else two of them could wait for each other, one at a limit and one at an instance."""
    rows = [Limited.create({"key": key}) for key in ("one", "two")]
    ConcurrencyLimit.objects.bulk_create(ConcurrencyLimit(key=row.concurrency_key, maximum=1) for row in rows)
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        assert len(operations.bulk_terminate(every(), by=None).done) == 2
    limits = [query["sql"] for query in queries if "durableflow_concurrencylimit" in query["sql"]]
    assert "limit-flow:one" in limits[0] and "limit-flow:two" in limits[0]


@pytest.mark.parametrize("how", [models.PROTECT, models.RESTRICT])
def test_rows_that_the_project_protects_are_left_out(monkeypatch: pytest.MonkeyPatch, how: Any) -> None:
    """Those between them are deleted all the same; the reason names the model."""
    rows = make(6)
    monkeypatch.setattr(Order._meta.get_field("checkout").remote_field, "on_delete", how)
    for row in rows[1:3]:
        Order.objects.create(checkout=row)
    report = operations.bulk_delete(every(), by=None)
    assert [row.pk for row in report.done] == [rows[n].pk for n in (0, 3, 4, 5)]
    assert report.reasons() == {"protected": 2}
    assert "bulk-failing/b-1" in report.skipped[0][1] and "shop.Order" in report.skipped[0][1]
    assert every().count() == 2
