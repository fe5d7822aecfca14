"""Looks for what has arrived, at the moment at which the instance is let go (design 7; case EVT-02)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.engine import endings
from durableflow.engine.claims import claim
from durableflow.engine.delivery import deliver, deliver_own
from durableflow.engine.fence import fenced
from durableflow.engine.groups import Group
from durableflow.engine.lease import Lease
from durableflow.models import WorkflowInstance
from tests.support.concurrency import PATIENCE, Task
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Lookout(Workflow[None, Any]):
    """A body beside a wait."""

    class Meta:
        name = "parallel-lookout"

    looking = threading.Event()

    def run(self, event: WorkflowEvent[None], step: Step) -> Any:
        return step.gather(
            "both",
            lambda: step.do("work", self.body),  # first, so that the calling thread is in it
            lambda: step.wait_for_event("go", type="go", timeout=None).payload,
        )

    def body(self) -> str:
        assert self.looking.wait(PATIENCE), "no helper looks out"
        return "done"


def test_a_helper_that_is_late_takes_no_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helping thread that was about to look when the group was left: what has arrived is for the next execution. Nobody of this
    one would hear of it, and the instance would wait for ever."""
    monkeypatch.setattr(Lookout, "looking", threading.Event())
    leaving, looked = threading.Event(), threading.Event()
    row = Lookout.create(None)
    look, suspend = Group._look_for_news, endings.suspend
    task: Task

    def late(group: Group) -> None:
        if threading.current_thread() is task.thread:
            look(group)
            return
        Lookout.looking.set()
        assert leaving.wait(PATIENCE), "the instance is not let go"
        row.send_event("go", 1)
        deliver("default")
        look(group)
        looked.set()

    def leave(lease: Lease, wake_at: Any) -> Any:
        leaving.set()
        assert looked.wait(PATIENCE), "the helper does not look"
        return suspend(lease, wake_at)

    monkeypatch.setattr(Group, "_look_for_news", late)
    with monkeypatch.context() as once:
        once.setattr(endings, "suspend", leave)
        started = threading.Event()

        def work() -> None:
            assert started.wait(PATIENCE)
            drain(0)

        task = Task(work)
        started.set()
        task.result()
    monkeypatch.undo()
    assert drained(row).output == ("done", 1)


def test_an_arrival_counts_when_it_is_committed() -> None:
    """Who looks before sees nothing of it yet, and must look again."""
    row = Lookout.create(None)
    (claimed,) = claim("default")
    row.send_event("go", 1)
    with fenced(claimed.lease):
        deliver_own(claimed.lease)
        assert claimed.lease.arrived == 0
    assert claimed.lease.arrived == 1
    row.refresh_from_db()
    assert row.sent_events.get().delivered
