"""``manage.py durableflow start``, ``send`` and ``decide`` (reference 18; cases LIF-12, EVT-08, EVT-10, CON-11)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from durableflow.core.statuses import Trigger, Via
from durableflow.models import PendingEvent, Priority, WorkflowInstance
from durableflow.testing import Harness
from tests.conftest import UserFactory
from tests.integration.command_flows import Ask, Order, Wait, broken
from tests.support.commands import Called, called
from tests.support.concurrency import Task
from tests.support.engine import drained

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


def refused(*arguments: str, **more: Any) -> str:
    """What a refused command says: status 2, and nothing on stdout."""
    done = called(*arguments, **more)
    assert (done.status, done.out) == (2, ""), done
    return done.err


def test_start(workflows: Harness) -> None:
    """As trusted code: trigger and door are the command line, nobody is its creator."""
    assert called("start", "cmd-wait", '{"a": [1, null]}', "--id", "w").out == "Started cmd-wait/w.\n"
    row = Wait.get("w")
    assert (row.params, row.trigger, row.created_by, row.priority) == ({"a": [1, None]}, Trigger.CLI, None, 1)
    assert row.history.get().via == Via.CLI
    assert called("start", "cmd-wait", "--json").document["status"] == "queued"
    read = called("start", "cmd-wait", "-", "--id", "stdin", stdin='"from stdin"')
    assert read.status == 0 and Wait.get("stdin").params == "from stdin"


def test_options_of_start(workflows: Harness) -> None:
    """Start, priority and retention; what has no offset is of the project's time zone."""
    later = ("--start-at", "10 minutes", "--priority", "high", "--retention-error", "2 days")
    assert "Started cmd-wait/w. It starts at 20" in called("start", "cmd-wait", "--id", "w", *later).out
    row = Wait.get("w")
    assert (row.wake_at, row.priority) == (row.created + timedelta(minutes=10), Priority.HIGH)
    assert (row.retention_success, row.retention_error) == (None, timedelta(days=2))
    assert called("start", "cmd-wait", "--id", "seconds", "--retention-success", "90").status == 0
    assert Wait.get("seconds").retention_success == timedelta(seconds=90)
    moment = called("start", "cmd-wait", "--id", "at", "--start-at", "2035-12-01T08:00", "--json")
    assert moment.status == 0 and Wait.get("at").starts_at == datetime(2035, 12, 1, 8, tzinfo=UTC)


def test_words_that_may_be_left_out_also_stand_behind_options(workflows: Harness) -> None:
    """Where people write them: ``start WORKFLOW --id ID PARAMS``, ``send ... --user NAME PAYLOAD``, ``pause WORKFLOW --reason WHY ID``."""
    assert called("start", "cmd-wait", "--id", "w", '{"a": 1}').status == 0
    assert called("start", "cmd-wait", "--id", "stdin", "-", stdin="7").status == 0
    assert (Wait.get("w").params, Wait.get("stdin").params) == ({"a": 1}, 7)
    assert called("send", "cmd-wait", "w", "go", "--reason", "why", '"payload"').status == 0
    assert Wait.get("w").sent_events.get().payload == "payload"
    assert called("pause", "cmd-wait", "--reason", "why", "w").status == 0
    assert Wait.get("w").status == S.PAUSED
    assert called("start", "cmd-wait", "--idd", "x", "{}").err == "Error: unrecognized arguments: --idd x {}"
    assert called("start", "cmd-wait", "1", "--id", "x", "{}").err == "Error: unrecognized arguments: {}"


def test_a_start_that_is_refused_stores_nothing(workflows: Harness, settings: Any) -> None:
    """LIF-12: an id is taken once and for all; the rest is wrong use, each with its sentence."""
    Wait.create(instance_id="w")
    assert refused("start", "cmd-wait", "--id", "w") == 'The workflow "cmd-wait" already has an instance "w".'
    assert "the command line uses it for the newest" in refused("start", "cmd-wait", "--id", "latest")
    assert "characters that are not allowed" in refused("start", "cmd-wait", "--id", "a/b")
    assert "PARAMS is not JSON: Expecting property name" in refused("start", "cmd-wait", "{a: 1}")
    assert "A text needs its quotes" in refused("start", "cmd-wait", "paid")
    assert "NaN is not JSON" in refused("start", "cmd-wait", "[NaN]")
    assert "1e400 is too large for a number" in refused("start", "cmd-wait", "[1e400]")
    assert "stdin is not JSON" in refused("start", "cmd-wait", "-", stdin="")
    assert "There is no workflow 'os.system'" in refused("start", "os.system", "1")
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LIMITS": {"params": 10}}
    assert "is too large: 22 bytes, at most 10" in refused("start", "cmd-wait", '"12345678901234567890"')
    assert "retention error" in refused("start", "cmd-wait", "--retention-error", "1h")
    assert WorkflowInstance.objects.count() == 1


def test_the_right_to_start(workflows: Harness, user_factory: UserFactory) -> None:
    """With --user it is that person who starts, and who needs the right (design 12)."""
    user_factory("eve"), user_factory("ada", permissions=["durableflow.start_workflowinstance"])
    user_factory("off", is_active=False, is_superuser=True)
    assert "eve may not start cmd-wait: the permission" in refused("start", "cmd-wait", "--user", "eve")
    assert "off may not start cmd-wait" in refused("start", "cmd-wait", "--user", "off")
    assert refused("start", "cmd-wait", "--user", "nobody") == "There is no user 'nobody'."
    assert called("start", "cmd-wait", "--id", "w", "--user", "ada", "--reason", "asked by phone").status == 0
    assert Wait.get("w").created_by_name == "ada"
    assert Wait.get("w").history.get().reason == "asked by phone"
    assert WorkflowInstance.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_waiting_for_its_end() -> None:
    """--wait: 0 and the output; 1 where it fails or takes longer."""
    ends: list[Called] = []

    def wait(workflow: str, *arguments: str) -> Called:
        task = Task(lambda: ends.append(called("start", workflow, "--wait", "50", "--id", "w", *arguments)))
        while not task.done:
            row = WorkflowInstance.objects.filter(workflow=workflow, instance_id="w").first()
            if row is not None and not row.is_finished:
                if row.status == S.WAITING and not row.sent_events.exists():
                    row.send_event("paid", "thanks")
                drained(row)
        task.result()
        return ends.pop()

    done = wait("cmd-wait")
    assert (done.status, done.out, done.err) == (0, '"thanks"\n', "Started cmd-wait/w.\n")
    with broken("load"):
        failed = wait("cmd-order", "--json")
    assert failed.status == 1 and failed.document["status"] == "errored"
    assert r"cmd-order/w is errored: OSError: load is \x1b[2Jbroken" in failed.err
    late = called("start", "cmd-wait", "--id", "late", "--wait", "0")
    assert late.status == 1 and "has not ended within 0.0 seconds" in late.err


def test_send(workflows: Harness, user_factory: UserFactory) -> None:
    """EVT-08: whether it is waited for is told; a key makes a second sending harmless."""
    ada = user_factory("ada", permissions=["durableflow.operate_workflowinstance", "durableflow.view_workflowinstance"])
    row = workflows.run(Wait, instance_id="w")
    early = called("send", "cmd-wait", "w", "other", "1")
    assert early.out == "Sent. cmd-wait/w keeps it until it waits for other. It waits for paid, refused now.\n"
    paid = (
        "send",
        "cmd-wait",
        "latest",
        "paid",
        '{"sum": 1}',
        "--dedupe-key",
        "k",
        "--user",
        "ada",
        "--reason",
        "call",
    )
    assert called(*paid).out == "Sent. cmd-wait/w waits for it.\n"
    assert called(*paid).out == "cmd-wait/w had this event already.\n"
    sent = row.sent_events.get(dedupe_key="k")
    assert (sent.sent_by, sent.via, sent.reason) == (ada, Via.CLI, "call")
    answer = called(*paid, "--json").document
    assert answer == {"id": sent.pk, "duplicate": True, "status": "waiting", "waiting_for": ["paid", "refused"]}
    assert "another type or payload" in refused(*paid[:4], "2", "--dedupe-key", "k")
    workflows.run_due()
    assert row.output == {"sum": 1}
    assert "is complete; nobody can read an event there" in refused("send", "cmd-wait", "w", "paid")
    assert "event type" in refused("send", "cmd-wait", "w", "a b")


def test_foreign_and_unknown_are_told_alike(workflows: Harness, user_factory: UserFactory) -> None:
    """What a user may not see does not exist for that user (case SEC-04); what may be seen only is a missing right."""
    user_factory("eve"), user_factory("viewer", permissions=["durableflow.view_workflowinstance"])
    row = workflows.run(Wait, instance_id="w")
    foreign = refused("send", "cmd-wait", "w", "paid", "--user", "eve")
    assert foreign == refused("send", "cmd-wait", "x", "paid", "--user", "eve").replace("'x'", "'w'")
    assert "viewer may not send an event to cmd-wait/w" in refused("send", "cmd-wait", "w", "paid", "--user", "viewer")
    assert not row.sent_events.exists()


def test_decide(workflows: Harness, user_factory: UserFactory) -> None:
    """EVT-10: the first answer wins, the second is told who and when; it is audited."""
    ada = user_factory("ada", permissions=["durableflow.decide_pendingevent"])
    row = workflows.run(Order, "barred", instance_id="o", created_by=ada)
    wait = PendingEvent.objects.get()
    key = str(wait.pk)
    assert "ada started cmd-order/o and may not decide" in refused("decide", key, "approve", "--user", "ada")
    user_factory("bob", permissions=["durableflow.decide_pendingevent"])
    said = called("decide", key, "reject", "--comment", "too much", "--user", "bob", "--reason", "phone")
    assert said.out == "Rejected: Ship it? (cmd-order/o).\n"
    workflows.run_due()
    assert row.output == {"approved": False, "comment": "too much"}
    wait.refresh_from_db()
    assert (wait.via, wait.decided_by_name) == (Via.CLI, "bob")
    assert row.history.get(type="decided").reason == "phone"
    assert "was already decided by bob" in refused("decide", key, "approve", "--user", "bob")
    assert "There is no pending event 4711" in refused("decide", "4711", "approve")


def test_a_decision_with_a_form(workflows: Harness) -> None:
    """The fields are given as JSON; what the form refuses is told field by field, and nothing is stored."""
    row = workflows.run(Ask, instance_id="a")
    key = str(PendingEvent.objects.get().pk)
    assert refused("decide", key, "approve", "--data", '{"amount": "x"}') == "amount: Enter a number."
    assert refused("decide", key, "approve") == "amount: This field is required."
    done = called("decide", key, "approve", "--data", "-", "--json", stdin='{"amount": "9.90"}')
    assert done.document["data"] == {"amount": "9.90"}
    workflows.run_due()
    assert row.output == "9.90"


def test_what_decide_refuses(workflows: Harness, user_factory: UserFactory) -> None:
    """Who cannot see it, data for a form that is not there, a wait that events answer."""
    user_factory("eve")
    workflows.run(Order, 1, instance_id="o")
    workflows.run(Wait, instance_id="w")
    key, of_events = (str(wait.pk) for wait in PendingEvent.objects.order_by("id"))
    assert f"There is no pending event {key}." in refused("decide", key, "approve", "--user", "eve")
    assert "takes no" in refused("decide", key, "reject", "--data", '{"a": 1}')
    assert "must be a JSON object" in refused("decide", key, "approve", "--data", "[1]")
    assert "is answered by events of type paid, refused" in refused("decide", of_events, "approve")
    assert called("decide", key, "approve", "--json").document["approved"] is True
