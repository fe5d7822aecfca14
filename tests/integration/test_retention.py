"""How long finished instances are kept, and what the purge takes (design 9; reference 14; cases LIF-12, LIF-13, LIF-14)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from durableflow import Retention, Step, Workflow, WorkflowEvent, drain
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.models import (
    ConcurrencyLimit,
    HistoryEntry,
    PendingEvent,
    SentEvent,
    StepRecord,
    WorkflowInstance,
)
from durableflow.operations import Purged, purge
from durableflow.operations.purge import PATIENCE
from durableflow.testing import harness
from tests.integration.chd_flows import Child, parent, waiting
from tests.integration.conftest import StoppedClock
from tests.integration.retention_flows import Half, Kept, Plain, ended, left, old

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class Sleeps(Workflow[Any, Any]):
    class Meta:
        name = "ret-sleeps"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("before", lambda: 1)
        step.sleep("long", "10 years")


class Rich(Workflow[Any, Any]):
    """Leaves a row in each table."""

    class Meta:
        name = "ret-rich"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("one", lambda: 1)
        step.wait_for_event("note", type="note", timeout=None)
        step.start_workflow("child", Plain, 1)


@pytest.mark.parametrize(
    ("workflow", "status", "days"),
    [
        (Plain, Status.COMPLETE, 30),
        (Plain, Status.TERMINATED, 30),
        (Plain, Status.ERRORED, 90),
        (Kept, Status.COMPLETE, 10),
        (Kept, Status.TERMINATED, 10),
        (Kept, Status.ERRORED, 20),
        (Half, Status.COMPLETE, 30),
        (Half, Status.ERRORED, 5),
    ],
)
def test_meta_and_settings_say_how_long(workflow: Any, status: str, days: int) -> None:
    """Reference 14: success covers complete and terminated, error covers errored; Meta comes before the settings, key by key."""
    ended(workflow.create(instance_id="over"), status, days + 0.01)
    ended(workflow.create(instance_id="kept"), status, days - 0.01)
    ended(Plain.create(instance_id="young"), status, 1)
    report = purge()
    assert left() == ["kept", "young"]
    failed = status == Status.ERRORED
    assert report.workflows == {workflow.workflow_name(): Purged(success=not failed, error=failed)}
    assert (report.total, report.dry_run) == (1, False)


def test_an_instances_own_rule_comes_first() -> None:
    """Reference 14: instance, workflow, settings; what one leaves open is taken from the next."""
    own = Retention(success="1 day")
    ended(Kept.create(instance_id="own-over", retention=own), Status.COMPLETE, 2)
    ended(Kept.create(instance_id="own-kept", retention=Retention(success="1 year")), Status.COMPLETE, 200)
    ended(Kept.create(instance_id="open-kept", retention=own), Status.ERRORED, 19)
    ended(Kept.create(instance_id="open-over", retention=own), Status.ERRORED, 21)
    ended(Half.create(instance_id="other-over", retention=Retention(error="1 day")), Status.TERMINATED, 31)
    ended(Half.create(instance_id="other-kept", retention=Retention(error="1 day")), Status.TERMINATED, 29)
    ended(Half.create(instance_id="error-over", retention=Retention(error="1 hour")), Status.ERRORED, 0.1)
    ended(Half.create(instance_id="error-kept", retention=Retention(error="1 hour")), Status.ERRORED, 0.01)
    assert purge().total == 4
    assert left() == ["error-kept", "open-kept", "other-kept", "own-kept"]


def test_rules_count_as_they_are_at_the_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta and settings that change take old instances along; a workflow under a previous name has its present Meta, one that
    nobody knows the settings."""
    rows = [ended(Plain.create(instance_id=name), Status.COMPLETE, 15) for name in ("renamed", "unknown")]
    WorkflowInstance.objects.filter(pk=rows[0].pk).update(workflow="ret-kept-before")
    WorkflowInstance.objects.filter(pk=rows[1].pk).update(workflow="gone-from-code")
    assert purge().workflows == {"ret-kept-before": Purged(success=1)}
    with override_settings(DURABLEFLOW={"RETENTION": Retention(success="10 days")}):
        ended(Plain.create(instance_id="failed"), Status.ERRORED, 89)
        assert purge().workflows == {"gone-from-code": Purged(success=1)}
    assert left() == ["failed"]


def test_lif_14_only_the_end_counts(stopped_clock: StoppedClock) -> None:
    """LIF-14: complete 40 days ago; asleep for 60 days; paused; a parent that waits for a child."""
    complete = Plain.create(instance_id="complete")
    Sleeps.create(instance_id="asleep")
    paused = Plain.create(instance_id="paused")
    paused.pause()
    family = parent(waiting, "ret-parent")
    family.create({"wait": "x"}, instance_id="parent")
    queued = Plain.create(instance_id="future", start_at="1 year")
    drain()
    complete.refresh_from_db()
    assert complete.status == Status.COMPLETE
    stopped_clock.advance("60 days")
    assert purge().total == 1
    assert "complete" not in left()
    assert {"asleep", "future", "parent", "paused"} < set(left()) and len(left()) == 5
    assert queued.history.exists()


def test_a_child_stays_until_its_parent_knows_of_its_end(stopped_clock: StoppedClock) -> None:
    """Delivery reads the child's row: what it said is not lost because nobody was up for months."""
    family = parent(waiting, "ret-parent")
    boss = family.create({"wait": "x"}, instance_id="parent")
    drain()
    child = WorkflowInstance.objects.get(workflow=Child.workflow_name())
    child.send_event("go", "said")
    # Nobody delivers the end: it happens in this moment, and then the cluster is down for a year.
    deliver("default")
    (taken,) = claim("default")
    execute(taken, renew=False)
    child.refresh_from_db()
    assert child.status == Status.COMPLETE
    stopped_clock.advance("1 year")
    assert purge().total == 0
    drain()
    boss.refresh_from_db()
    assert (boss.status, boss.output) == (Status.COMPLETE, "said")
    assert purge().total == 1
    assert left() == ["parent"]


def test_lif_13_nothing_is_left_and_the_id_is_free(stopped_clock: StoppedClock) -> None:
    """LIF-12, LIF-13: no orphan rows in any table; the id is free again, and the new instance does its own work."""
    row = Rich.create("first", instance_id="x")
    drain()
    row.send_event("note", 1)
    drain()
    row.refresh_from_db()
    assert row.status == Status.COMPLETE and row.steps.count() == 3
    child = WorkflowInstance.objects.get(workflow="ret-plain")
    WorkflowInstance.objects.filter(pk=child.pk).update(finished=stopped_clock.now + timedelta(days=30))
    stopped_clock.advance("31 days")
    report = purge()
    assert report.workflows == {"ret-rich": Purged(success=1)}
    for model in (StepRecord, PendingEvent, SentEvent):
        assert not model.objects.exists()
    child.refresh_from_db()
    assert child.parent_step_id is None and HistoryEntry.objects.exclude(instance=child).count() == 0
    again = Rich.create("second", instance_id="x")
    drain()
    assert [step.name for step in again.steps.all()] == ["one", "note"]


def test_dry_run_says_what_would_be_and_deletes_nothing() -> None:
    ended(Plain.create(instance_id="a"), Status.COMPLETE, 40)
    ended(Kept.create(instance_id="b"), Status.ERRORED, 40)
    ConcurrencyLimit.objects.create(key="gone:x", maximum=1)
    before = left()
    report = purge(dry_run=True)
    assert left() == before and ConcurrencyLimit.objects.exists()
    assert report.dry_run and report.workflows == {"ret-kept": Purged(error=1), "ret-plain": Purged(success=1)}
    assert report.others == {"durableflow.ConcurrencyLimit": 1, "durableflow.SentEvent": 0}
    real = purge()
    assert (real.workflows, real.others) == (report.workflows, report.others)
    assert left() == [] and not ConcurrencyLimit.objects.exists()


def test_other_tables() -> None:
    """Limits that nobody uses, and what was sent to nobody; what is in use stays."""
    parked = Plain.create()
    WorkflowInstance.objects.filter(pk=parked.pk).update(concurrency_key="ret-plain:p", hold="limit", wake_at=None)
    for key, running in {"ret-plain:p": 0, "ret-plain:busy": 1, "ret-plain:idle": 0, "ret-plain": 0}.items():
        ConcurrencyLimit.objects.create(key=key, maximum=1, running=running)
    sent = Plain.create().send_event("x")
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {SentEvent._meta.db_table} SET instance_id = 999999 WHERE id = {sent.pk}")
    assert purge().others == {"durableflow.ConcurrencyLimit": 1, "durableflow.SentEvent": 1}
    assert sorted(ConcurrencyLimit.objects.values_list("key", flat=True)) == [
        "ret-plain",
        "ret-plain:busy",
        "ret-plain:p",
    ]
    assert not SentEvent.objects.exists()


def test_big_columns_are_not_read_and_batches_are_few() -> None:
    """SEC-13: outputs of a megabyte each must not meet in memory."""
    old(30)
    with CaptureQueriesContext(connection) as queries:
        assert purge().total == 30
    reads = [query["sql"] for query in queries if query["sql"].startswith("SELECT")]
    assert not any('"output"' in sql or '"params"' in sql for sql in reads)
    assert len(queries) < 60


def test_progress_counts_towards_what_was_due() -> None:
    old(7)
    seen: list[tuple[int, int]] = []
    purge(progress=lambda done, total: seen.append((done, total)))
    assert seen == [(7, 7), (7, 7)]


def test_a_projects_own_test_of_its_retention() -> None:
    """Design 10: in a ``TestCase``'s transaction, with the kit's clock; the purge leaves that transaction as it was."""
    with transaction.atomic(), harness() as workflows:
        workflows.run(Kept, 1, instance_id="x")
        workflows.advance("9 days")
        # The example's own schedule fires too, and what it starts is kept for a shorter time.
        assert "ret-kept" not in purge().workflows
        workflows.advance("1 day")
        assert purge().workflows["ret-kept"] == Purged(success=1)
        assert not Kept.instances().exists()
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SHOW lock_timeout")
                assert cursor.fetchone() != (PATIENCE,)
