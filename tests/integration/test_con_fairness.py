"""Who is claimed next when much is due: priority without starvation, and a look that stays small (OPS-10, OPS-12, TIM-02)."""

from __future__ import annotations

import itertools
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from durableflow import Priority, Step, Workflow, WorkflowEvent, drain
from durableflow.core import clock
from durableflow.engine import claims as claims_module
from durableflow.engine import taking
from durableflow.engine.claims import claim, look
from durableflow.engine.verdicts import known
from durableflow.models import StepRecord, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.concurrency import together

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Busy(Workflow[Any, Any]):
    class Meta:
        name = "fair-busy"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        step.sleep("nap", 60)
        return step.do("a", lambda: "done")


@pytest.fixture(autouse=True)
def turns_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "_turn", itertools.count(1))


def many(
    count: int, due: datetime, priority: int = Priority.NORMAL, is_new: bool = True, **values: Any
) -> list[WorkflowInstance]:
    first = WorkflowInstance.objects.count()
    return WorkflowInstance.objects.bulk_create(
        [
            WorkflowInstance(
                workflow="fair-busy",
                instance_id=f"row-{first + number}",
                created=due,
                wake_at=due + timedelta(milliseconds=number),
                priority=priority,
                claim_class=2 * priority + is_new,
                **values,
            )
            for number in range(count)
        ]
    )


@pytest.mark.parametrize("limit", [1, 4, 7])
def test_every_fourth_claim_takes_the_oldest(stopped_clock: StoppedClock, limit: int) -> None:
    """Design 4, "Claim": the others by class, however many are claimed by one look."""
    now = stopped_clock.now
    low = many(10, now - timedelta(hours=2), Priority.LOW)
    high = many(100, now - timedelta(hours=1), Priority.HIGH)
    taken: list[int] = []
    while len(taken) < 28:
        taken += [item.lease.pk for item in look("default", limit).taken]
    assert len(taken) == 28
    assert [pk for pk in taken if pk < high[0].pk] == [row.pk for row in low[:7]]
    assert [pk for pk in taken if pk >= high[0].pk] == [row.pk for row in high[:21]]


def test_a_busy_workflow_starves_nobody(stopped_clock: StoppedClock) -> None:
    """A workflow with thousands due, resumed ones before new ones: a later urgent instance is next, an older one of low
    priority comes soon, and so does a new one of its own kind."""
    now = stopped_clock.now
    many(3000, now - timedelta(minutes=10), is_new=False)
    new = many(1, now - timedelta(minutes=11))[0]
    low = many(1, now - timedelta(minutes=12), Priority.LOW)[0]
    urgent = many(1, now - timedelta(seconds=1), Priority.HIGH)[0]
    order = [claim("default")[0].lease.pk for _ in range(8)]
    assert order[0] == urgent.pk
    assert (order[3], order[7]) == (low.pk, new.pk)


def test_three_hundred_due_at_the_same_moment(stopped_clock: StoppedClock) -> None:
    """OPS-10, TIM-02: all wake once, in bounded bites, and a new urgent one does not wait for them."""
    rows = [Busy.create() for _ in range(300)]
    drain(60)
    assert WorkflowInstance.objects.filter(status=S.WAITING).count() == 300
    stopped_clock.advance(60)
    urgent = Busy.create(priority=Priority.HIGH)
    assert [item.lease.pk for item in claim("default")] == [urgent.pk]
    tasks = together(*[lambda: [item for _ in range(10) for item in look("default", 8).taken]] * 4)
    taken = [item.lease.pk for task in tasks for item in task.result()]
    assert len(taken) == len(set(taken)) and set(taken) <= {row.pk for row in rows}
    rest = 300 - len(taken)
    assert drain(60) == rest
    assert StepRecord.objects.filter(kind="do", status="complete").count() == rest


# The size of a look -----------------------------------------------------------------------------------------------------


def rows_read(explained: list[dict[str, Any]]) -> int:
    """How many rows the scans of an executed plan gave or threw away."""
    total, todo = 0, [explained[0]["Plan"]]
    while todo:
        node = todo.pop()
        todo += node.get("Plans", [])
        if node.get("Relation Name") == "durableflow_workflowinstance" and "Scan" in node["Node Type"]:
            assert node["Node Type"] != "Seq Scan", node
            loops = node["Actual Loops"]
            total += loops * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    return int(total)


@pytest.mark.parametrize("oldest", [False, True])
def test_a_look_reads_the_heads_of_the_index_only(stopped_clock: StoppedClock, oldest: bool) -> None:
    """OPS-10, OPS-12: beside thousands that wait, are parked, held, suspect or due, a look reads a handful of rows. Told by
    the plan, not by the clock."""
    now = stopped_clock.now
    many(3000, now + timedelta(days=1), is_new=False, status=S.WAITING)
    many(2000, now + timedelta(seconds=15), hold="unknown_workflow", give_backs=1)
    many(2000, now + timedelta(seconds=5), status=S.RUNNING, suspect=True, lease_token=1, owner=1)
    parked = many(2000, now, hold="limit", concurrency_key="fair-busy")
    WorkflowInstance.objects.filter(pk__in=[row.pk for row in parked]).update(wake_at=None)
    many(3000, now - timedelta(hours=1))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    found = taking.oldest() if oldest else taking.by_class()
    if connection.vendor == "postgresql":
        near = taking._near_postgres(found, known(), clock.postgres("statement"), None)
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {near}")
            (plan,) = cursor.fetchone()
        assert rows_read(plan if isinstance(plan, list) else json.loads(plan)) <= 6
        return
    seen: list[str] = []
    original = taking.run

    def noted(using: str, sql: str, params: Any = ()) -> Any:
        seen.append("\n".join(str(row[-1]) for row in original(using, f"EXPLAIN QUERY PLAN {sql}", params)))
        return original(using, sql, params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taking, "run", noted)
        assert len(taking.due_sqlite("default", found, 1, now.strftime("%Y-%m-%d %H:%M:%S.%f"))) == 1
    assert seen[0].count("USING INDEX durableflow_due (claim_class=? AND wake_at<?)") == 6, seen[0]


def test_sweeps_read_indexes_only(stopped_clock: StoppedClock) -> None:
    """The looks at parked and at held rows cost a few probes, however many there are and however many wait beside them."""
    from durableflow.engine import held, slots

    now = stopped_clock.now
    many(3000, now + timedelta(days=1), is_new=False, status=S.WAITING)
    parked = many(3000, now, hold="limit", concurrency_key="fair-busy")
    WorkflowInstance.objects.filter(pk__in=[row.pk for row in parked]).update(wake_at=None)
    unknown = many(3000, now, hold="unknown_workflow")
    WorkflowInstance.objects.filter(pk__in=[row.pk for row in unknown]).update(workflow="nobody-knows")
    queries = [
        (slots._parked_keys(), [""]),
        (f"SELECT id FROM durableflow_workflowinstance WHERE {held.held_here()} ORDER BY workflow, id LIMIT 1", []),
    ]
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        for sql, params in queries:
            if connection.vendor == "postgresql":
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
                (plan,) = cursor.fetchone()
                assert rows_read(plan if isinstance(plan, list) else json.loads(plan)) <= 6
            else:
                cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
                plan = str(cursor.fetchall())
                assert "SCAN durableflow_workflowinstance" not in plan, plan
                assert "durableflow_parked" in plan or "durableflow_held_by_code" in plan


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite commits all alike")
def test_a_claim_is_on_the_disk_before_anything_runs() -> None:
    """Promise 3: a crash of the server must not take a claim back while its holder is in a body."""
    many(1, clock.host_now() - timedelta(seconds=1))
    statements: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        assert claim("default")
    assert not [sql for sql in statements if "synchronous_commit" in sql]
