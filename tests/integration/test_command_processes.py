"""The command in processes of its own: exit statuses as a shell sees them, pipes, options before and behind the verb."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management.base import CommandParser

from durableflow.management.verbs import VERBS
from project.settings import BASE_DIR
from shop.workflows import Settlement
from tests.support.database import child_environment

pytestmark = pytest.mark.django_db(transaction=True)
MANAGE = [sys.executable, "manage.py", "durableflow"]


def shell(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MANAGE, *arguments],
        cwd=BASE_DIR,
        env=child_environment(**environment),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_from_start_to_end() -> None:
    """What a script does: start, look, send, run, read the result; each line of stdout is a document."""
    started = shell("start", "settlement", '{"order": "7"}', "--id", "order-7", "--json")
    assert (started.returncode, json.loads(started.stdout)["status"]) == (0, "queued"), started.stderr
    assert shell("drain").stdout == "1 execution\n"
    waits = json.loads(shell("show", "settlement", "latest", "--json").stdout)["waiting_for"]
    assert waits[0]["types"] == ["payment_settled", "payment_failed"]
    assert shell("send", "settlement", "order-7", "payment_settled", "-", stdin="{}").returncode == 0
    assert shell("drain", "--json").stdout == '{"executions": 1}\n'
    assert json.loads(shell("show", "settlement", "order-7", "--json").stdout)["output"] == "paid"


def test_exit_statuses() -> None:
    """2 for wrong use, wrong state and what is not there, in one line and without a traceback; 1 for a no."""
    Settlement.create({"order": "7"}, instance_id="order-7")
    for arguments in ("show settlement order-8", "terminate settlement --all"):
        refused = shell(*arguments.split())
        assert (refused.returncode, refused.stdout) == (2, ""), arguments
        (line,) = refused.stderr.splitlines()
        assert line.startswith("CommandError: ")
    assert shell("list", "--status", "nonsense").returncode == 2
    partly = shell("pause", "settlement", "--ids-from", "-", "--yes", stdin="order-7\norder-8\n")
    assert partly.returncode == 1 and "Skipped 1:" in partly.stdout


def test_options_of_django_may_stand_behind_the_verb() -> None:
    """Where people write them."""
    done = shell("list", "--force-color", "--settings", "tests.settings")
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away() -> None:
    """``durableflow list | head -1``: no complaint."""
    with subprocess.Popen(
        [*MANAGE, "list"], cwd=BASE_DIR, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        complaint = process.stderr.read().decode()
        assert process.wait(120) == 141
    assert complaint == ""


def test_a_terminal_without_letters() -> None:
    """An ASCII terminal gets escapes in place of an error."""
    Settlement.create({"order": "é"}, instance_id="order-7")
    done = shell("show", "settlement", "order-7", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and r"\xe9" in done.stdout
    found = json.loads(shell("show", "settlement", "order-7", "--json", PYTHONIOENCODING="ascii").stdout)
    assert found["params"] == {"order": "é"}


def test_a_database_that_is_away() -> None:
    """A sentence, without a traceback."""
    done = shell("terminate", "settlement", "order-7", DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "'default' is away or busy, try again" in done.stderr


def test_each_verb_has_help_and_json() -> None:
    """Each is listed with a sentence, documents its options, and can talk to programs."""
    listed = shell("--help").stdout
    for verb in VERBS:
        assert f"\n    {verb.name} " in listed
        assert verb.help.endswith(".")
        assert verb.__doc__
        parser = CommandParser(prog=verb.name)
        verb.add_arguments(parser)
        assert "--json" in parser.format_help()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
def test_a_closed_stream_is_no_crash(closed: str) -> None:
    """What a service manager may start it with: nothing is written or read there, and the status says the same as ever."""
    Settlement.create({"order": "7"}, instance_id="order-7")
    for verb, status in (("list settlement", 0), ("show settlement order-8", 2), ("start settlement -", 2)):
        line = f"{shlex.join(MANAGE)} {verb} {closed}"
        done = subprocess.run(
            line, shell=True, cwd=BASE_DIR, env=child_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == status, (line, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
def test_a_full_disk_is_told() -> None:
    """In a sentence, with a status that does not say that nothing was done."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*MANAGE, "list"], cwd=BASE_DIR, env=child_environment(), stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 74
    assert done.stderr == "CommandError: The output cannot be written: No space left on device.\n"
