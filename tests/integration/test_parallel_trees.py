"""Random trees of gather, map, race, steps, sleeps, waits and retries, with workers that die: each comes to the value that its
program says (ENG-06, design 7)."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from durableflow import (
    InvalidTransition,
    Retries,
    StaleDecision,
    Step,
    Workflow,
    WorkflowEvent,
    drain,
    get_step_context,
)
from durableflow.core.statuses import FINISHED
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.engine.interception import Interceptor
from durableflow.engine.journal import Identity
from durableflow.engine.lease import Lease
from durableflow.engine.unwind import ProcessDied
from durableflow.models import PendingEvent, WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status

Node = tuple[Any, ...]


def tree(chooser: random.Random, depth: int) -> Node:
    """What a branch does: a list of nodes, one after the other."""
    kinds = ["do", "flaky", "sleep", "event", "approval", "race", "now"]
    if depth:
        kinds += ["gather", "map", "gather"]
    kind = chooser.choice(kinds)
    if kind == "gather":
        return ("gather", [[tree(chooser, depth - 1) for _ in range(chooser.randint(1, 2))] for _ in range(chooser.randint(1, 3))],
                chooser.choice([None, None, 1, 2]))  # fmt: skip
    if kind == "map":
        return ("map", [chooser.randint(0, 99) for _ in range(chooser.randint(0, 4))], chooser.choice([None, 2]))
    return (kind, chooser.randint(0, 99))


def value(node: Node) -> Any:
    """What the node gives."""
    kind, given, *_ = node
    if kind == "gather":
        return tuple([value(one) for one in branch] for branch in given)
    if kind == "map":
        return [item + 1 for item in given]
    return {
        "do": given,
        "flaky": given,
        "sleep": None,
        "event": True,
        "approval": True,
        "race": "late",
        "now": "now",
    }[kind]


class Trees(Workflow[int, Any]):
    """The tree of a seed."""

    class Meta:
        name = "parallel-trees"

    bodies: Counter[tuple[str, str]] = Counter()
    delay = random.Random(3)
    lock = threading.Lock()

    def run(self, event: WorkflowEvent[int], step: Step) -> Any:
        return [self.do(step, node) for node in nodes(event.params)]

    def do(self, step: Step, node: Node) -> Any:
        kind, given, *more = node
        if kind == "gather":
            branches = [(lambda b=branch: [self.do(step, one) for one in b]) for branch in given]
            return step.gather("fork", *branches, concurrency=more[0])
        if kind == "map":
            return step.map("items", self.item, given, concurrency=more[0], retries=RETRIES)
        if kind in ("do", "flaky"):
            return step.do(kind, self.body, given, kind == "flaky", retries=RETRIES)
        if kind == "sleep":
            return step.sleep("nap", given / 5000)
        if kind == "event":
            own = f"news-{step.uuid4()}"  # each wait has its own, the same at each pass
            return step.wait_for_event("news", type=own, timeout=None).type == own
        if kind == "approval":
            return bool(step.wait_for_approval("ok", timeout=None))
        if kind == "race":
            return step.race(
                "race",
                never=lambda: step.wait_for_event("never", type="never", timeout=None),
                late=lambda: step.sleep("late", given / 5000),
            ).name
        return "now" if step.now().tzinfo else ""

    def item(self, item: int) -> int:
        return self.body(item, flaky=item % 5 == 0) + 1

    def body(self, given: int, flaky: bool) -> int:
        time.sleep(self.delay.uniform(0, 0.004))  # the scenario: whoever is ready first
        if flaky and get_step_context().attempt % 2:
            raise OSError("once more")
        return given


RETRIES = Retries(limit=50, delay=0.005, backoff="constant")


def nodes(seed: int) -> list[Node]:
    chooser = random.Random(seed)
    return [tree(chooser, 3) for _ in range(4)]


class Dying(Interceptor):
    """Each so many bodies the process dies before the checkpoint."""

    def __init__(self, lease: Lease, chooser: random.Random) -> None:
        self._lease, self._left = lease, chooser.randint(2, 12)

    def before_checkpoint(self, workflow: str, identity: Identity, attempt: int) -> None:
        """See above."""
        self._left -= 1
        if self._left == 0:
            self._lease.lost = True
            raise ProcessDied(identity.label)


def answer(instance: WorkflowInstance) -> None:
    """What waits is answered."""
    for pending in PendingEvent.objects.filter(instance=instance, status="open"):
        with suppress(InvalidTransition, StaleDecision):
            if pending.is_approval:
                pending.approve(by=None)
            elif pending.types != ["never"]:
                instance.send_event(pending.types[0], dedupe_key=str(pending.pk))


@pytest.mark.parametrize("threads", [8, 1])
@pytest.mark.parametrize("seed", range(10))
def test_a_tree_comes_to_its_value(seed: int, threads: int, settings: Any) -> None:
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "BRANCH_THREADS": threads}
    chooser = random.Random(seed)
    instance = Trees.create(seed)
    end, deaths = time.monotonic() + PATIENCE, 6
    while instance.status not in FINISHED and not instance.blocked:
        assert time.monotonic() < end, (instance.status, list(instance.steps.values_list("scope", "name", "status")))
        answer(instance)
        if deaths:
            deliver("default")
            drained = [execute_and_die(claimed, chooser) for claimed in claim("default")]
            deaths -= sum(drained)
            expire_leases()
        else:
            drain(0)
        instance.refresh_from_db()
    assert (instance.status, instance.blocked, instance.error) == (S.COMPLETE, "", None)
    assert instance.output == [value(node) for node in nodes(seed)]
    assert not PendingEvent.objects.filter(instance=instance, status="open").exists()
    assert not instance.steps.filter(status__in=("pending", "started")).exists()


def execute_and_die(claimed: Any, chooser: random.Random) -> bool:
    try:
        execute(claimed, interceptor=Dying(claimed.lease, chooser))
    except ProcessDied:
        return True
    return False
