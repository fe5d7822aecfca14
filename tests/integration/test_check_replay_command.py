"""``manage.py durableflow check-replay`` (ENG-04, ENG-13, TST-06)."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import CommandError, call_command, execute_from_command_line
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durableflow import Step
from durableflow.core import registry
from durableflow.models import WorkflowInstance
from durableflow.testing import ReplayBroken, checking, replay_check
from tests.integration.check_flows import deployed, deployed_async, inserted_and_used, recorded, removed, snapshot
from tests.support.concurrency import Gate, Task
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def checked(*args: str) -> tuple[int, str]:
    """Exit status and what is printed."""
    out, before = StringIO(), snapshot()
    try:
        call_command("durableflow", "check-replay", *args, stdout=out)
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    assert snapshot() == before, "a check changes no row"
    return status, out.getvalue()


@pytest.fixture(autouse=True)
def only_these() -> None:
    """Other tests' modules have workflows too."""
    registry._classes.clear(), registry._previous.clear()


def test_all_that_runs_is_checked() -> None:
    """TST-06: compatible is 0, and a break is 1 with its instance, what is recorded, what run() does, and the cure."""
    assert checked() == (0, "0 recorded runs checked: 0 would break, 0 fit.\n")
    for name in ("one", "two"):
        drained(deployed(recorded, name=name).create(instance_id=f"{name}-1"))
    assert checked() == (0, "2 recorded runs checked: 0 would break, 2 fit.\n")
    deployed(removed, name="one")
    deployed(inserted_and_used, name="two")
    status, out = checked()
    assert status == 1
    broken, noted, summary = out.splitlines()
    assert broken.startswith(
        "BREAKS  one/one-1 (waiting): do 'charge-1' is recorded before do 'pack-1', but run() does not call it."
    )
    assert noted.startswith(
        "fits    two/two-1 (waiting): 2 of 4 recorded calls met; new do 'is fragile-1' would run here;"
    )
    assert summary == "2 recorded runs checked: 1 would break, 1 fit."
    assert checked("two")[0] == 0
    assert checked("one", "latest")[0] == 1 == checked("one", "one-1")[0]


def test_for_programs() -> None:
    drained(deployed(recorded, name="one").create(instance_id="a"))
    drained(deployed(recorded, name="gone").create())
    registry._classes.pop("gone")
    deployed(removed, name="one")
    status, out = checked("--json")
    data = json.loads(out)
    assert status == 1 and data["checked"] == 1 and data["fits"] == []
    assert data["unknown"] == [{"workflow": "gone", "open": 1}]
    (broken,) = data["broken"]
    assert broken["workflow"] == "one" and broken["instance_id"] == "a" and broken["status"] == "waiting"
    assert (broken["step"], broken["expected"], broken["found"]) == ("charge-1", "do 'charge-1'", "do 'pack-1'")
    assert broken["message"] and broken["cure"]
    deployed(recorded, name="one")
    (fit,) = json.loads(checked("one", "--json")[1])["fits"]
    assert (fit["met"], fit["recorded"], fit["unchecked"], fit["note"]) == (4, 4, 0, "")


def test_workflows_without_a_class() -> None:
    """ENG-13: their open instances would be held; those that have ended hurt nobody."""
    rows = [drained(deployed(recorded, name="gone").create()) for _ in range(3)]
    rows[0].terminate()
    registry._classes.pop("gone")
    for args in ((), ("gone",)):
        status, out = checked(*args)
        assert status == 1
        assert "UNKNOWN gone: 2 open instances, and no class has this name." in out and "previous_names" in out
    assert checked("gone", rows[1].instance_id)[0] == 1
    deployed(recorded, name="new", previous_names=["gone"])
    assert checked() == (0, "2 recorded runs checked: 0 would break, 2 fit.\n")
    assert checked("gone")[0] == checked("new")[0] == checked("gone", "latest")[0] == 0


def test_a_version_that_is_too_low() -> None:
    """Design 6: a worker with this code would hold it."""
    drained(deployed(recorded, version=2).create())
    deployed(recorded, version=1)
    status, out = checked()
    assert status == 1 and "needs version 2 of its workflow, and Meta.version is 1" in out


def test_the_newest_of_each_and_of_a_status() -> None:
    rows = [drained(deployed(recorded).create(instance_id=f"i-{number}")) for number in range(4)]
    rows[3].terminate()

    def seen(*args: str) -> list[str]:
        return [fit["instance_id"] for fit in json.loads(checked(*args, "--json")[1])["fits"]]

    assert seen() == ["i-2", "i-1", "i-0"]
    assert seen("--limit", "2") == ["i-2", "i-1"]
    assert seen("--status", "terminated") == ["i-3"]
    assert seen("--status", "terminated", "--status", "waiting", "--limit", "2") == ["i-3", "i-2"]
    assert seen("check", "latest") == ["i-3"]


def test_it_asks_for_no_more_than_it_shows() -> None:
    """OPS-01: however many instances there are, by an index."""
    deployed(recorded)
    now = timezone.now()
    WorkflowInstance.objects.bulk_create(
        WorkflowInstance(workflow="check", instance_id=str(n), created=now, status=S.COMPLETE) for n in range(2000)
    )
    with CaptureQueriesContext(connection) as captured:
        assert checked()[0] == 0
    assert len(captured) < 60
    selects = [
        query["sql"]
        for query in captured
        if "FROM" in query["sql"] and "ORDER BY" in query["sql"] and "LIMIT 20" in query["sql"]
    ]
    assert selects
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
        cursor.execute(f"{explain} {selects[0]}")
        assert "durableflow_by_" in str(cursor.fetchall())


def test_saved_runs_are_checked_by_the_tests(tmp_path: Path) -> None:
    """The files to keep beside the tests; a later --save replaces them."""
    row = drained(deployed(recorded).create(instance_id="a"))
    drained(deployed(recorded, name="two").create(instance_id="a"))
    folder = tmp_path / "runs" / "new"
    for _ in range(2):
        assert checked("--save", str(folder))[0] == 0
    assert sorted(path.name for path in folder.iterdir()) == ["check.a.json", "two.a.json"]
    row.delete()
    assert len(replay_check(folder).fits) == 2
    deployed(removed)
    with pytest.raises(ReplayBroken, match="check/a"):
        replay_check(folder)


@pytest.mark.parametrize(
    "args",
    [
        ("nothing",),
        ("check", "nothing"),
        ("check", "a", "b"),
        ("--limit", "0"),
        ("--limit", "x"),
        ("--status", "odd"),
        ("--wrong",),
    ],
)
def test_wrong_use_is_two(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """As a service or a build sees it: told apart from what breaks."""
    drained(deployed(recorded).create(instance_id="a"))
    with pytest.raises(SystemExit) as end:
        execute_from_command_line(["manage.py", "durableflow", "check-replay", *args])
    assert end.value.code == 2
    assert "rror" in capsys.readouterr().err


def test_what_code_between_the_steps_writes_is_rolled_back() -> None:
    """It should write nothing, but a check of it must not either."""

    def writing(step: Step) -> Any:
        Group.objects.create(name="written")
        return recorded(step)

    drained(deployed(recorded).create())
    deployed(writing)
    assert checked()[0] == 0
    assert not Group.objects.exists()


@pytest.mark.postgresql_only
def test_it_waits_for_nobody() -> None:
    """It takes no lock: somebody else holds all rows meanwhile."""
    from django.db import transaction

    row = drained(deployed(recorded).create())
    gate = Gate()

    def hold() -> None:
        with transaction.atomic():
            list(WorkflowInstance.objects.select_for_update())
            list(row.steps.select_for_update())
            gate.stop_here()

    holder = Task(hold)
    gate.wait_until_reached()
    try:
        assert checked()[0] == 0
    finally:
        gate.open()
        holder.result()


def test_a_folder_that_cannot_be_is_wrong_use(tmp_path: Path) -> None:
    """Status 1 would say that something breaks."""
    drained(deployed(recorded, name="one").create(instance_id="a"))
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="nothing can be written into") as wrong:
        checked("--save", str(tmp_path / "file"))
    assert wrong.value.returncode == 2


def test_lines_of_the_workflow_are_not_written(caplog: pytest.LogCaptureFixture) -> None:
    """OPS-02: whoever executes the instance writes them."""
    caplog.set_level(logging.DEBUG)

    def told(step: Step) -> None:
        step.do("first", lambda: None)
        step.logger.info("the first is done")
        step.sleep("nap", "1 hour")

    drained(deployed(told, name="one").create(instance_id="a"))
    assert caplog.text.count("the first is done") == 1
    assert checked("--status", "waiting")[0] == 0
    assert caplog.text.count("the first is done") == 1


def test_a_handler_that_is_gone_is_told() -> None:
    """Design 7: a rollback would fail there, and nobody would know before."""

    def run(step: Step, **options: Any) -> None:
        step.do("book", lambda: "b1", **options)
        step.sleep("nap", "1 hour")

    drained(deployed(lambda step: run(step, rollback=lambda undo: None), name="one").create(instance_id="a"))
    assert "rollback handler" not in checked()[1]
    deployed(run, name="one")
    status, out = checked()
    assert status == 0
    assert "no rollback handler any more for do 'book-1'" in out
    assert json.loads(checked("--json")[1])["fits"][0]["unhandled"] == ["do 'book-1'"]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_run_that_does_not_come_to_its_next_call_is_told(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that stands still before a deploy would name no workflow."""
    drained(deployed(recorded).create(instance_id="a"))
    monkeypatch.setattr(checking, "MOST_SECONDS", 0.5)
    if how == "sync":
        deployed(lambda step: time.sleep(60))
    else:
        deployed_async(lambda step: asyncio.sleep(60))
    status, out = checked()
    assert status == 1
    assert "check/a" in out and "has not come to its next call within 0.5 seconds" in out
