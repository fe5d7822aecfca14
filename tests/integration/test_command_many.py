"""The verbs on many instances at the command line: asked first, told after (cases LIF-11, SEC-13)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from durableflow import Rollback, Step, Undo, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from tests.conftest import UserFactory
from tests.integration.command_flows import Order, Wait, broken
from tests.support.commands import called

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


def statuses() -> dict[str, str]:
    return dict(WorkflowInstance.objects.order_by("id").values_list("instance_id", "status"))


def waiting(workflows: Harness, *ids: str) -> None:
    for each in ids:
        workflows.run(Wait, instance_id=each)


def test_nothing_without_a_yes(workflows: Harness) -> None:
    """Without a terminal and without --yes: 2, and nothing is done, with the number that it would have been."""
    waiting(workflows, "a", "b")
    for verb in ("pause", "restart", "terminate", "delete"):
        done = called(verb, "cmd-wait", "--all")
        assert (done.status, done.out) == (2, "")
        assert done.err.startswith("2 instances of cmd-wait will ")
        assert done.err.endswith("Nothing was done: without a terminal give --yes.")
    assert "outside systems may charge again" in called("restart", "cmd-wait", "--all").err
    assert statuses() == {"a": "waiting", "b": "waiting"}


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "no\n", "maybe\n"])
def test_whoever_does_not_say_yes_says_no(workflows: Harness, answer: str) -> None:
    """1, and nothing is done."""
    waiting(workflows, "a")
    done = called("terminate", "cmd-wait", "--all", stdin=answer, terminal=True)
    assert (done.status, done.out) == (1, "")
    assert "1 instance of cmd-wait will end now" in done.err and "Go on? [y/N]" in done.err
    assert "Nothing was done." in done.err
    assert statuses() == {"a": "waiting"}


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_yes(workflows: Harness, answer: str) -> None:
    waiting(workflows, "a", "b")
    done = called("terminate", "cmd-wait", "--all", stdin=answer, terminal=True)
    assert done.status == 0 and "Terminated 2 instances of cmd-wait." in done.out
    assert statuses() == {"a": "terminated", "b": "terminated"}


def test_what_all_means(workflows: Harness) -> None:
    """Those to which the verb can be applied: what has ended is not counted, and not skipped either."""
    waiting(workflows, "a", "b", "c")
    called("terminate", "cmd-wait", "b")
    done = called("pause", "cmd-wait", "--all", "--yes", "--json")
    assert (done.status, done.document["skipped"]) == (0, [])
    assert [row["instance_id"] for row in done.document["done"]] == ["a", "c"]
    assert statuses() == {"a": "paused", "b": "terminated", "c": "paused"}
    assert called("pause", "cmd-wait", "--all").out == "Paused 0 instances of cmd-wait.\n"
    assert called("resume", "cmd-wait", "--all", "--yes").out == "Resumed 2 instances of cmd-wait.\n"
    assert called("delete", "cmd-wait", "--all", "--yes").out == "Deleted 3 instances of cmd-wait.\n"
    assert statuses() == {}


def test_failed_ones(workflows: Harness) -> None:
    """--failed with retry: the errored ones of this workflow alone."""
    with broken("load"):
        for each in "abc":
            workflows.run(Order, 1, instance_id=each)
    waiting(workflows, "w")
    done = called("retry", "cmd-order", "--failed", "--yes", "--reason", "bank is back")
    assert (done.status, done.out) == (0, "Retried 3 instances of cmd-order.\n")
    workflows.run_due()
    assert statuses() == {"a": "waiting", "b": "waiting", "c": "waiting", "w": "waiting"}


def test_what_could_not_be_undone_is_listed_and_retried(workflows: Harness) -> None:
    """--failed means also those that are terminated and need a person still."""
    down = [True]

    class CmdUndo(Workflow[Any, Any]):
        class Meta:
            name = "cmd-undo"

        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.do("book", str, rollback=Rollback(self.undo, retries=0))
            step.sleep("night", "8 hours")

        def undo(self, undo: Undo[Any]) -> None:
            if down:
                raise ConnectionError("no answer")

    for each in ("left", "gone"):
        workflows.run(CmdUndo, instance_id=each).terminate(rollback=each == "left")
    workflows.run_due()
    (line,) = called("list", "cmd-undo", "--failed").out.splitlines()[1:]
    assert line.split()[:2] == ["left", "terminated"] and line.endswith("not undone, a person is needed")
    down.clear()
    assert called("retry", "cmd-undo", "--failed", "--yes").out == "Retried 1 instance of cmd-undo.\n"
    workflows.run_due()
    assert called("list", "cmd-undo", "--failed").out == "No instances.\n"


def test_skipped_ones_are_told(workflows: Harness, tmp_path: Path) -> None:
    """SEC-13: each with its reason; the others are done; 1."""
    waiting(workflows, "a", "b", "c")
    called("terminate", "cmd-wait", "b")
    for text in ("a\n\n b \nx\nc\na\n", '["a", "b", "x", "c", "a"]'):
        (tmp_path / "ids").write_text(text)
        done = called("pause", "cmd-wait", "--ids-from", str(tmp_path / "ids"), "--yes")
        assert done.status == 1
        lines = [" ".join(line.split()) for line in done.out.splitlines()]
        assert lines[0] == "Paused 2 instances of cmd-wait." and lines[1] == "Skipped 2:"
        assert lines[3].startswith("b pause is not possible: cmd-wait/b is terminated")
        assert lines[4] == "x The workflow cmd-wait has no instance x."
        called("resume", "cmd-wait", "--all", "--yes")
    piped = called("pause", "cmd-wait", "--ids-from", "-", "--yes", "--json", stdin="a\nb\n")
    assert piped.status == 1
    assert [(each["instance_id"], each["code"]) for each in piped.document["skipped"]] == [("b", "invalid_transition")]


def test_files_that_are_no_lists_of_ids(workflows: Harness, tmp_path: Path) -> None:
    """2, and nothing is done."""
    waiting(workflows, "a")
    contents: list[tuple[bytes, str]] = [
        (b"a\n../b\n", "characters that are not allowed"),
        (b'["a", 1]', "must be a str"),
        (b'["a"', "neither one id a line nor a JSON list"),
        (b"\n", "names no instance"),
        (b"\xff\xfe\xfa", "not UTF-8"),
        ("\n".join(f"i{n}" for n in range(10_001)).encode(), "10,000 at most"),
    ]
    for content, told in contents:
        (tmp_path / "ids").write_bytes(content)
        done = called("delete", "cmd-wait", "--ids-from", str(tmp_path / "ids"), "--yes")
        assert done.status == 2 and told in done.err, done
    assert (
        "cannot be read: No such file" in called("delete", "cmd-wait", "--ids-from", str(tmp_path / "no"), "--yes").err
    )
    assert statuses() == {"a": "waiting"}


def test_the_rights_of_the_user_count_for_each_row(workflows: Harness, user_factory: UserFactory) -> None:
    """What a user may not see is not even counted; what may only be seen is skipped."""
    owner = user_factory("owner")
    waiting(workflows, "a")
    workflows.run(Wait, instance_id="own", created_by=owner)
    done = called("terminate", "cmd-wait", "--all", "--yes", "--user", "owner", "--json")
    assert done.status == 1
    ((only,), gone) = done.document["skipped"], done.document["done"]
    assert (only["instance_id"], only["code"], gone) == ("own", "permission_denied", [])
    assert statuses() == {"a": "waiting", "own": "waiting"}


def test_those_that_come_later_are_none_of_them(workflows: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked about is what is done, also where more are started while the person thinks."""
    waiting(workflows, "a")

    def slow(*_args: Any, **_kwargs: Any) -> bool:
        Wait.create(instance_id="late")
        return True

    monkeypatch.setattr("durableflow.management.verbs.acting.confirmed", slow)
    assert called("terminate", "cmd-wait", "--all").out == "Terminated 1 instance of cmd-wait.\n"
    assert statuses() == {"a": "terminated", "late": "queued"}


def test_progress_is_for_terminals(workflows: Harness) -> None:
    """A bar on stderr that is gone at the end; nothing where programs read."""
    waiting(workflows, "a", "b")
    shown = called("pause", "cmd-wait", "--all", "--yes", terminal=True)
    assert "pause [##############################] 2 of 2" in shown.err
    assert shown.err.endswith("\r") and "[#" not in shown.out
    assert called("resume", "cmd-wait", "--all", "--yes").err == ""


def test_ctrl_c_in_the_middle(workflows: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """130; what was done stays done, and is not told as if all were."""
    waiting(workflows, "a", "b", "c")
    pause, seen = WorkflowInstance.pause, []

    def interrupted(row: WorkflowInstance, **said: Any) -> None:
        seen.append(row.instance_id)
        if len(seen) == 2:
            raise KeyboardInterrupt
        pause(row, **said)

    monkeypatch.setattr(WorkflowInstance, "pause", interrupted)
    done = called("pause", "cmd-wait", "--all", "--yes")
    assert (done.status, done.out) == (130, "") and "what was done stays done" in done.err
    assert statuses() == {"a": "paused", "b": "waiting", "c": "waiting"}


def test_many_are_not_listed_one_by_one(workflows: Harness) -> None:
    """Fifty skipped rows tell enough; --json has them all."""
    ids = json.dumps([f"no-{number}" for number in range(60)])
    workflows.run(Wait)
    done = called("pause", "cmd-wait", "--ids-from", "-", "--yes", stdin=ids)
    assert "and 10 more; --json lists them all" in done.out and "no-50" not in done.out
    assert len(called("pause", "cmd-wait", "--ids-from", "-", "--yes", "--json", stdin=ids).document["skipped"]) == 60


def test_an_id_that_two_names_of_a_workflow_have(workflows: Harness, tmp_path: Path) -> None:
    """Creators before and after a renaming have met: a file means what an id on the command line means, one of them."""

    class Renamed(Workflow[Any, Any]):
        class Meta:
            name = "cmd-renamed"
            previous_names = ["cmd-renamed-from"]

        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            """Nothing."""

    for name in ("cmd-renamed", "cmd-renamed-from"):
        row = Renamed.create(instance_id="a")
        WorkflowInstance.objects.filter(pk=row.pk).update(workflow=name, instance_id="twice")
    ids = tmp_path / "ids"
    ids.write_text("twice\n")
    for name in ("cmd-renamed", "cmd-renamed-from"):
        done = called("delete", name, "--ids-from", str(ids), "--yes", "--json")
        assert (done.status, [row["workflow"] for row in done.document["done"]]) == (0, [name])
