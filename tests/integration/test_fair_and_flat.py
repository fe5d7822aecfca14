"""Nobody is starved, and nothing costs more because there is much of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from durableflow import Priority, Step, Workflow, WorkflowEvent, drain
from durableflow.engine import drain as drain_module
from durableflow.engine import held, slots
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.pulse import Pulse
from durableflow.models import SentEvent, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.concurrency import together

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
TABLE = WorkflowInstance._meta.db_table


def many_of(workflow: type[Workflow[Any, Any]], params: Iterable[Any]) -> list[WorkflowInstance]:
    """An instance for each of ``params``, in one transaction."""
    with transaction.atomic():
        return [workflow.create(given) for given in params]


def one_execution() -> int:
    """Whatever is due next; 0 if nothing is."""
    return drain(seconds=0)


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.LOW])
def test_busy_instances_do_not_starve_a_new_one(priority: Priority) -> None:
    """OPS-10, design 4 "Claim": five instances are resumed for ever, with high priority; a new one of a lower priority
    gets its turn within the turns that the oldest of all have."""
    ran: list[str] = []

    class Busy(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            for turn in range(400):
                step.do(f"turn {turn}", ran.append, "busy")
                step.wait_for_event(f"go {turn}", type="go", timeout="1 hour")

    class Quiet(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            step.do("body", ran.append, "quiet")

    busy = [Busy.create(priority=Priority.HIGH) for _ in range(5)]
    while drain(seconds=0):
        pass
    quiet = Quiet.create(priority=priority)
    ran.clear()
    while "quiet" not in ran:
        assert len(ran) <= 4 * (len(busy) + 2), "a new instance is starved"
        for row in busy:
            row.send_event("go")
        assert one_execution()
    quiet.refresh_from_db()
    assert quiet.status == S.COMPLETE


def test_an_answered_gate_comes_before_new_instances() -> None:
    """OPS-09: a person is waiting at the screen; fifty that nobody has begun are not."""
    ran: list[str] = []

    class Gate(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            step.wait_for_event("go", type="go", timeout="1 hour")
            step.do("body", ran.append, "gate")

    class New(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            step.do("body", ran.append, "new")

    gates = [Gate.create() for _ in range(8)]
    while drain(seconds=0):
        pass
    many_of(New, [None] * 50)
    for gate in gates:
        gate.send_event("go")
    while ran.count("gate") < len(gates):
        assert one_execution()
    # Of four claims one takes the oldest of all, and that is a new one.
    assert ran.count("new") <= len(gates) // 3 + 1, ran


def test_a_thousand_events_to_one_instance() -> None:
    """OPS-01, OPS-10: each is applied once, in order, in a few executions, and others go on meanwhile."""
    events = 1000

    class Collects(Workflow[None, list[int]]):
        def run(self, event: WorkflowEvent[None], step: Step) -> list[int]:
            return [step.wait_for_event("number", type="number", timeout="1 hour").payload for _ in range(events)]

    class Other(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            step.do("body", lambda: None)

    row = Collects.create()
    drain(seconds=0)
    with transaction.atomic():
        for number in range(events):
            row.send_event("number", number, dedupe_key=str(number))
    others = [Other.create() for _ in range(10)]
    executions = 0
    while done := drain(seconds=0):
        executions += done
    row.refresh_from_db()
    assert (row.status, row.output) == (S.COMPLETE, list(range(events)))
    assert executions <= len(others) + 1 + events / 500, "one execution takes what is there"
    assert not SentEvent.objects.filter(instance=row.pk, consumed_by="").exists()
    assert {other.status for other in WorkflowInstance.objects.filter(pk__in=[o.pk for o in others])} == {S.COMPLETE}


def test_three_hundred_due_at_the_same_moment(stopped_clock: StoppedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPS-10, CON-01: four drains at once; each instance wakes once, in chunks no larger than what a drain can run, and
    those that were begun meanwhile are served too."""
    ran: list[str] = []
    taken: list[int] = []

    class Sleeps(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            step.sleep_until("nine", nine)
            step.do("body", ran.append, step.instance_id)

    def look(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        taken.append(len(found if isinstance(found, list) else found.taken))
        return found

    name = "claim" if hasattr(drain_module, "claim") else "look"
    real: Callable[..., Any] = getattr(drain_module, name)
    nine = stopped_clock.now.replace(hour=13)
    rows = many_of(Sleeps, [None] * 300)
    while drain(seconds=5):
        pass
    assert ran == [] and {row.status for row in WorkflowInstance.objects.all()} == {S.WAITING}
    stopped_clock.advance("1 hour")
    monkeypatch.setattr(drain_module, name, look)
    late = Sleeps.create()

    def work() -> None:
        while drain(seconds=0.5):
            pass

    for task in together(work, work, work, work):
        task.result()
    assert Counter(ran) == Counter([row.instance_id for row in [*rows, late]])
    assert max(taken) <= 1, "a drain with one thread takes one at a time"


def test_nothing_to_do_costs_a_few_reads_and_no_execution(
    stopped_clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-12: instances in every waiting state; a hundred looks execute nothing, write nothing, and read the same little,
    however many they are."""

    class Waits(Workflow[int, None]):
        def run(self, event: WorkflowEvent[int], step: Step) -> None:
            if event.params == 0:
                step.sleep("nap", "1 day")
            elif event.params == 1:
                step.wait_for_event("event", type="e", timeout=None)
            elif event.params == 2:
                step.wait_for_approval("person", timeout="1 day")
            else:
                step.do("fails", self.fails, retries=3)

        def fails(self) -> None:
            raise ConnectionError

    # Once in a while it looks for what no clock makes due; that a slow machine does it more often does not count here.
    for module in (held, slots):
        monkeypatch.setattr(module, "_pulse", Pulse(3600))

    def reads() -> int:
        claim("default")
        with CaptureQueriesContext(connection) as queries:
            for _ in range(100):
                deliver("default")
                assert claim("default") == []
        verbs = Counter(query["sql"].split()[0] for query in queries.captured_queries)
        assert not verbs.keys() & {"INSERT", "DELETE", "BEGIN"}, verbs
        return len(queries)

    for kind in range(4):
        Waits.create(kind)
    Waits.create(0, start_at="1 day")
    while drain(seconds=1):
        pass
    before = {row.pk: (row.execution, row.status, row.wake_at) for row in WorkflowInstance.objects.all()}
    few = reads()
    many_of(Waits, [kind for kind in range(3) for _ in range(30)])
    while drain(seconds=5):
        pass
    many = reads()
    assert many == few
    after = {row.pk: (row.execution, row.status, row.wake_at) for row in WorkflowInstance.objects.filter(pk__in=before)}
    assert after == before


# At scale -------------------------------------------------------------------------------------------------------------


def multiply(row: WorkflowInstance, times: int, **changed: str) -> None:
    """``times`` copies of a row; ``changed``: SQL expressions for some of its columns."""
    columns = [str(field.column) for field in WorkflowInstance._meta.concrete_fields if not field.primary_key]
    changed = {"instance_id": "'copy-' || n || '-' || id", "seed": "gen_random_uuid()", **changed}
    values = ", ".join(changed.get(column, column) for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {TABLE} ({', '.join(columns)}) SELECT {values} FROM {TABLE}, generate_series(1, {times}) AS n WHERE id = %s",
            [row.pk],
        )
        cursor.execute(f"ANALYZE {TABLE}")


class Statements:
    """Notes each statement that goes over Django's connection."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.seen.append((sql, params))
        return execute(sql, params, many, context)


def pages(sql: str, params: Any) -> int:
    """Pages of the shared cache that a statement touches; what it does is undone."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
        (answer,) = cursor.fetchone()
        transaction.set_rollback(True)
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def pages_of_a_look() -> int:
    """Pages that delivery and claim touch when ten instances are due, and nothing is in the inbox."""
    statements = Statements()
    with connection.execute_wrapper(statements), transaction.atomic():
        deliver("default")
        claim("default", limit=4)
        transaction.set_rollback(True)
    return sum(pages(sql, params) for sql, params in statements.seen if sql.lstrip().startswith(("SELECT", "WITH")))


@pytest.mark.postgresql_only
def test_a_claim_reads_no_more_among_a_hundred_thousand() -> None:
    """OPS-10, design 11: 80,000 waiting and 40,000 finished instances; a claim touches a few pages, by the plan that
    PostgreSQL ran, not by a clock."""

    class Sleeps(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            step.sleep("nap", "1 day")

    class Ends(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            """At once."""

    sleeps, ends = Sleeps.create(), Ends.create()
    while drain(seconds=5):
        pass
    many_of(Ends, [None] * 10)
    few = pages_of_a_look()
    sleeps.refresh_from_db()
    ends.refresh_from_db()
    assert (sleeps.status, ends.status) == (S.WAITING, S.COMPLETE)
    multiply(sleeps, 80_000, wake_at="wake_at + n * interval '1 second'")
    multiply(ends, 40_000)
    many_of(Ends, [None] * 10)
    many = pages_of_a_look()
    assert many <= few + 250, f"{few} pages among few, {many} among many"
    with connection.cursor() as cursor:
        cursor.execute("SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off")
        scanned = pages_of_a_look()
        cursor.execute("RESET ALL")
    assert scanned > many + 2000, "the measure sees a scan"
