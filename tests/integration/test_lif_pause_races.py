"""A pause at every moment of an execution, and at the same moment as everything else (LIF-01, LIF-04, LIF-05)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.db import connection

from durableflow import InvalidTransition, Retries, Step, Workflow, WorkflowEvent, drain
from durableflow.engine import endings, renewal
from durableflow.engine.claims import claim
from durableflow.engine.executor import execute
from durableflow.engine.renewal import renew
from durableflow.models import WorkflowInstance
from tests.integration.con_flows import expire_leases
from tests.support.concurrency import Task, together
from tests.support.engine import drained, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
ROUNDS = 25


class PauseAnywhere(Workflow[str, Any]):
    """A bit of everything; each body notes that it has run."""

    ran: list[str]

    class Meta:
        name = "lif-pause-anywhere"
        step_retries = Retries(limit=2, delay=0)

    def run(self, event: WorkflowEvent[str], step: Step) -> Any:
        return getattr(self, event.params)(step)

    def steps(self, step: Step) -> Any:
        return [step.do("a", self.body, "a"), step.do("b", self.body, "b", atomic=True), step.do("c", self.fail_once)]

    def waits(self, step: Step) -> Any:
        step.sleep("nap", 0)
        got = step.wait_for_event("go", type="go").payload
        return [got, step.do("a", self.body, "a"), step.do("b", self.body, "b")]

    def branches(self, step: Step) -> Any:
        return step.gather("both", lambda: step.do("a", self.body, "a"), lambda: step.do("b", self.body, "b"))

    def children(self, step: Step) -> Any:
        return step.run_workflow("child", PauseAnywhereChild, None)

    def body(self, name: str) -> str:
        self.ran.append(name)
        return name

    def fail_once(self) -> str:
        self.ran.append("c")
        if self.ran.count("c") == 1:
            raise RuntimeError("once")
        return "c"


class PauseAnywhereChild(Workflow[None, str]):
    """Does one thing."""

    class Meta:
        name = "lif-pause-anywhere-child"

    def run(self, event: WorkflowEvent[None], step: Step) -> str:
        return step.do("work", lambda: "done")


OUTPUTS: dict[str, Any] = {
    "steps": ["a", "b", "c"],
    "waits": ["hello", "a", "b"],
    "branches": ("a", "b"),
    "children": "done",
}


@pytest.fixture(autouse=True)
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(PauseAnywhere, "ran", seen, raising=False)
    return seen


def started(way: str) -> WorkflowInstance:
    PauseAnywhere.ran.clear()
    row = PauseAnywhere.create(way)
    if way == "waits":
        row.send_event("go", "hello")
    return row


class Statements:
    """Counts the statements of this thread, and has something done before one of them, by another thread."""

    def __init__(self, number: int, function: Callable[[], object]) -> None:
        self.number, self.function = number, function
        self.seen = 0
        self.task: Task | None = None

    def __call__(self, run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        self.seen += 1
        if self.seen == self.number:
            self.task = Task(self.function)
            if not context["connection"].in_atomic_block:  # else it may have to wait for what this thread holds
                self.task.join()
        return run(sql, params, many, context)


@contextmanager
def before_statement(number: int, function: Callable[[], object]) -> Iterator[Statements]:
    hook = Statements(number, function)
    with connection.execute_wrapper(hook):
        yield hook
    if hook.task is not None:
        hook.task.join()


def accepted(task: Task) -> bool:
    """Whether the verb was done; else it was refused, and for nothing else than the status."""
    if task.error is None:
        return True
    assert isinstance(task.error, InvalidTransition), task.error
    return False


def execute_all(row: WorkflowInstance) -> None:
    """Claim and execute here, until nothing of it is due."""
    for _ in range(20):
        if not (taken := claim("default")):
            break
        execute(taken[0], renew=False)
    row.refresh_from_db()


def finished_properly(row: WorkflowInstance, way: str) -> None:
    for _ in range(5):
        drained(row)
        if row.status == S.COMPLETE:
            break
    assert (row.status, row.output) == (S.COMPLETE, OUTPUTS[way]), (row.status, row.error, row.blocked)
    counted = Counter(PauseAnywhere.ran)
    assert all(count == (2 if name == "c" else 1) for name, count in counted.items()), counted
    assert not row.history.filter(type="attempt_lost").exists()


@pytest.mark.parametrize("way", list(OUTPUTS))
def test_before_every_statement_of_the_executions(way: str) -> None:
    """It is paused in the end, or was over before; after the resume everything has run once."""
    number, paused = 0, 0
    while True:
        number += 1
        row = started(way)
        with before_statement(number, row.pause) as hook:
            execute_all(row)
        if hook.task is None:
            break
        row.refresh_from_db()
        if accepted(hook.task) and row.status != S.COMPLETE:
            assert (row.status, row.wake_at, row.lease_token) == (S.PAUSED, None, None), f"before statement {number}"
            assert row.paused_at is not None
            before = list(PauseAnywhere.ran)
            assert drain(0) <= 2 and PauseAnywhere.ran == before, "something of it has run"  # the child may
            row.resume()
            paused += 1
        finished_properly(row, way)
    # How many are paused in time depends on how fast their threads are; the one before the first statement is.
    assert number > 5 and paused > 0


@pytest.mark.parametrize("way", ["steps", "branches"])
def test_a_resume_before_every_statement(way: str) -> None:
    """Asked for in the first body; taken back at every moment after that."""
    number = 0
    while True:
        number += 1
        row = started(way)
        [taken] = claim("default")
        row.pause()
        with before_statement(number, row.resume) as hook:
            execute(taken, renew=False)
        if hook.task is None:
            break
        assert accepted(hook.task) or row.status == S.COMPLETE
        row.refresh_from_db()
        assert row.status in (S.QUEUED, S.WAITING, S.COMPLETE) and row.paused_at is None, f"before statement {number}"
        finished_properly(row, way)
    assert number > 5


def test_at_the_same_moment_as_an_execution() -> None:
    """Threads of their own, as it comes."""
    ends: Counter[str] = Counter()
    for _ in range(ROUNDS):
        row = started("steps")
        pause, _worker = together(row.pause, lambda: drain(0))
        drain(0)
        row.refresh_from_db()
        ends[row.status] += 1
        assert row.status == (S.PAUSED if accepted(pause) and row.status != S.COMPLETE else S.COMPLETE)
        if row.status == S.PAUSED:
            row.resume()
        finished_properly(row, "steps")
    assert sum(ends.values()) == ROUNDS


def test_at_the_same_moment_as_an_event_and_a_due_timer() -> None:
    """EVT-15: whatever comes first, the event answers the wait, once, and not before the resume."""
    for _ in range(ROUNDS):
        PauseAnywhere.ran.clear()
        row = drained(PauseAnywhere.create("waits"))
        assert row.status == S.WAITING
        pause, sent, _worker = together(row.pause, partial(row.send_event, "go", "hello"), lambda: drain(0))
        sent.result()
        drain(0)
        row.refresh_from_db()
        if accepted(pause) and row.status != S.COMPLETE:
            assert row.status == S.PAUSED
            row.resume()
        finished_properly(row, "waits")
        assert row.history.filter(type="event_received").count() == 1


@pytest.mark.parametrize("running", [False, True])
def test_at_the_same_moment_as_a_terminate(running: bool) -> None:
    """LIF-01: terminated in the end; the pause came first or was refused."""
    for _ in range(ROUNDS):
        row = started("steps")
        taken = claim("default") if running else []
        same = WorkflowInstance.objects.get(pk=row.pk)
        pause, end = together(row.pause, same.terminate)
        end.result()
        accepted(pause)
        for one in taken:
            execute(one, renew=False)
        row.refresh_from_db()
        assert (row.status, row.lease_token, row.wake_at, row.output) == (S.TERMINATED, None, None, None)
        assert PauseAnywhere.ran in ([], ["a"]), "a body has begun after that which ran"


@pytest.mark.parametrize("running", [False, True])
def test_two_clicks(running: bool) -> None:
    """LIF-06: one of two is done, one is told; so for the pause and for the resume."""
    for verb, entries in (
        ("pause", ("workflow_paused", "workflow_waiting_for_pause")),
        ("resume", ("workflow_running",)),
    ):
        for _ in range(5):
            row = started("steps")
            if running:
                claim("default")
            if verb == "resume":
                row.pause()
            rows = [WorkflowInstance.objects.get(pk=row.pk) for _ in range(3)]
            done = [accepted(task) for task in together(*(getattr(one, verb) for one in rows))]
            assert sorted(done) == [False, False, True]
            if running or verb == "pause":
                assert sum(type in entries for type in types_of(row)) == 1
            row.refresh_from_db()
            row.terminate()


def test_pause_and_resume_again_and_again_while_it_runs() -> None:
    """Two people disagree; the work is done once all the same."""
    for _ in range(5):
        row = started("steps")
        stop = threading.Event()

        def flip(row: WorkflowInstance = row, stop: threading.Event = stop) -> int:
            mine, flips = WorkflowInstance.objects.get(pk=row.pk), 0
            while not stop.is_set():
                for verb in (mine.pause, mine.resume):
                    try:
                        verb()
                        flips += 1
                    except InvalidTransition:
                        if mine.is_finished:
                            return flips
            return flips

        flipper = Task(flip)
        for _ in range(50):
            drain(0)
            row.refresh_from_db()
            if row.is_finished:
                break
        stop.set()
        flipper.result()
        row.refresh_from_db()
        if row.status in (S.PAUSED, S.WAITING_FOR_PAUSE):
            row.resume()
        finished_properly(row, "steps")


def test_at_the_same_moment_as_a_takeover() -> None:
    """The lost worker's attempt is charged once, and only after the resume."""
    for _ in range(ROUNDS):
        row = started("branches")
        [dead] = claim("default")
        expire_leases()
        pause, taken = together(row.pause, lambda: claim("default"))
        pause.result()
        for one in taken.result():
            execute(one, renew=False)
        drain(0)
        row.refresh_from_db()
        assert (row.status, row.interruptions) == (S.PAUSED, 1)
        assert not PauseAnywhere.ran or len(taken.result()) == 1
        row.resume()
        assert drained(row).status == S.COMPLETE
        dead.lease.lost = True


def test_a_beat_tells_an_execution_that_writes_nothing() -> None:
    """A body of hours: the renewal says that a pause is asked for, and that it is taken back."""
    row = started("steps")
    [taken] = claim("default")
    row.pause()
    assert not taken.lease.pausing
    renew([taken.lease])
    assert taken.lease.pausing and not taken.lease.lost
    row.resume()
    renew([taken.lease])
    assert not taken.lease.pausing
    execute(taken, renew=False)
    finished_properly(row, "steps")


def test_a_beat_whose_answer_is_late_takes_no_pause_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIF-04: it has read the row before the pause, and is taken in after a checkpoint that has told of it: nothing starts."""
    row = started("steps")
    [taken] = claim("default")
    take_in = renewal._renewed

    def late(*answer: Any) -> None:
        row.pause()
        endings.set_progress(taken.lease, "1")
        assert taken.lease.pausing
        take_in(*answer)

    with monkeypatch.context() as once:
        once.setattr(renewal, "_renewed", late)
        renew([taken.lease])
    assert taken.lease.pausing
    execute(taken, renew=False)
    row.refresh_from_db()
    assert (row.status, PauseAnywhere.ran) == (S.PAUSED, [])
