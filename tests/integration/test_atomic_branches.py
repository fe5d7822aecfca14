"""``atomic=True`` in branches, in the calling thread and in those that help: exactly once as well (design 1.2, 6, 7)."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db.backends.base.base import BaseDatabaseWrapper

from durableflow import Retries, Step, Workflow, WorkflowEvent, drain, get_step_context
from durableflow.engine import watcher
from durableflow.engine.attempts import Attempt
from durableflow.models import WorkflowInstance
from tests.support.engine import history_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
BRANCHES = 3


def branches(body: Any, **options: Any) -> type[Workflow[Any, Any]]:
    """As many branches as there are, each with one atomic step; ``body`` gets the number of its branch."""

    class AtomicBranches(Workflow[Any, Any]):
        class Meta:
            name = "atomic-branches"
            step_retries = Retries(limit=2, delay=0)

        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.gather("all", *[self.branch(step, number) for number in range(BRANCHES)])

        def branch(self, step: Step, number: int) -> Any:
            return lambda: step.do("book", body, number, atomic=True, **options)

    return AtomicBranches


def booked(number: int) -> str:
    return Group.objects.create(name=f"{number}:{get_step_context().attempt}").name


def groups() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def ended(row: WorkflowInstance) -> WorkflowInstance:
    """Executed until nothing is due any more, with its retries."""
    for _ in range(5):
        drain(10)
        row.refresh_from_db()
        if row.is_finished:
            break
    return row


def test_each_branch_commits_once_with_its_checkpoint() -> None:
    row = ended(branches(booked).create())
    assert (row.status, row.output) == (S.COMPLETE, ("0:1", "1:1", "2:1"))
    assert groups() == ["0:1", "1:1", "2:1"]
    assert history_of(row, "attempt_errored", "attempt_lost") == []


def test_an_error_after_the_effect_rolls_back_its_own_branch_alone() -> None:
    def body(number: int) -> str:
        name = booked(number)
        if number == 1 and get_step_context().attempt == 1:
            raise ValueError("after the effect")
        return name

    row = ended(branches(body).create())
    assert (row.status, row.output) == (S.COMPLETE, ("0:1", "1:2", "2:1"))
    assert groups() == ["0:1", "1:2", "2:1"]
    assert [data["error"]["type"] for data in history_of(row, "attempt_errored")] == ["ValueError"]


def test_a_timeout_in_whatever_thread_rolls_its_effect_back() -> None:
    """By the alarm in the main thread, by being given up in the others."""

    def body(number: int) -> str:
        name = booked(number)
        if get_step_context().attempt == 1:
            end = time.monotonic() + 20
            while time.monotonic() < end:
                pass
        return name

    row = ended(branches(body, timeout=0.5).create())
    assert row.status == S.COMPLETE, row.error
    assert groups() == sorted(row.output)
    assert [name.partition(":")[0] for name in row.output] == ["0", "1", "2"]
    assert not any(name.endswith(":1") for name in row.output)
    assert {data["error"]["type"] for data in history_of(row, "attempt_errored")} == {"durableflow.StepTimeout"}


def test_a_commit_that_takes_longer_than_the_attempt_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has begun to commit is not given up, in no thread."""
    commit = BaseDatabaseWrapper._commit  # type: ignore[attr-defined]
    slow = threading.local()
    commits: list[str] = []

    def body(number: int) -> str:
        slow.now = True
        return booked(number)

    def slowly(self: Any) -> None:
        if getattr(slow, "now", False):
            slow.now = False
            commits.append(threading.current_thread().name)
            slow.attempt.due = time.monotonic() - 60  # its time is over now
            end = time.monotonic() + 3 * watcher.LOOK
            while time.monotonic() < end:
                pass
        commit(self)

    def begin(self: Attempt) -> bool:
        slow.attempt = self
        return begin_commit(self)

    begin_commit = Attempt.begin_commit
    monkeypatch.setattr(Attempt, "begin_commit", begin)
    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", slowly)
    row = ended(branches(body, timeout=5).create())
    assert (row.status, row.output) == (S.COMPLETE, ("0:1", "1:1", "2:1")), row.error
    assert groups() == ["0:1", "1:1", "2:1"] and len(commits) == 3
    assert history_of(row, "attempt_errored", "attempt_lost") == []
