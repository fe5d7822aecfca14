"""What an execution costs, logs and shows."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from durableflow import LimitExceeded, Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.engine import renewal, shutdown, watcher
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of, noted, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# OPS-01 ---------------------------------------------------------------------------------------------------------------


def test_queries_of_a_resume_do_not_depend_on_the_history(stopped_clock: StoppedClock) -> None:
    """OPS-01: the journal is loaded once; steps that follow each other run in one go."""
    bodies: list[int] = []

    class Long(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> int:
            for i in range(300):
                step.do("tiny", bodies.append, i)
                if i % 10 == 9:
                    step.sleep("nap", 1)
            return len(bodies)

    instance = Long.create()
    counts = []
    while instance.status not in (S.COMPLETE, S.ERRORED):
        (claimed,) = claim("default")
        with CaptureQueriesContext(connection) as queries:  # of the execution alone: a look sweeps now and then
            execute(claimed)
        counts.append(len(queries))
        stopped_clock.advance(1)
        instance.refresh_from_db()
    assert (instance.status, instance.output, len(counts)) == (S.COMPLETE, 300, 31)
    # The first has no sleep to complete, the last has no steps. All others cost the same.
    assert len(set(counts[1:-1])) == 1, counts
    assert counts[1] - counts[0] <= 6


def test_replay_is_cheap(stopped_clock: StoppedClock) -> None:
    """OPS-01: time per step at the end is at most 3 x that at the start (with room for a noisy machine)."""
    times: list[float] = []

    class Long(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            for _ in range(1000):
                began = time.perf_counter()
                step.do("tiny", lambda: None)
                times.append(time.perf_counter() - began)

    assert drained(Long.create()).status == S.COMPLETE
    start, end = sorted(times[:200]), sorted(times[-200:])
    # The quick tenth of the end: another program that runs for a moment slows down whole stretches.
    assert end[20] <= 3 * start[100]


# OPS-02 ---------------------------------------------------------------------------------------------------------------


def test_each_line_once(stopped_clock: StoppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """OPS-02: lines between steps with sleeps, before the first step, after a caught failure, around a retry."""
    caplog.set_level(logging.INFO, "durableflow.workflow")
    fails = [True]

    class Logs(Workflow):
        class Meta:
            name = "logs"

        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.logger.info("start")
            for i in range(3):
                step.do("work", lambda: None)
                step.logger.info("after work %d", i)
                step.sleep("nap", 60)
                step.logger.info("after nap %d", i)
            try:
                step.do("fails", lambda: 1 / 0, retries=0)
            except ZeroDivisionError:
                step.logger.info("caught")
            step.do("flaky", self.flaky, retries=Retries(limit=1, delay=60))
            step.logger.warning("end")

        def flaky(self) -> None:
            if fails.pop():
                fails.append(False)
                raise OSError("once")

    instance = drained(Logs.create(instance_id="i-1"))
    for _ in range(4):
        stopped_clock.advance(60)
        drained(instance)
    assert instance.status == S.COMPLETE, instance.error
    lines = [record for record in caplog.records if record.name == "durableflow.workflow.logs"]
    assert [record.getMessage() for record in lines] == [
        "start",
        *[f"after {what} {i}" for i in range(3) for what in ("work", "nap")],
        "caught",
        "end",
    ]
    assert {
        (vars(record)["workflow"], vars(record)["instance_id"], vars(record)["run_number"]) for record in lines
    } == {("logs", "i-1", 1)}
    assert lines[-1].levelname == "WARNING"


def test_is_replaying(stopped_clock: StoppedClock) -> None:
    """OPS-02: true up to the last recorded operation, false after it; in the first execution never."""
    seen: list[list[bool]] = []

    class Flag(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            flags: list[bool] = []
            seen.append(flags)
            flags.append(step.is_replaying)
            step.do("a", lambda: None)
            flags.append(step.is_replaying)
            step.sleep("nap", 60)
            flags.append(step.is_replaying)
            step.do("b", lambda: None)
            flags.append(step.is_replaying)

    instance = drained(Flag.create())
    stopped_clock.advance(60)
    drained(instance)
    assert seen == [[False, False], [True, True, False, False]]


def test_extra_of_the_author_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """OPS-02: the adapter adds ids and takes nothing away."""
    caplog.set_level(logging.INFO, "durableflow.workflow")

    class Extra(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.logger.info("line", extra={"order": 7})

    drained(Extra.create())
    (line,) = [record for record in caplog.records if record.name == "durableflow.workflow.extra"]
    assert vars(line)["order"] == 7 and vars(line)["workflow"] == "extra"


# Progress -------------------------------------------------------------------------------------------------------------


def test_progress(stopped_clock: StoppedClock) -> None:
    """Design 5: a fenced write of its own, shown at once, nothing while replaying, not part of the journal."""
    seen: list[Any] = []

    class Progress(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.set_progress({"state": "started", "list": [1, (2,)]})
            step.do("look", lambda: seen.append(WorkflowInstance.objects.get().progress))
            step.sleep("nap", 60)
            step.do("look", lambda: seen.append(WorkflowInstance.objects.get().progress))
            step.set_progress(None)

    instance = drained(Progress.create())
    assert instance.progress == {"state": "started", "list": [1, (2,)]}
    WorkflowInstance.objects.update(progress="somebody else's")
    stopped_clock.advance(60)
    assert drained(instance).status == S.COMPLETE
    assert seen == [{"state": "started", "list": [1, (2,)]}, "somebody else's"]
    assert instance.progress is None
    assert [label for label, _ in steps_of(instance)] == ["look-1", "nap-1", "look-2"]


# OPS-03 ---------------------------------------------------------------------------------------------------------------


def test_status_is_never_stale(stopped_clock: StoppedClock) -> None:
    """OPS-03: queued, running, back-off, asleep, at a gate, blocked, ended are told apart, with the step's own status."""
    seen: list[tuple[str, list[tuple[str, str]]]] = []
    fails = [True]

    def look() -> None:
        row = WorkflowInstance.objects.get()
        seen.append((row.status, steps_of(row)))
        if fails.pop():
            fails.append(False)
            raise OSError("once")

    class Shown(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            step.do("work", look, retries=Retries(limit=1, delay=60))
            step.sleep("nap", 60)
            step.wait_for_event("gate", type="go", timeout=None)
            return "done"

    instance = Shown.create()
    assert (instance.status, instance.started, instance.finished) == (S.QUEUED, None, None)
    drained(instance)
    assert seen == [(S.RUNNING, [])]
    record = instance.steps.get()
    assert (instance.status, record.status, record.attempts, record.wake_at) == (
        S.WAITING,
        "pending",
        1,
        instance.wake_at,
    )
    assert record.error is not None and record.error["message"] == "once"
    assert instance.started == stopped_clock.now
    stopped_clock.advance(60)
    drained(instance)
    assert (instance.status, steps_of(instance)) == (S.WAITING, [("work-1", "complete"), ("nap-1", "pending")])
    stopped_clock.advance(60)
    drained(instance)
    assert (instance.status, instance.wake_at) == (S.WAITING, None)
    assert steps_of(instance)[-1] == ("gate-1", "pending")
    instance.send_event("go")
    drained(instance)
    assert (instance.status, instance.output, instance.finished) == (S.COMPLETE, "done", stopped_clock.now)
    assert not instance.steps.exclude(status="complete").exists()


# Stopping -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def default_interrupt() -> Iterator[None]:
    """Ctrl-C as Python handles it, and no stop noted before or after."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    assert not shutdown.requested()


@pytest.mark.parametrize("where", ["body", "run", "swallowed"])
def test_ctrl_c_gives_back(where: str, default_interrupt: None) -> None:
    """RET-13, design 6: a real signal is obeyed, in a body too: queued again, no attempt is charged."""
    first = [True]
    log: list[str] = []

    class Interrupted(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            if where == "run" and first.pop():
                first.append(False)
                signal.raise_signal(signal.SIGINT)
            step.do("work", self.work)
            return step.do("next", lambda: noted(log, "next", "done"))

        def work(self) -> None:
            if where != "run" and first.pop():
                first.append(False)
                try:
                    signal.raise_signal(signal.SIGINT)
                except BaseException:
                    if where != "swallowed":
                        raise

    instance = Interrupted.create()
    with pytest.raises(KeyboardInterrupt):
        drain(seconds=10)
    instance.refresh_from_db()
    assert (instance.status, instance.lease_token, log) == (S.QUEUED, None, [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    WorkflowInstance.objects.update(wake_at=instance.created)
    assert drained(instance).output == "done"
    assert instance.steps.get(name="work").attempts == 1
    assert "attempt_errored" not in types_of(instance)


def test_handlers_of_the_process_are_left_alone() -> None:
    """Api: drain() is a seam for other schedulers: where somebody handles SIGINT, that stays."""
    seen: list[Any] = []

    def theirs(number: int, frame: Any) -> None:
        """Somebody's own."""

    class Looks(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.do("look", lambda: seen.append(signal.getsignal(signal.SIGINT) is theirs))

    before = signal.signal(signal.SIGINT, theirs)
    try:
        Looks.create()
        drain()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [True]


# Renewal --------------------------------------------------------------------------------------------------------------


def test_renewal_survives_whatever_fails(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Design 4, OPS-07: without that thread every lease of the process would end."""
    settings.DURABLEFLOW = {"LEASE": 1}
    calls: list[int] = []
    done = threading.Event()

    def renew(leases: Any) -> None:
        calls.append(len(leases))
        if len(calls) > 1:
            done.set()
            return
        raise RuntimeError("anything")

    monkeypatch.setattr(renewal, "renew", renew)
    monkeypatch.setattr(watcher, "RETRY", 0.01)

    class Lease:
        using, token = "default", 1

    keeper = watcher.Watcher()
    with keeper.holding(Lease()):  # type: ignore[arg-type]
        assert done.wait(20)
    assert keeper._thread.is_alive()


def test_a_limit_that_was_met_can_be_caught(settings: Any) -> None:
    """ENG-12: like every error of a call; what comes after it meets the limit again."""
    settings.DURABLEFLOW = {"LIMITS": {"steps": 1}}

    class Caught(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> list[str]:
            step.do("first", lambda: None)
            errors = []
            for _ in range(2):
                try:
                    step.do("more", lambda: None)
                except LimitExceeded as error:
                    errors.append(error.unit)
            return errors

    instance = drained(Caught.create())
    assert (instance.output, steps_of(instance)) == (["steps", "steps"], [("first-1", "complete")])
    assert history_of(instance, "step_errored") == []
