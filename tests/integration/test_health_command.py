"""``manage.py durableflow health`` (case OPS-14)."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest
from django.core.management import call_command

from durableflow.core.statuses import Hold
from durableflow.engine.heartbeat import Beat, beat
from durableflow.models import WorkflowInstance
from tests.integration.test_health import Idle, S
from tests.support.database import child_environment

pytestmark = pytest.mark.django_db(transaction=True)


def report(*arguments: str) -> tuple[int, str]:
    """Exit status and output."""
    out = io.StringIO()
    try:
        call_command("durableflow", "health", *arguments, stdout=out)
    except SystemExit as left:
        return int(left.code or 0), out.getvalue()
    return 0, out.getvalue()


def cluster() -> None:
    beat("default", Beat(key=1, kind="cluster", workers=2, busy=1, claimed_ago=3, pid=4711))


def test_all_is_well(stopped_clock: Any) -> None:
    """One word first, then who executes."""
    cluster()
    status, text = report("--strict")
    assert status == 0
    assert text.splitlines()[0] == "OK"
    assert "1 of 2 busy, in 1 process group" in text
    assert "4711" in text
    assert "\x1b" not in text  # colour is for terminals


def test_no_worker(stopped_clock: Any) -> None:
    """OPS-14: a warning while nothing is due; critical, with 'oldest due x s, last seen y s', when something is."""
    cluster()
    stopped_clock.advance("100 seconds")
    assert [report()[0], report("--strict")[0]] == [0, 1]
    Idle.create(instance_id="first")
    stopped_clock.advance("20 seconds")
    status, text = report()
    assert (status, report("--strict")[0]) == (2, 2)
    assert text.splitlines()[0] == "CRITICAL"
    assert "idle/first, for 20 s" in text
    assert "2 min 0 s ago" in text


def test_for_programs(stopped_clock: Any) -> None:
    """One JSON object with plain names and numbers."""
    cluster()
    blocked = Idle.create(instance_id="broken")
    WorkflowInstance.objects.filter(pk=blocked.pk).update(status=S.PAUSED, blocked="why", wake_at=None)
    parked = Idle.create(instance_id="parked")
    WorkflowInstance.objects.filter(pk=parked.pk).update(hold=Hold.LIMIT, wake_at=None)
    status, text = report("--json")
    found = json.loads(text)
    assert (status, found["status"], found["workers"], found["busy"], found["last_claim"]) == (0, "warning", 2, 1, 3.0)
    assert found["reasons"][0]["code"] == "blocked"
    assert found["blocked_latest"] == [{"workflow": "idle", "instance_id": "broken", "reason": "why"}]
    assert found["holds"] == {"limit": 1}
    assert found["oldest_due"] is None
    assert found["processes"][0]["pid"] == "4711"
    assert "broken: why" in report()[1]
    assert "Waiting for a free slot" in report()[1]


def test_a_reason_is_one_line(stopped_clock: Any) -> None:
    """However long it is, and whatever it would do to a terminal."""
    blocked = Idle.create(instance_id="broken")
    text = "a\x1b[2J\u202eé\nb" * 5000
    WorkflowInstance.objects.filter(pk=blocked.pk).update(status=S.PAUSED, blocked=text, wake_at=None)
    said = report()[1]
    assert max(len(line) for line in said.splitlines()) < 400
    assert "a\\x1b[2J\\u202eé ba" in said and "\x1b" not in said


def test_a_database_that_is_away() -> None:
    """Critical, in one line, without a traceback; also as JSON."""
    environment = child_environment(DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing")
    for arguments in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "manage.py", "durableflow", "health", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr + done.stdout
        assert "does not answer" in done.stdout
    assert json.loads(done.stdout)["status"] == "critical"
