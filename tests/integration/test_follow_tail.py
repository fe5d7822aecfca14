"""``durableflow tail`` (api.md, "Commands")."""

from __future__ import annotations

import io
import json
import signal
import sys
import threading
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from durableflow.core import hearing
from durableflow.models import WorkflowInstance
from durableflow.models.watching import ThreadWatch
from tests.integration.follow_flows import FollowedFailure, FollowedOrder, FollowedSecret, FollowedSteps
from tests.support.concurrency import Task, eventually
from tests.support.engine import drain_all, drained

pytestmark = pytest.mark.django_db(transaction=True)


def tail(*options: str) -> tuple[int, list[str]]:
    """Its exit status, and the lines that it printed."""
    out = io.StringIO()
    try:
        call_command("durableflow", "tail", *options, stdout=out, skip_checks=True)
    except SystemExit as end:
        return int(str(end.code)), out.getvalue().splitlines()
    return 0, out.getvalue().splitlines()


def types(lines: list[str]) -> list[str]:
    """The types of JSON lines."""
    return [json.loads(line)["type"] for line in lines]


def test_the_whole_history() -> None:
    """One line per thing that happened, as the lists show it; status 0 of a complete one."""
    row = drained(FollowedSteps.create(1, instance_id="tail-1"))
    status, lines = tail("followed-steps", "tail-1")
    assert status == 0
    assert [line.split("  ")[1].strip() for line in lines] == [
        "workflow_queued",
        "workflow_started",
        "step_started",
        "attempt_started",
        "attempt_completed",
        "step_completed",
        "workflow_completed",
    ]
    assert "count-1" in lines[2]
    _, again = tail("followed-steps", "latest", "--json")
    assert [json.loads(line)["id"] for line in again][-1] == row.history.latest("id").pk
    assert types(again) == [line.split("  ")[1].strip() for line in lines]


def test_live() -> None:
    """It goes on until the instance has ended, however long that takes; 1 for one that was terminated."""
    row = FollowedOrder.create(instance_id="tail-2")
    task = Task(lambda: tail("followed-order", "tail-2", "--json", "--types", "wait_started,workflow_terminated"))
    hub = hearing.hub_of("default")
    assert hub is not None
    eventually(lambda: row.pk in hub._members, "listening")
    drain_all()
    row.terminate(reason="enough")
    status, lines = task.result()
    assert (status, types(lines)) == (1, ["wait_started", "workflow_terminated"])


def test_no_follow_and_after() -> None:
    """What is there, from a place on; an instance that goes on is no failure."""
    row = drained(FollowedOrder.create(instance_id="tail-3"))
    status, lines = tail("followed-order", "tail-3", "--no-follow", "--json")
    assert (status, types(lines)[-1]) == (0, "wait_started")
    first = row.history.earliest("id").pk
    assert (
        types(tail("followed-order", "tail-3", "--no-follow", "--json", "--after", str(first))[1]) == types(lines)[1:]
    )


def test_people_see_who_and_why(superuser: Any) -> None:
    """Actor and reason of a verb; a second run is announced; nothing that a terminal would obey."""
    row = FollowedOrder.create(instance_id="tail-4")
    row.pause(by=superuser, reason="lunch\x1b[2J")
    WorkflowInstance.objects.filter(pk=row.pk).update(run_number=2)
    row.refresh_from_db()
    row.resume()
    _, lines = tail("followed-order", "tail-4", "--no-follow")
    assert lines[1].endswith("by superuser  (lunch\\x1b[2J)")
    assert lines[2] == "run 2"


def test_a_failure_is_a_no() -> None:
    """1 for one that has ended errored, also with --no-follow; its error is there."""
    drained(FollowedFailure.create(instance_id="tail-5"))
    status, lines = tail("followed-failure", "tail-5", "--no-follow")
    assert status == 1
    assert "workflow_errored" in lines[-1] and "ValueError" in lines[-1]


def test_secrets_are_masked() -> None:
    """SEC-09: what a sensitive step has returned shows nowhere."""
    drained(FollowedSecret.create(instance_id="tail-6"))
    _, lines = tail("followed-secret", "tail-6")
    assert "s3cr3t" not in "\n".join(lines) and "[REDACTED]" in "\n".join(lines)


@pytest.mark.parametrize(
    "options",
    [("followed-order", "no-such"), ("no-such-workflow", "x"), ("followed-order", "latest")],
)
def test_unknown(options: tuple[str, ...]) -> None:
    """Status 2, and a sentence."""
    FollowedSteps.create(1)
    with pytest.raises(CommandError) as raised:
        tail(*options)
    assert raised.value.returncode == 2


@pytest.mark.parametrize("option", [("--types", "nonsense"), ("--types", ","), ("--after", "-1"), ("--after", "x")])
def test_wrong_use(option: tuple[str, str]) -> None:
    """Refused before anything is read."""
    with pytest.raises(CommandError):
        tail("followed-order", "x", *option)


def test_deleted_meanwhile() -> None:
    """Its history is gone with it: that is no success."""
    row = FollowedOrder.create(instance_id="tail-7")
    task = Task(lambda: tail("followed-order", "tail-7"))
    hub = hearing.hub_of("default")
    assert hub is not None
    eventually(lambda: row.pk in hub._members, "listening")
    WorkflowInstance.objects.get(pk=row.pk).delete()
    task.join()
    assert isinstance(task.error, CommandError) and task.error.returncode == 2


def test_ctrl_c() -> None:
    """130, as shells say it, and nobody listens any more."""
    row = FollowedOrder.create(instance_id="tail-8")
    hub = hearing.hub_of("default")
    assert hub is not None

    def interrupt() -> None:
        eventually(lambda: hub._members and not hub.deaf and not hub._marks and main_thread_waits(), "waiting")
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    task = Task(interrupt)
    try:
        status, lines = tail(row.workflow, row.instance_id)
    finally:
        signal.signal(signal.SIGINT, previous)
    task.result()
    assert (status, len(lines)) == (130, 1)
    assert not hub._members


def main_thread_waits() -> bool:
    """Whether the main thread is in no query: an interrupted one would leave its connection unusable for what comes after."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    while frame.f_back is not None and frame.f_code is not ThreadWatch.wait.__code__:
        frame = frame.f_back
    return frame.f_code is ThreadWatch.wait.__code__
