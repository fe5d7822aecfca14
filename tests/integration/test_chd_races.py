"""Children that end at the same instant, workers that are killed, verbs in between (design 7; cases CHD-03, CHD-04, OPS-11)."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from durableflow import InvalidTransition, Step, Workflow, WorkflowEvent, WorkflowFailed, drain
from durableflow.engine.claims import claim, look
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.models import SentEvent, WorkflowInstance
from tests.integration import chd_flows
from tests.integration.chd_flows import Child, S, children_of, fresh, history, record_of, settle
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import Gate, Task, child, eventually, held, together

pytestmark = pytest.mark.django_db(transaction=True)


class Joiner(Workflow[Any, Any]):
    class Meta:
        name = "chd-race-joiner"

    def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
        found = step.run_workflows(
            "children", Child, event.params["of"], concurrency=event.params.get("window"), return_exceptions=True
        )
        return [item.status if isinstance(item, WorkflowFailed) else item for item in found]


def begun(params: dict[str, Any]) -> WorkflowInstance:
    """A parent that has started its children, none of which has run."""
    row = Joiner.create(params)
    (claimed,) = claim("default", pk=row.pk)
    execute(claimed, renew=False)
    return row


@pytest.mark.parametrize("turn", range(5))
def test_all_children_end_at_the_same_instant(turn: int) -> None:
    """Case OPS-11: real threads end them together while two deliver; each is counted once, none is lost, one replay."""
    row = begun({"of": [{"n": n} for n in range(12)]})
    taken = look("default", 12).taken
    assert len(taken) == 12
    over: list[int] = []

    def end(item: Any) -> None:
        try:
            execute(item, renew=False)
        finally:
            over.append(1)

    def delivering() -> None:
        while len(over) < 12:
            deliver("default")

    for task in together(*[lambda item=item: end(item) for item in taken], delivering, delivering):
        task.result()
    settle()
    assert record_of(row, "children").remaining == 0
    before = fresh(row).execution
    drain(10)
    row.refresh_from_db()
    assert (row.status, row.output, row.execution - before) == (S.COMPLETE, list(range(12)), 1)
    assert len(history(row, "child_finished")) == 12
    assert not SentEvent.objects.filter(delivered=False).exists()


def terminate(pk: int) -> None:
    """Unless it has ended meanwhile."""
    with suppress(InvalidTransition):
        WorkflowInstance.objects.get(pk=pk).terminate()


@pytest.mark.parametrize("turn", range(8))
def test_ends_verbs_and_deliveries_of_one_window_do_not_deadlock(turn: int) -> None:
    """Design 4: ends, terminations and the parent's own end, all at one moment: whoever wins, nobody is left over."""
    chance = random.Random(turn)
    row = begun({"of": [{"n": n} for n in range(8)], "window": 4})
    taken = look("default", 4).taken
    victims = [found.pk for found in chance.sample(children_of(row), 2)]
    if chance.random() < 0.5:
        victims.append(row.pk)
    jobs: list[Any] = [lambda item=item: execute(item, renew=False) for item in taken]
    jobs += [lambda pk=pk: terminate(pk) for pk in victims]
    jobs += [lambda: [deliver("default") for _ in range(10)]] * 2
    for task in together(*jobs):
        task.result()
    drain(10)
    row.refresh_from_db()
    assert row.is_finished and all(found.is_finished for found in children_of(row))
    assert not SentEvent.objects.filter(delivered=False).exists()
    if row.pk not in victims:
        assert all(item in (n, "terminated") for n, item in enumerate(row.output))
        assert row.output.count("terminated") <= 2


def test_a_message_that_two_deliver_counts_once() -> None:
    """Two looks at one moment: the second finds the record settled."""
    row = begun({"of": [{"n": 1}, {"wait": 1}]})
    first = children_of(row)[0]
    (item,) = claim("default", pk=first.pk)
    execute(item, renew=False)
    for task in together(*[lambda: deliver("default")] * 4):
        task.result()
    assert record_of(row, "children").remaining == 1 and len(history(row, "child_finished")) == 1


@pytest.mark.postgresql_only
def test_the_next_child_is_held_by_somebody() -> None:
    """A user's open transaction on a parked child: its turn comes when that is over; other parents go on meanwhile."""
    row = begun({"of": [{"n": n} for n in range(3)], "window": 1})
    other = begun({"of": [{"n": n} for n in range(3)], "window": 1})
    first, second, _ = children_of(row)
    with held(second):
        drain(2)
        assert (fresh(first).status, fresh(second).hold) == (S.COMPLETE, "window")
        assert fresh(other).output == [0, 1, 2]
    drain(10)
    assert fresh(row).output == [0, 1, 2]


@pytest.mark.postgresql_only
def test_a_child_that_ends_waits_for_nobody() -> None:
    """Design 4: senders never lock the instance: the parent's row is held, and the child ends."""
    row = begun({"of": [{"n": 1}]})
    with held(row):
        (item,) = claim("default")
        Task(lambda: execute(item, renew=False)).result()
        assert children_of(row)[0].status == S.COMPLETE
        assert deliver("default") is True
    drain(10)
    assert fresh(row).output == [1]


def test_a_result_that_comes_while_the_parent_runs() -> None:
    """Design 4: ``woken``: the parent that is leased in another branch hears of it, and no wake is lost."""
    gate = Gate()

    class Branches(Workflow[Any, Any]):
        class Meta:
            name = "chd-branches"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.gather(
                "both",
                lambda: step.run_workflow("child", Child, {"n": 5}),
                lambda: step.do("long", gate.stop_here),
                lambda: step.run_workflows("children", Child, [{"n": 6}, {"n": 7}]),
                concurrency=1,
            )

    row = Branches.create()
    worker = Task(lambda: drain(0.1))
    gate.wait_until_reached()
    while children_of(row) and not all(found.is_finished for found in children_of(row)):
        for item in look("default", 4).taken:
            execute(item, renew=False)
    settle()
    gate.open()
    worker.result()
    drain(10)
    assert fresh(row).output == (5, None, [6, 7])


def test_workers_that_are_killed_lose_no_child() -> None:
    """Cases CHD-03, OPS-11: two processes work on parents and children, and are killed again and again: each child once, all
    results there, a small number of replays."""
    rows = [chd_flows.Nested.create({"of": 12, "window": window}) for window in (None, 3, 5)]
    rounds = random.Random(5)
    with ExitStack() as stack:
        for _ in range(4):
            workers = [stack.enter_context(child("tests.integration.chd_flows:drain_for_ever")) for _ in range(2)]
            for worker in workers:
                assert worker.stdout is not None and worker.stdout.readline().strip() == "ready"
            time.sleep(rounds.uniform(0.05, 0.4))  # the moment of the kill
            for worker in workers:
                worker.kill()
                worker.wait()
            expire_leases()
    eventually(lambda: drain(0.2) == 0 and not WorkflowInstance.objects.active().exists(), "the end")
    for row in rows:
        row.refresh_from_db()
        assert (row.status, row.output) == (S.COMPLETE, [n * 10 for n in range(12)])
        assert len(children_of(row)) == 12
    assert WorkflowInstance.objects.count() == 3 + 3 * 12 * 2
    assert not SentEvent.objects.filter(delivered=False).exists()
