"""A pause is asked for, and the worker dies: whoever takes the instance over pauses it, and what was lost stays known
(design 6, "Pause", "Interruptions"; case LIF-04)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.core import registry
from durableflow.engine import executor, shutdown
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.interception import Interceptor
from durableflow.engine.isolation import hand_back
from durableflow.engine.unwind import ProcessDied
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import Gate, Task, child, eventually
from tests.support.engine import drained, history_of, types_of
from tests.support.ledger import Ledger

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class PauseLost(Workflow[str, Any]):
    """One step, with a start mark or without; it tells which attempt it was."""

    class Meta:
        name = "lif-pause-lost"
        step_retries = Retries(limit=3, delay="1 hour")

    def run(self, event: WorkflowEvent[str], step: Step) -> Any:
        if event.params == "branch":
            return step.gather("one", lambda: step.do("work", self.work))[0]
        if event.params == "once":
            return step.do("work", self.work, retries=0)
        return step.do("work", self.work)

    @staticmethod
    def work() -> int:
        return get_step_context().attempt


class Dies(Interceptor):
    """The process dies in the body, when somebody has asked for a pause."""

    def __init__(self, row: WorkflowInstance) -> None:
        self.row = row

    def before_checkpoint(self, _workflow: str, identity: Any, _attempt: int) -> None:
        self.row.pause()
        raise ProcessDied


class Deadly(Interceptor):
    """The process dies in the body."""

    def before_checkpoint(self, _workflow: str, identity: Any, _attempt: int) -> None:
        raise ProcessDied


def lost(params: str) -> WorkflowInstance:
    """An instance whose worker has died in its step, while it was to be paused."""
    row = PauseLost.create(params)
    [taken] = claim("default")
    with pytest.raises(ProcessDied):
        execute(taken, interceptor=Dies(row), renew=False)
    expire_leases()
    row.refresh_from_db()
    assert (row.status, row.lease_token) == (S.WAITING_FOR_PAUSE, taken.lease.token)
    return row


def paused(row: WorkflowInstance) -> WorkflowInstance:
    drain(0)
    row.refresh_from_db()
    assert (row.status, row.wake_at, row.lease_token, row.suspect) == (S.PAUSED, None, None, False)
    assert row.interruptions == 1, "a lost worker counts, whatever comes of the instance"
    assert types_of(row)[-1] == "workflow_paused"
    return row


@pytest.mark.parametrize("params", ["", "branch", "once"])
def test_the_lost_attempt_is_charged_after_the_resume(params: str) -> None:
    """With a start mark that says so, and without one; nothing runs before."""
    row = paused(lost(params))
    assert not history_of(row, "attempt_lost")
    row.resume()
    drained(row)
    assert history_of(row, "attempt_lost") == [{"attempt": 1}]
    if params == "once":
        assert (row.status, (row.error or {})["type"]) == (S.ERRORED, "durableflow.WorkerLost")
    else:
        assert (row.status, row.output, row.interruptions) == (S.COMPLETE, 2, 0)


def test_it_is_charged_once_however_often_it_is_paused() -> None:
    """Paused, resumed and paused again before anybody has executed it."""
    row = paused(lost(""))
    for _ in range(3):
        row.resume()
        row.pause()
    row.resume()
    assert drained(row).output == 2
    assert history_of(row, "attempt_lost") == [{"attempt": 1}]


def test_a_lost_attempt_is_owed_by_one_that_is_blocked_before_it_could_be_charged() -> None:
    """A deploy had no code for it, or it was given back too often: the resume does not give it an attempt more."""
    row = PauseLost.create("")
    [taken] = claim("default")
    with pytest.raises(ProcessDied):
        execute(taken, interceptor=Deadly(), renew=False)
    expire_leases()
    WorkflowInstance.objects.update(give_backs=executor.MAX_GIVE_BACKS)
    assert drained(row).blocked
    for _ in range(2):
        row.resume()
        WorkflowInstance.objects.update(give_backs=executor.MAX_GIVE_BACKS)
        assert drained(row).blocked
    row.resume()
    assert drained(row).output == 2
    assert history_of(row, "attempt_lost") == [{"attempt": 1}]


@pytest.mark.parametrize("by_stop", [False, True])
def test_whoever_takes_it_up_gives_it_back_before_its_first_step(
    monkeypatch: pytest.MonkeyPatch, by_stop: bool
) -> None:
    """A stop hits before the step: the lost attempt is still owed, and no second worker was lost."""
    row = lost("")
    if by_stop:  # its owner had been asked to stop, so that this is no lost worker
        WorkflowInstance.objects.filter(pk=row.pk).update(owner=-5)
    drain(0)
    row.refresh_from_db()
    counts = (row.interruptions, row.give_backs)
    assert counts == ((0, 1) if by_stop else (1, 0))
    row.resume()
    for _ in range(2):
        with monkeypatch.context() as stopping:
            original = executor.load_journal

            def load(*args: Any, _original: Any = original, _stop: Any = stopping, **options: Any) -> Any:
                _stop.setattr(shutdown, "_sources", [lambda: True])
                return _original(*args, **options)

            stopping.setattr(executor, "load_journal", load)
            [taken] = claim("default", pk=row.pk)
            with pytest.raises(KeyboardInterrupt):
                execute(taken, renew=False)
        row.refresh_from_db()
        assert (row.status, row.interruptions, row.give_backs) == (S.QUEUED, *counts)
    assert drained(row).output == 2
    assert history_of(row, "attempt_lost") == [{"attempt": 1}]


def test_what_the_lost_worker_had_recorded_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had failed, and was about to wait for its retry: no attempt was lost with it."""
    row = PauseLost.create("")
    [taken] = claim("default")
    executed: list[int] = []

    class Fails(Interceptor):
        def body(self, _workflow: str, _identity: Any, number: int, body: Any) -> Any:
            def fail() -> None:
                executed.append(number)
                raise RuntimeError("fails")

            return fail

    def die(*_args: Any) -> None:
        row.pause()
        raise ProcessDied

    with monkeypatch.context() as dying, pytest.raises(ProcessDied):
        dying.setattr(executor, "_suspend", die)
        execute(taken, interceptor=Fails(), renew=False)
    expire_leases()
    paused(row)
    row.resume()
    row.steps.update(wake_at=row.created)
    assert drained(row).output == 2
    assert not history_of(row, "attempt_lost")


@pytest.mark.parametrize("verb", ["terminate", "restart"])
def test_what_ends_the_run_ends_the_debt(verb: str) -> None:
    """Nobody will be charged for it any more."""
    row = paused(lost(""))
    getattr(row, verb)()
    row.refresh_from_db()
    assert row.owner is None
    if verb == "restart":
        assert drained(row).output == 1


def test_code_that_does_not_know_the_workflow_pauses_it_all_the_same() -> None:
    """Nothing of it is run for that."""
    row = lost("")
    with registry.isolated():
        del registry._classes["lif-pause-lost"]
        paused(row)
    assert row.hold == ""


def test_a_takeover_that_is_undone_leaves_the_request() -> None:
    """The process that has taken it over must stop before it has paused it: the next one pauses."""
    row = lost("")
    [taken] = claim("default")
    assert taken.lease.pausing
    hand_back(taken)
    row.refresh_from_db()
    assert (row.status, row.interruptions, row.suspect) == (S.WAITING_FOR_PAUSE, 0, True)
    expire_leases()
    paused(row)
    row.resume()
    assert drained(row).output == 2


def test_a_busy_process_pauses_it_at_once() -> None:
    """An instance that was interrupted is to be alone; of this one nothing runs, so that it need not wait for the others."""
    row, gate = lost(""), Gate()

    class PauseBeside(Workflow[Any, Any]):
        class Meta:
            name = "lif-pause-beside"

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            step.do("long", gate.stop_here)

    PauseBeside.create()
    WorkflowInstance.objects.filter(pk=row.pk).update(wake_at=None)
    task = Task(lambda: drain(0))
    try:
        gate.wait_until_reached()
        expire_leases_of(row)
        paused(row)
    finally:
        gate.open()
        task.result()


def expire_leases_of(row: WorkflowInstance) -> None:
    WorkflowInstance.objects.filter(pk=row.pk).update(wake_at=row.created, suspect=True)


def work_for_long(path: str) -> None:
    """In a child process: claim and execute; the body tells that it runs."""
    PauseKilled.path = path
    drain(5)


class PauseKilled(Workflow[Any, int]):
    """A body that does not end by itself the first time."""

    path = ""

    class Meta:
        name = "lif-pause-killed"
        step_retries = Retries(limit=3, delay=0)

    def run(self, event: WorkflowEvent[Any], step: Step) -> int:
        return step.do("work", self.work)

    def work(self) -> int:
        attempt = get_step_context().attempt
        if self.path:
            Ledger(self.path).add(f"attempt {attempt}")
            signal.pause()
        return attempt


def test_a_real_process_is_killed_while_it_is_to_be_paused(tmp_path: Path) -> None:
    """kill -9 between the request and the end of the body."""
    row = PauseKilled.create()
    path = str(tmp_path / "ledger")
    with child("tests.integration.test_lif_pause_takeover:work_for_long", path) as worker:
        eventually(lambda: Ledger(path).lines, "the body runs")
        row.pause()
        assert row.status == S.WAITING_FOR_PAUSE
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
    expire_leases()
    paused(row)
    row.resume()
    assert drained(row).output == 2
