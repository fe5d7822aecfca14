"""``bulk_create``: thousands of instances in few statements (api.md; case BAT-01)."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from durableflow import (
    CodecError,
    InstanceAlreadyExists,
    LimitExceeded,
    Priority,
    Step,
    Workflow,
    WorkflowEvent,
    drain,
)
from durableflow.core.exceptions import InvalidDurableCall
from durableflow.models import HistoryEntry, WorkflowInstance
from durableflow.models.creation import Taken, insert_many
from tests.conftest import UserFactory
from tests.support.concurrency import Gate, Task, together

pytestmark = pytest.mark.django_db(transaction=True)
Status = WorkflowInstance.Status


class Batched(Workflow[Any, Any]):
    class Meta:
        name = "bat-batched"
        priority = Priority.LOW
        max_duration = "1 hour"
        max_concurrency = 2
        concurrency_key = lambda params: params.get("customer") if isinstance(params, dict) else None  # noqa: E731

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        return event.params


class Renamed(Workflow[Any, Any]):
    class Meta:
        name = "bat-now"
        previous_names = ("bat-before",)

    def run(self, event: WorkflowEvent[Any], step: Step) -> None:
        """Nothing."""


class StartsInRun(Workflow[Any, Any]):
    class Meta:
        name = "bat-starts"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        if event.params:
            return len(Renamed.bulk_create([1, 2], instance_id=lambda n: f"r-{n}", ignore_conflicts=True))
        with pytest.raises(InvalidDurableCall, match=r"bulk_create\(\) was called in run\(\)"):
            Renamed.bulk_create([1, 2])
        return step.do("well", lambda: len(Renamed.bulk_create([1, 2])))


def name(params: Any) -> str:
    return str(params)


def stored() -> int:
    return WorkflowInstance.objects.count() + HistoryEntry.objects.count()


def test_they_come_back_in_order_and_run(user_factory: UserFactory) -> None:
    ada = user_factory("ada")
    rows = Batched.bulk_create(({"n": n, "customer": "c"} for n in range(25)), created_by=ada)
    assert [row.params["n"] for row in rows] == list(range(25))
    assert len({row.pk for row in rows}) == 25 and len({row.seed for row in rows}) == 25
    for row in WorkflowInstance.objects.all():
        assert (row.status, row.priority, row.claim_class, row.trigger) == (Status.QUEUED, Priority.LOW, 5, "code")
        assert (row.concurrency_key, row.created_by, row.created_by_name) == ("bat-batched:c", ada, "ada")
        assert row.deadline_at is not None and (row.deadline_at - row.created).total_seconds() == 3600
        (entry,) = row.history.all()
        assert (entry.type, entry.data, entry.actor, entry.actor_name) == (
            "workflow_queued", {"trigger": "code"}, ada, "ada",
        )  # fmt: skip
        assert (entry.via, entry.at, entry.run_number) == ("code", row.created, 1)
    assert drain() == 25
    rows[3].refresh_from_db()
    assert rows[3].output == {"n": 3, "customer": "c"}
    assert Batched.bulk_create([]) == []


def test_bat_01_repeated_and_existing_ids() -> None:
    """BAT-01: [a, a, b] while b exists gives one a; b is untouched; the same batch again gives nothing."""
    (existing,) = Batched.bulk_create(["b"], instance_id=name)
    before = WorkflowInstance.objects.values().get(pk=existing.pk)
    (made,) = Batched.bulk_create(["a", "a", "b"], instance_id=name, ignore_conflicts=True)
    assert (made.instance_id, made.params, WorkflowInstance.objects.count()) == ("a", "a", 2)
    assert WorkflowInstance.objects.values().get(pk=existing.pk) == before
    assert Batched.bulk_create(["a", "a", "b"], instance_id=name, ignore_conflicts=True) == []
    assert existing.history.count() == made.history.count() == 1


@pytest.mark.parametrize(("ids", "position"), [(["x", "b", "y"], 1), (["x", "y", "x"], 2)])
def test_without_ignoring_it_is_all_or_nothing(ids: list[str], position: int) -> None:
    """BAT-01: a taken or repeated id is named with its place, nothing is stored, and the caller's transaction stays usable."""
    Batched.create("b", instance_id="b")
    before = stored()
    with transaction.atomic():
        with pytest.raises(InstanceAlreadyExists, match=f"Entry {position}: .*'{ids[position]}'") as caught:
            Batched.bulk_create(ids, instance_id=name)
        assert (caught.value.workflow, caught.value.instance_id) == ("bat-batched", ids[position])
        assert stored() == before
        Batched.create("after", instance_id="after")
    assert stored() == before + 2


def refuses(params: Any) -> str:
    raise ValueError(f"no id in {params!r}")


@pytest.mark.parametrize(
    ("bad", "options", "error", "said"),
    [
        (object(), {}, CodecError, "Params of.*Give plain data"),
        ("x" * 2_000_000, {}, LimitExceeded, "Params"),
        ({"customer": ""}, {}, ValueError, "concurrency_key"),
        ("a b", {"instance_id": name}, ValueError, "instance_id"),
        ("latest", {"instance_id": name}, ValueError, "latest"),
        ("x" * 101, {"instance_id": name}, LimitExceeded, "instance_id"),
        (7, {"instance_id": lambda n: n}, ValueError, "must be a str"),
        (7, {"instance_id": lambda n: f"p-{n}" if n != 7 else refuses(n)}, ValueError, "no id in 7"),
    ],
)
def test_bad_input_names_its_place_and_stores_nothing(bad: Any, options: Any, error: Any, said: str) -> None:
    """Also behind a full statement of good ones, and with conflicts ignored."""
    good = [f"g{n}" for n in range(3)]
    with pytest.raises(error, match=f"Entry 3: .*{said}"):
        Batched.bulk_create([*good, bad], ignore_conflicts=True, batch_size=1, **options)
    assert stored() == 0
    with pytest.raises(TypeError, match="created_by"):
        Batched.bulk_create(good, created_by=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size"):
        Batched.bulk_create(good, batch_size=0)
    assert stored() == 0


def test_what_the_params_raise_is_the_callers() -> None:
    def broken() -> Any:
        yield "a"
        raise RuntimeError("the file is torn")

    with pytest.raises(RuntimeError, match="torn"):
        Batched.bulk_create(broken())
    assert stored() == 0


def test_thousands_in_few_statements() -> None:
    """Statements grow with batches, not with rows."""
    with CaptureQueriesContext(connection) as queries:
        rows = Batched.bulk_create(range(2_000))
    assert [row.params for row in rows] == list(range(2_000))
    statements = [query["sql"] for query in queries if query["sql"].startswith(("INSERT", "\n        INSERT"))]
    assert len(statements) == 2 * 4 and len(queries) <= 2 * 4 + 6
    assert HistoryEntry.objects.count() == 2_000
    with CaptureQueriesContext(connection) as queries:
        Batched.bulk_create(range(100), batch_size=10)
    assert sum("RETURNING instance_id, id" in query["sql"] for query in queries) == 10


def test_ids_under_a_previous_name_are_taken() -> None:
    """Design 5: also among more of them than a statement takes."""
    rows = Renamed.bulk_create(range(600), instance_id=lambda n: f"i-{n}")
    WorkflowInstance.objects.filter(pk=rows[599].pk).update(workflow="bat-before")
    with pytest.raises(InstanceAlreadyExists, match="i-599"):
        Renamed.bulk_create([1000, 599], instance_id=lambda n: f"i-{n}")
    made = Renamed.bulk_create(range(590, 601), instance_id=lambda n: f"i-{n}", ignore_conflicts=True)
    assert [row.instance_id for row in made] == ["i-600"]


def test_what_became_of_each_entry() -> None:
    """The same for the doors that tell of each: a row, ``exists`` or ``repeated``."""
    Batched.create(0, instance_id="b")
    plans = [Batched.planned(n, instance_id=own) for n, own in enumerate(["c", "b", "c", "a", "b"])]
    entries = insert_many(plans)
    assert [entry if isinstance(entry, Taken) else (entry.instance_id, entry.params) for entry in entries] == [
        ("c", 0), "exists", "repeated", ("a", 3), "repeated",
    ]  # fmt: skip
    assert insert_many([]) == []
    with pytest.raises(ValueError, match="one workflow"):
        insert_many([Batched.planned(1), Renamed.planned(1)])


def test_bat_01_two_overlapping_batches_at_once() -> None:
    """BAT-01: each id once, no deadlock whatever the order in which they are given, no half batch."""
    ids = [f"o-{n:03}" for n in range(150)]
    one, other = ids[:100], list(reversed(ids[50:]))
    made = together(
        lambda: Batched.bulk_create(one, instance_id=name, ignore_conflicts=True, batch_size=7),
        lambda: Batched.bulk_create(other, instance_id=name, ignore_conflicts=True, batch_size=9),
    )
    results = [task.result() for task in made]
    assert sum(len(rows) for rows in results) == 150
    assert sorted(row.instance_id for rows in results for row in rows) == ids
    assert HistoryEntry.objects.count() == 150


def test_bat_01_one_that_is_rolled_back_leaves_its_ids_free() -> None:
    """BAT-01, PostgreSQL: who meets an open transaction with the same ids waits for it, and gets them where it fails."""
    if connection.vendor != "postgresql":
        pytest.skip("on SQLite the second cannot begin before the first has ended")
    inside = Gate()

    def first() -> None:
        with transaction.atomic():
            Batched.bulk_create(["a", "b"], instance_id=name)
            inside.stop_here()
            transaction.set_rollback(True)

    holder = Task(first)
    inside.wait_until_reached()
    second = Task(lambda: Batched.bulk_create(["b", "c"], instance_id=name))
    inside.open()
    holder.result()
    assert [row.instance_id for row in second.result()] == ["b", "c"]
    assert sorted(WorkflowInstance.objects.values_list("instance_id", flat=True)) == ["b", "c"]


def test_inside_a_transaction_nothing_starts_before_its_commit() -> None:
    """CON-03: they are part of the caller's transaction."""
    with pytest.raises(RuntimeError), transaction.atomic():
        Batched.bulk_create(range(3))
        raise RuntimeError
    assert stored() == 0
    with transaction.atomic():
        Batched.bulk_create(range(3))
    assert drain() == 3


def test_in_run_it_needs_ids_or_a_step() -> None:
    """As with ``create``: each replay would start more."""
    StartsInRun.create(0)
    assert drain()
    assert WorkflowInstance.objects.filter(workflow="bat-now").count() == 2
    row = StartsInRun.create(1)
    drain()
    row.refresh_from_db()
    assert (row.output, WorkflowInstance.objects.filter(workflow="bat-now").count()) == (2, 4)


def test_the_async_twin() -> None:
    rows = async_to_sync(Batched.abulk_create)(["a", "b"], instance_id=name)
    assert [row.instance_id for row in rows] == ["a", "b"]
