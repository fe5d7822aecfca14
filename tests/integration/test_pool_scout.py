"""One helper looks for due work while the thread that drains is in a body; when it dies, another one looks (design 4, "A drain")."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.engine.drain import drain_for
from durableflow.engine.pool import Pool
from durableflow.models import WorkflowInstance
from tests.integration.test_threads import pool  # noqa: F401  the fixture
from tests.support.concurrency import PATIENCE, Gate, Task, eventually

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def test_another_one_looks(pool: Pool) -> None:  # noqa: F811
    """Whatever has ended the one that did."""
    gates = [Gate() for _ in range(3)]
    threads: dict[int, threading.Thread] = {}
    dead: list[threading.Thread] = []
    armed = threading.Event()

    class Held(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.do("hold", self.hold, event.params)

        def hold(self, number: int) -> None:
            threads[number] = threading.current_thread()
            gates[number].stop_here()

    class Quick(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.do("work", threading.get_ident)

    def wanted() -> bool:
        if armed.is_set() and not dead:
            dead.append(threading.current_thread())
            raise SystemExit
        return False

    def complete(*rows: WorkflowInstance) -> bool:
        return WorkflowInstance.objects.filter(pk__in=[row.pk for row in rows], status=S.COMPLETE).count() == len(rows)

    held = [Held.create(number) for number in range(3)]
    draining = Task(lambda: drain_for(PATIENCE, wanted=wanted))
    for gate in gates:
        gate.wait_until_reached()
    helpers = [number for number, thread in threads.items() if thread is not draining.thread]
    assert len(helpers) == 2
    for number in helpers:
        gates[number].open()
    eventually(lambda: complete(*[held[number] for number in helpers]), "both helpers are free")
    eventually(lambda: pool._scout is not None and not pool._running, "one of them looks")
    armed.set()
    eventually(lambda: dead, "it dies")
    dead[0].join(PATIENCE)
    late = Quick.create()
    eventually(lambda: complete(late), "the other one has looked")
    for gate in gates:
        gate.open()
    draining.result()
