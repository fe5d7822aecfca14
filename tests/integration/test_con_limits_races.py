"""Exact slots whoever comes in between: other transactions, verbs, processes that are killed (design 4)."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F, Q

from durableflow.core.transactions import write_transaction
from durableflow.engine.claims import claim, look
from durableflow.engine.executor import execute
from durableflow.models import ConcurrencyLimit, WorkflowInstance
from durableflow.testing import Harness
from tests.integration import limit_flows
from tests.integration.limit_flows import DUE, exact, limited, shown
from tests.support.concurrency import Gate, Task, child, eventually, together

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# Others -----------------------------------------------------------------------------------------------------------------


def test_a_users_transaction_that_holds_the_limit_hides_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 1.5 in spirit: what waits for that limit is put aside for a second, what is due behind it runs."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no row locks")
    flow = limited(1)
    running = flow.create()
    claim("default")
    row = flow.create()
    plain = limit_flows.Plain.create({})
    inside = Gate()

    def hold() -> None:
        with transaction.atomic():
            WorkflowInstance.objects.get(pk=running.pk).terminate()
            inside.stop_here()

    holder = Task(hold)
    inside.wait_until_reached()
    (taken,) = look("default").taken
    assert taken.lease.pk == plain.pk
    assert shown(row) == DUE and claim("default") == []
    inside.open()
    holder.result()
    (taken,) = eventually(lambda: claim("default"), "the claim")
    assert taken.lease.pk == row.pk
    exact(1)


def test_one_slot_and_many_that_want_it() -> None:
    """Design 4: eight at the same moment, one gets it, nobody deadlocks, all run in the end."""
    flow = limited(1)
    for _ in range(8):
        flow.create()
    done = 0
    for _ in range(40):
        taken = [item for task in together(*[lambda: claim("default", 4)] * 4) for item in task.result()]
        assert len(taken) <= 1
        exact(1)
        for item in taken:
            execute(item, renew=False)
            done += 1
        if done == 8:
            break
    assert done == 8 and not WorkflowInstance.objects.filter(~Q(status=S.COMPLETE)).exists()


def test_verbs_and_endings_of_one_key_do_not_deadlock() -> None:
    """Limit first, then instances: a transaction that ends several instances while their workers do."""
    flow = limited(3)
    for _ in range(8):
        rows = [flow.create() for _ in range(6)]
        held = look("default", 3).taken
        assert len(held) == 3

        def end_all(rows: list[WorkflowInstance] = rows) -> None:
            with write_transaction("default"):
                for row in WorkflowInstance.objects.filter(pk__in=[row.pk for row in rows]).order_by("-pk"):
                    if not row.is_finished:
                        row.terminate()

        tasks = together(end_all, *[lambda item=item: execute(item, renew=False) for item in held])
        for task in tasks:
            if task.error is not None and "is complete" not in str(task.error):
                raise task.error
        exact(3)
        for row in WorkflowInstance.objects.active():
            row.terminate()
        assert not ConcurrencyLimit.objects.exclude(running=0).exists()


def test_exact_over_processes_that_are_killed() -> None:
    """Design 4: four processes, killed and replaced all the time; at every moment the count is that of the rows that hold a
    slot, never above the maximum; in the end all have run and no slot is lost."""
    count, keys = 40, ("a", "b")
    for number in range(count):
        limit_flows.Limited.create({"key": keys[number % 2]})
    for _ in range(10):
        limit_flows.Plain.create({})
    chooser = random.Random(7)
    end = time.monotonic() + 100
    with ExitStack() as stack:

        def start() -> Any:
            return stack.enter_context(child("tests.integration.limit_flows:drain_for_ever"))

        processes = [start() for _ in range(3)]
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        kills, looks = 5, 0
        while WorkflowInstance.objects.active().exists():
            assert time.monotonic() < end, list(
                WorkflowInstance.objects.active().values("status", "hold", "wake_at", "holds_slot", "suspect")
            )
            exact(3)
            looks += 1
            if kills and looks % 15 == 1:  # the first at once
                kills -= 1
                victim = chooser.randrange(len(processes))
                processes[victim].kill()
                processes[victim] = start()
            for place, process in enumerate(processes):
                if process.poll() is not None and WorkflowInstance.objects.active().exists():
                    processes[place] = start()
            time.sleep(0.01)
    assert kills < 5
    assert {row.status for row in WorkflowInstance.objects.all()} == {S.COMPLETE}
    exact(3)
    assert not ConcurrencyLimit.objects.filter(~Q(running=0)).exists()
    assert ConcurrencyLimit.objects.filter(maximum=F("running") + 3).count() == len(keys)


def test_the_kit_runs_limited_workflows(workflows: Harness) -> None:
    """One after the other, in the test's own transaction, waits in between."""
    flow = limited(1, body=lambda event, step: step.wait_for_event("x", type="x").payload)
    rows = [workflows.run(flow) for _ in range(3)]
    assert {row.status for row in rows} == {S.WAITING}
    for row in rows:
        row.send_event("x", "go")
    workflows.run_due()
    assert {(row.status, row.output) for row in rows} == {(S.COMPLETE, "go")}
    exact(1)
