"""``manage.py durableflow list``, ``show`` and ``pending`` (reference 18; cases OPS-03, SEC-09)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durableflow.core import registry
from durableflow.models import PendingEvent, WorkflowInstance
from durableflow.testing import Harness
from tests.conftest import UserFactory
from tests.integration.command_flows import Order, Retrying, Wait, broken
from tests.support.commands import called

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


def lines(*arguments: str) -> list[str]:
    """The lines of a table, with one space between the cells."""
    done = called(*arguments)
    assert done.status == 0, done.err
    return [" ".join(line.split()) for line in done.out.splitlines()]


def test_an_overview_of_workflows(workflows: Harness) -> None:
    """Without a workflow: one line for each, with counts per status; also for those that this code has not (any more)."""
    workflows.run(Order, 1, instance_id="a")
    with broken("load"):
        workflows.run(Order, 2, instance_id="b")
    gone = workflows.run(Wait)
    WorkflowInstance.objects.filter(pk=gone.pk).update(workflow="gone")
    found = lines("list")
    assert found[0] == "WORKFLOW WAITING ERRORED TOTAL"
    assert "cmd-order 1 1 2" in found
    assert "cmd-wait - - 0" in found
    assert "gone (not in this code) 1 - 1" in found
    programs = {each["workflow"]: each for each in called("list", "--json").document}
    assert programs["cmd-order"] == {
        "workflow": "cmd-order",
        "known": True,
        "total": 2,
        "counts": {"waiting": 1, "errored": 1},
    }
    assert programs["gone"]["known"] is False


def test_a_list_of_instances(workflows: Harness, user_factory: UserFactory) -> None:
    """The newest first; narrowed by status, by whether they failed, by time."""
    ada = user_factory("ada")
    oldest = workflows.run(Order, 1, instance_id="first", created_by=ada)
    with broken("charge"):
        workflows.run(Order, 1, instance_id="second")
    workflows.advance("1 hour")
    blocked = workflows.run(Order, 1, instance_id="third")
    WorkflowInstance.objects.filter(pk=blocked.pk).update(status=S.PAUSED, blocked="why", wake_at=None)
    found = lines("list", "cmd-order")
    assert [line.split()[0] for line in found[1:]] == ["third", "second", "first"]
    assert found[1].split()[1] == "paused" and found[1].endswith("blocked, a person is needed")
    assert " ada" in found[3] and "Command line" not in found[3]
    assert ids("--reverse") == ["first", "second", "third"]
    assert ids("--status", "errored", "--status", "waiting") == ["second", "first"]
    assert ids("--failed") == ["third", "second"]
    assert ids("--since", "30 minutes") == ["third"] and ids("--until", "30 minutes") == ["second", "first"]
    days = [timezone.localdate(row.created).isoformat() for row in (oldest, blocked)]  # midnight may lie between
    assert ids("--since", days[0], "--until", days[1]) == ["third", "second", "first"]
    assert ids("--since", (timezone.localdate(blocked.created) + timedelta(days=1)).isoformat()) == []
    assert called("list", "cmd-wait").out == "No instances.\n"
    assert lines("list", "--failed")[1].startswith("cmd-order/third paused")


def ids(*arguments: str) -> list[str]:
    return [row["instance_id"] for row in called("list", "cmd-order", *arguments, "--json").document]


def test_more_than_are_listed(workflows: Harness) -> None:
    """The rest is told of on stderr, so that stdout is what was asked for."""
    for number in range(3):
        workflows.run(Wait, instance_id=f"w{number}")
    done = called("list", "cmd-wait", "--limit", "2", "--json")
    assert [row["instance_id"] for row in done.document] == ["w2", "w1"]
    assert "--limit lists more" in done.err
    assert called("list", "cmd-wait", "--limit", "3").err == ""


def test_for_programs(workflows: Harness) -> None:
    """One list of objects; moments in UTC with all their digits."""
    row = workflows.run(Wait, instance_id="w")
    (found,) = called("list", "cmd-wait", "--json").document
    assert found["created"] == row.created.isoformat().replace("+00:00", "Z")
    assert (found["status"], found["priority"], found["finished"], found["blocked"]) == (
        "waiting",
        "normal",
        None,
        False,
    )


def test_show_tells_where_it_is(workflows: Harness, settings: Any) -> None:
    """OPS-03: status, what it waits for and until when, the steps. SEC-09: what is sensitive stays masked."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "REDACT": ["password"]}
    workflows.run(Order, 700, instance_id="o")
    wait = PendingEvent.objects.get()
    done = called("show", "cmd-order", "o")
    assert done.out.splitlines()[0] == "cmd-order/o  waiting"
    assert f"waits for  decision {wait.pk}: Ship it?, until 20" in done.out
    assert '{"total": 700, "password": "[REDACTED]"}' in done.out
    assert "can now    delete, pause, restart, send, terminate" in done.out
    assert "a secret token" not in done.out and "hunter22" not in done.out
    document = called("show", "cmd-order", "latest", "--json").document
    assert "a secret token" not in str(document) and "hunter22" not in str(document)
    assert [step["name"] for step in document["steps"]] == ["load", "token", "charge", "approval"]
    assert document["waiting_for"][0]["pending_event"] == wait.pk
    assert document["steps"][3]["wait"]["status"] == "open"


def test_show_tells_of_a_pause(workflows: Harness) -> None:
    """TIM-09: by whom and why; what a timer has left in place of a moment that will not be kept."""
    workflows.run(Order, 1, instance_id="o")
    workflows.advance("4 hours")
    called("pause", "cmd-order", "o", "--reason", "audit\x1b")
    workflows.advance("40 hours")
    said = called("show", "cmd-order", "o").out
    assert r": audit\x1b" in said and "ends with 20 h 0 min left" in said
    assert "until" not in said.split("\n\n")[1]
    document = called("show", "cmd-order", "o", "--json").document
    assert (document["pause"]["reason"], document["pause"]["timers"][0]["left"]) == ("audit\x1b", 72_000.0)
    assert called("pending").out.rstrip().endswith("paused")
    (wait,) = called("pending", "--json").document
    assert wait["deadline"] == document["waiting_for"][0]["deadline"]
    assert datetime.fromisoformat(wait["deadline"]) - datetime.fromisoformat(wait["paused_at"]) == timedelta(hours=60)
    called("resume", "cmd-order", "o")
    assert called("show", "cmd-order", "o", "--json").document["pause"] is None


def test_show_tells_of_attempts(workflows: Harness) -> None:
    """Each try with its error, and when the next one is; nothing that a terminal would obey."""
    with broken("fetch"):
        workflows.run(Retrying, instance_id="r")
        workflows.advance("60 seconds")
        done = called("show", "cmd-retrying", "r")
        assert "attempt 1  failed" in done.out and "attempt 2  failed" in done.out
        assert "retries at 20" in done.out and r"OSError: fetch is \x1b[2Jbroken" in done.out
        assert "\x1b" not in done.out
        workflows.advance("60 seconds")
        ended = called("show", "cmd-retrying", "r").out
    assert "Failed in step fetch-1" in ended and "Traceback (most recent call last)" in ended
    assert "\x1b" not in ended


def test_show_cuts_long_values(workflows: Harness) -> None:
    """--limit, as the reference has it; 0 leaves outputs out; programs get all of it."""
    workflows.run(Order, "x" * 6_000, instance_id="o")
    assert "more characters)" in called("show", "cmd-order", "o").out
    short = called("show", "cmd-order", "o", "--limit", "20").out
    assert f'  params     "{"x" * 19}… (5,982 more characters)' in short
    assert "output" not in called("show", "cmd-order", "o", "--limit", "0").out
    assert "x" * 6_000 in called("show", "cmd-order", "o", "--json").out
    assert called("show", "cmd-order", "o", "--json", "--limit", "0").document["steps"][0]["output"] is None
    refused = called("show", "cmd-order", "o", "--json", "--limit", "20")
    assert (refused.status, refused.out) == (2, "")


def test_one_that_is_not_there(workflows: Harness) -> None:
    """2, and what there is: no id, no workflow, no name."""
    workflows.run(Wait, instance_id="order-42"), workflows.run(Wait, instance_id="x")
    done = called("show", "cmd-wait", "oder-42")
    assert (done.status, done.out) == (2, "")
    assert done.err == "No instance 'oder-42' of workflow 'cmd-wait'. Did you mean 'order-42'? The latest is 'x'."
    assert called("show", "cmd-wait", "zzz").err == "No instance 'zzz' of workflow 'cmd-wait'. The latest is 'x'."
    assert called("show", "cmd-order", "latest").err == "The workflow 'cmd-order' has no instance."
    unknown = called("show", "cmd-odrer", "x")
    assert unknown.status == 2
    assert "There is no workflow 'cmd-odrer'. Did you mean 'cmd-order'? Known: " in unknown.err
    with mock.patch.object(registry, "names", return_value=[]):
        for verb in ("show", "check-replay"):
            none = called(verb, "cmd-odrer", "x")
            assert none.status == 2 and "Known: none. They are found in the module 'workflows' of each app" in none.err
    for wrong in ("../etc", "a b", "x" * 101, ""):
        assert called("show", "cmd-wait", wrong).status == 2
        assert called("show", wrong, "x").status == 2


def test_an_instance_of_a_workflow_that_the_code_has_not(workflows: Harness) -> None:
    """It can be looked at, under the name that is stored."""
    workflows.run(Wait, instance_id="w")
    registry._classes.pop("cmd-wait")
    assert called("show", "cmd-wait", "w").status == 0
    assert lines("list", "cmd-wait")[1].startswith("w waiting")


def test_what_waits_for_people(workflows: Harness, user_factory: UserFactory) -> None:
    """All open approvals; with --user those that this person may decide, so not an own one that bars the requester."""
    ada = user_factory("ada", permissions=["durableflow.decide_pendingevent"])
    user_factory("bob", permissions=["durableflow.decide_pendingevent"])
    workflows.run(Order, "barred", instance_id="o", created_by=ada)
    workflows.run(Wait, instance_id="w")
    (row,) = called("pending", "--json").document
    assert (row["workflow"], row["instance_id"], row["title"]) == ("cmd-order", "o", "Ship it?")
    assert lines("pending")[1].startswith(f"{row['id']} Ship it? cmd-order/o whoever may decide, not ada 20")
    assert len(called("pending", "--user", "bob", "--json").document) == 1
    assert called("pending", "--user", "ada", "--json").document == []
    assert called("pending", "--user", "ada").out == "Nothing waits for ada.\n"
    assert called("pending", "cmd-wait").out == "Nothing waits for a person.\n"
    assert called("pending", "--user", "eve").err == "There is no user 'eve'."


def test_a_program_without_workflows_is_told_where_they_are_found(workflows: Harness) -> None:
    with mock.patch.object(registry, "names", return_value=[]):
        assert called("list").out.startswith("No workflows: no app in INSTALLED_APPS has one in its module 'workflows'")


def test_a_list_costs_the_same_however_long_it_is(workflows: Harness) -> None:
    """OPS-05: one query for the rows, without their big columns; a question more where the workflow is only stored."""

    def queries() -> list[str]:
        with CaptureQueriesContext(connection) as seen:
            assert called("list", "cmd-order", "--json").status == 0
        return [
            query["sql"]
            for query in seen
            if "durableflow_workflowinstance" in query["sql"] and "migrat" not in query["sql"]
        ]

    workflows.run(Order, 1)
    few = queries()
    for _ in range(5):
        workflows.run(Order, "x" * 5_000)
    assert len(queries()) == len(few) == 1
    assert not any(column in few[0] for column in ('"params"', '"output"', '"progress"'))
