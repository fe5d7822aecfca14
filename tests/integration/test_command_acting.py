"""The verbs on instances at the command line: one by its id (reference 18; cases LIF-06, LIF-10, LIF-13)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from durableflow.core.statuses import Via
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from tests.conftest import UserFactory
from tests.integration.command_flows import RAN, Order, Retrying, Wait, broken
from tests.support.commands import called

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status
OPERATE = ["durableflow.operate_workflowinstance", "durableflow.view_workflowinstance"]


def refused(*arguments: str) -> str:
    """What a refused command says: status 2, and nothing on stdout."""
    done = called(*arguments)
    assert (done.status, done.out) == (2, ""), done
    return done.err


def test_each_verb(workflows: Harness, user_factory: UserFactory) -> None:
    """Each says what it did and where the instance is now; who, why and through which door is in the history."""
    ada = user_factory("ada", permissions=OPERATE)
    row = workflows.run(Wait, instance_id="w")
    who = ("--user", "ada", "--reason", "because")
    assert called("pause", "cmd-wait", "w", *who).out == "Paused cmd-wait/w.\n"
    assert called("resume", "cmd-wait", "latest", *who).out == "Resumed cmd-wait/w: it is queued now.\n"
    workflows.run_due()
    assert called("terminate", "cmd-wait", "w", *who).out == "Terminated cmd-wait/w.\n"
    again = called("restart", "cmd-wait", "w", *who, "--json").document
    assert again == {"workflow": "cmd-wait", "instance_id": "w", "status": "queued", "run_number": 2}
    acts = row.history.filter(actor=ada).order_by("id")
    assert {(act.via, act.reason) for act in acts} == {(Via.CLI, "because")}
    assert [act.type for act in acts] == [
        "workflow_paused",
        "workflow_queued",
        "workflow_terminated",
        "workflow_queued",
    ]


@pytest.mark.parametrize(
    ("status", "verb", "told"),
    [
        (S.RUNNING, "restart", ""),
        (S.COMPLETE, "pause", "pause is not possible: cmd-wait/w is complete"),
        (S.RUNNING, "resume", "resume is not possible: cmd-wait/w is running"),
        (S.TERMINATED, "terminate", "terminate is not possible: cmd-wait/w is terminated"),
        (S.QUEUED, "restart", "restart is not possible: cmd-wait/w is queued"),
        (S.COMPLETE, "retry", "retry is not possible: cmd-wait/w is complete"),
    ],
)
def test_the_table_is_that_of_all_doors(workflows: Harness, status: str, verb: str, told: str) -> None:
    """LIF-06: wrong states are refused with the status that was met, and change nothing."""
    row = workflows.run(Wait, instance_id="w")
    WorkflowInstance.objects.filter(pk=row.pk).update(status=status, wake_at=None)
    if told:
        before = row.history.count()
        assert told in refused(verb, "cmd-wait", "w")
        row.refresh_from_db()
        assert (row.status, row.history.count()) == (status, before)
    else:
        assert called(verb, "cmd-wait", "w").status == 0


def test_twice_is_refused(workflows: Harness) -> None:
    """LIF-06: terminate twice, resume twice."""
    workflows.run(Wait, instance_id="w")
    called("pause", "cmd-wait", "w"), called("resume", "cmd-wait", "w")
    assert "only a paused instance" in refused("resume", "cmd-wait", "w")
    called("terminate", "cmd-wait", "w")
    assert "it has already ended" in refused("terminate", "cmd-wait", "w")


def test_a_running_body_is_waited_for(workflows: Harness) -> None:
    """A pause of a running instance says that it is not paused yet."""
    row = workflows.run(Wait, instance_id="w")
    WorkflowInstance.objects.filter(pk=row.pk).update(status=S.RUNNING, wake_at=None)
    said = called("pause", "cmd-wait", "w").out
    assert said == "cmd-wait/w pauses as soon as the step that runs has ended.\n"


def test_retry_keeps_the_rest(workflows: Harness) -> None:
    """LIF-10: only the failed step runs again, with its key."""
    with broken("token"):
        workflows.run(Order, 1, instance_id="o")
        keys = dict(RAN)
        assert "Retried cmd-order/o: it is queued now." in called("retry", "cmd-order", "o").out
        RAN.clear()
        workflows.run_due()
        assert RAN == [("token", keys["token"])]


def test_terminate_with_rollback(workflows: Harness) -> None:
    """What it did is undone first, and it is told that it has not ended yet."""
    row = workflows.run(Order, 1, instance_id="o")
    said = called("terminate", "cmd-order", "o", "--rollback")
    assert said.out == "cmd-order/o ends when what it did is undone.\n"
    workflows.run_due()
    assert (row.status, row.rollback["outcome"]) == (S.TERMINATED, "complete")


def test_the_right_of_the_user(workflows: Harness, user_factory: UserFactory) -> None:
    """Of another the instance does not exist; an own one may be seen and still not be changed."""
    owner = user_factory("owner")
    user_factory("eve"), user_factory("ada", permissions=OPERATE)
    row = workflows.run(Wait, instance_id="w", created_by=owner)
    for verb in ("pause", "terminate", "restart", "delete"):
        assert "No instance 'w' of workflow 'cmd-wait'." in refused(verb, "cmd-wait", "w", "--user", "eve")
        assert f"owner may not {verb} cmd-wait/w" in refused(verb, "cmd-wait", "w", "--user", "owner")
    assert "ada may not delete cmd-wait/w" in refused("delete", "cmd-wait", "w", "--user", "ada")
    row.refresh_from_db()
    assert row.status == S.WAITING


def test_delete(workflows: Harness, caplog: Any, django_capture_on_commit_callbacks: Any) -> None:
    """LIF-13: all of it goes, its id is free; who has deleted it is logged, since its history is gone."""
    workflows.run(Wait, instance_id="w")
    with caplog.at_level(logging.INFO, "durableflow.audit"), django_capture_on_commit_callbacks(execute=True):
        done = called("delete", "cmd-wait", "w", "--reason", "rubbish", "--json")
    assert done.document == {"workflow": "cmd-wait", "instance_id": "w", "deleted": True}
    assert "cmd-wait/w was deleted by code via cli. Reason: rubbish" in caplog.text
    assert called("start", "cmd-wait", "--id", "w").status == 0
    assert called("delete", "cmd-wait", "w").out == "Deleted cmd-wait/w.\n"
    assert "No instance 'w'" in refused("delete", "cmd-wait", "w")


def test_restart_from_a_step(workflows: Harness) -> None:
    """What started before it is kept; a name that is not there, or options without it, are refused."""
    row = workflows.run(Order, 1, instance_id="o")
    told = refused("restart", "cmd-order", "o", "--from-step", "pay")
    assert "There is no do 'pay', number 1 in cmd-order/o, run 1. There is do 'load-1'" in told
    assert "number 2" in refused("restart", "cmd-order", "o", "--from-step", "charge", "--count", "2")
    assert "belong to --from-step" in refused("restart", "cmd-order", "o", "--count", "2")
    assert "one instance alone" in refused("restart", "cmd-order", "--all", "--from-step", "charge")
    row.refresh_from_db()
    assert (row.status, row.run_number) == (S.WAITING, 1)
    RAN.clear()
    said = called("restart", "cmd-order", "o", "--from-step", "charge").out
    assert said == "Restarted cmd-order/o: run 2 is queued.\n"
    workflows.run_due()
    assert [name for name, _key in RAN] == ["charge"]
    wait = ("restart", "cmd-order", "o", "--from-step", "approval")
    assert "There is wait_for_approval 'approval-1'" in refused(*wait)
    assert called(*wait, "--kind", "wait_for_approval").status == 0


def test_an_id_or_many(workflows: Harness) -> None:
    """Half a choice is no choice: nothing is done."""
    workflows.run(Wait, instance_id="w")
    assert "Name an instance (an id or 'latest'), or give --all" in refused("pause", "cmd-wait")
    assert "--status narrows --all or --failed" in refused("pause", "cmd-wait", "--status", "waiting")
    assert "id and --all exclude each other" in refused("pause", "cmd-wait", "w", "--all")
    assert "id and --status exclude each other" in refused("pause", "cmd-wait", "w", "--status", "waiting")
    assert "--all and --failed exclude each other" in refused("pause", "cmd-wait", "--all", "--failed")
    assert "--ids-from and --failed exclude" in refused("pause", "cmd-wait", "--failed", "--ids-from", "x")


def test_complete_step(workflows: Harness, user_factory: UserFactory) -> None:
    """A person gives the result in place of the body; it needs the right to override, and what cannot be stored is refused."""
    user_factory("ada", permissions=OPERATE)
    user_factory("root", is_superuser=True)
    with broken("fetch"):
        row = workflows.run(Retrying, instance_id="r")
        step = ("complete-step", "cmd-retrying", "r", "fetch", '{"by": "hand"}')
        assert "ada may not" in refused(*step, "--user", "ada")
        assert "There is no do 'got'" in refused(*step[:3], "got", "1")
        assert "OUTPUT is not JSON" in refused(*step[:4], "{")
        assert "number 2" in refused(*step, "--count", "2")
        done = called(*step, "--user", "root", "--reason", "looked it up", "--json").document
        assert (done["step"], done["instance_id"]) == ("fetch-1", "r")
        RAN.clear()
        workflows.run_due()
        assert (row.status, row.output, RAN) == (S.COMPLETE, {"by": "hand"}, [])
    entry = row.history.get(type="step_completed")
    assert (entry.actor_name, entry.via, entry.reason) == ("root", Via.CLI, "looked it up")
    assert refused(*step)
