"""``replay_check``: what it reads and refuses, what it keeps to itself, and how far it goes (TST-06, SEC-09)."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from durableflow import NonDeterminismError, NonRetryableError, Step
from durableflow.core import registry
from durableflow.models import WorkflowInstance
from durableflow.testing import ReplayBroken, replay_check
from durableflow.testing.recorded import recorded_run, save
from tests.integration.check_flows import deployed, ran, recorded, removed
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


@pytest.fixture
def row() -> WorkflowInstance:
    row = drained(deployed(recorded).create(instance_id="a"))
    assert row.status == S.WAITING
    return row


def test_it_lists_every_run_that_breaks(row: WorkflowInstance, tmp_path: Path) -> None:
    """TST-06: both kinds of error that tests and callers expect, with one line for each run."""
    other = drained(deployed(recorded).create(instance_id="b"))
    for each in (row, other):
        save(recorded_run(each), tmp_path)
    assert len(replay_check(tmp_path).fits) == 2
    deployed(removed)
    with pytest.raises(ReplayBroken, match="2 of 2 recorded runs") as broken:
        replay_check(tmp_path)
    assert isinstance(broken.value, AssertionError) and isinstance(broken.value, NonDeterminismError)
    assert [found.instance_id for found in broken.value.report.breaks] == ["a", "b"]
    assert str(broken.value).count("do 'charge-1' is recorded") == 2


def test_a_file_is_all_that_is_needed(row: WorkflowInstance, tmp_path: Path) -> None:
    """Kept beside the tests, it outlives the instance; a check of it asks no database."""
    path = save(recorded_run(row), tmp_path)
    assert path.name == "check.a.json"
    row.delete()
    with CaptureQueriesContext(connection) as captured:
        assert replay_check(str(path)).fits[0].met == 4
    assert len(captured) == 0


def test_a_file_that_is_none_is_refused_by_name(row: WorkflowInstance, tmp_path: Path) -> None:
    path = save(recorded_run(row), tmp_path)
    data = json.loads(path.read_text())
    for wrong in ("no json", "[]", "{}", json.dumps({**data, "format": 2}), json.dumps({**data, "records": [{}]})):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            replay_check(path)
    with pytest.raises(ValueError, match=r"no \*\.json"):
        (tmp_path / "empty").mkdir()
        replay_check(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        replay_check(tmp_path / "none.json")


def test_what_a_sensitive_step_returned_stays_in_the_database(tmp_path: Path) -> None:
    """SEC-09: the file says that it was left out, and the check goes as far as the value is not needed."""

    def run(step: Step) -> Any:
        key = step.do("get key", lambda: "hush-4711", sensitive=True)
        step.do("open", lambda: "opened", sensitive=False)
        if key.startswith("hush"):
            step.wait_for_event("go", type="go", timeout=None)

    def failing(step: Step) -> Any:
        try:
            step.do("get key", lambda: failed("hush-4711"), sensitive=True, retries=0)
        except Exception:
            step.wait_for_event("go", type="go", timeout=None)

    def failed(text: str) -> str:
        raise NonRetryableError(text)

    for number, each in enumerate((run, failing)):
        row = drained(deployed(each).create(instance_id=str(number)))
        path = save(recorded_run(row), tmp_path)
        assert ("hush" not in path.read_text() and '"left_out": true' in path.read_text()) or number
        assert replay_check(row).fits[0].note == ""
    deployed(run)
    (fit,) = replay_check(tmp_path / "check.0.json").fits
    assert (fit.met, fit.unchecked, fit.needed) == (2, 1, "do 'get key-1'")
    deployed(failing)
    (fit,) = replay_check(tmp_path / "check.1.json").fits
    assert (fit.met, fit.unchecked) == (2, 0)


@pytest.mark.parametrize("value", ["hush-4711", 47114711])
def test_a_secret_in_the_error_of_another_step_stays_in_the_database(value: Any, tmp_path: Path) -> None:
    """SEC-09: causes and arguments of errors are masked too; an error whose text alone is hidden is rebuilt as what it is."""

    def run(step: Step) -> Any:
        key = step.do("get key", lambda: value, sensitive=True)

        def use() -> None:
            raise NonRetryableError("refused") from ValueError("bad key", key)

        with suppress(NonRetryableError):
            step.do("use", use)
        step.wait_for_event("go", type="go", timeout=None)

    path = save(recorded_run(drained(deployed(run).create(instance_id="a"))), tmp_path)
    assert str(value) not in path.read_text()
    (fit,) = replay_check(path).fits
    assert fit.met == 3 or fit.unchecked


def test_code_that_must_not_run_it(row: WorkflowInstance) -> None:
    """ENG-13: no class of that name, or one of a lower version."""
    WorkflowInstance.objects.filter(pk=row.pk).update(code_version=3)
    with pytest.raises(ReplayBroken, match=r"needs version 3 of its workflow, and Meta.version is 0"):
        replay_check(row)
    deployed(recorded, version=3)
    assert replay_check(row).fits[0].met == 4
    with registry.isolated():
        registry._classes.pop("check")
        with pytest.raises(ReplayBroken, match=r"No workflow is named 'check'.*previous_names"):
            replay_check(row)
        deployed(recorded, name="new", previous_names=["check"], version=3)
        assert replay_check(row).fits[0].met == 4


def test_a_journal_that_cannot_be_read(row: WorkflowInstance) -> None:
    """OPS-13: it would be blocked."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durableflow_steprecord SET output = '{broken' WHERE name = 'load'")
    with pytest.raises(ReplayBroken, match=r"check/a.*load-1.*cannot be read"):
        replay_check(row)


def test_secrets_are_not_told(stopped_clock: StoppedClock) -> None:
    """SEC-09: what a sensitive step has returned is masked in what run() raises of it."""

    def run(step: Step) -> Any:
        step.do("get key", lambda: "hush-4711", sensitive=True)
        step.sleep("nap", 60)

    def raising(step: Step) -> Any:
        raise ValueError("wrong: " + step.do("get key", ran, sensitive=True))

    row = drained(deployed(run).create())
    deployed(raising)
    with pytest.raises(ReplayBroken, match="ValueError: wrong") as broken:
        replay_check(row)
    assert "hush" not in str(broken.value)


def test_values_that_are_not_known_are_handed_on(row: WorkflowInstance) -> None:
    """What does not need to know a value goes on: attributes, items, sums, arguments of steps. Names of steps do need it."""

    def handed_on(step: Step) -> Any:
        step.do("load", ran)
        new = step.do("new", ran)
        total = -(new["a"].b(1) + 2) * 3
        step.do("charge", ran, total, copy.deepcopy(new))
        step.do("pack", ran)
        step.wait_for_event("go", type="go", timeout=None)

    deployed(handed_on)
    assert replay_check(row).fits[0].met == 4
    uses: list[Callable[[Any], Any]] = [
        bool, str, repr, len, list, hash, int, float, lambda new: new == 1, lambda new: new > 1, lambda new: f"{new}", lambda new: 1 in new,
        lambda new: range(new), lambda new: {}[new], lambda new: timedelta(new), json.dumps,
    ]  # fmt: skip
    for use in uses:

        def needing(step: Step, use: Any = use) -> Any:
            use(step.do("new", ran))
            recorded(step)

        deployed(needing)
        (fit,) = replay_check(row).fits
        assert (fit.met, fit.unchecked) == (0, 4), use


def test_a_loop_of_new_calls_has_an_end(row: WorkflowInstance) -> None:
    """Nothing that they would give ends it: the check does."""

    def looping(step: Step) -> Any:
        while True:
            step.sleep("tick", 60)
            step.do("poll", ran)

    deployed(looping)
    (fit,) = replay_check(row).fits
    assert (fit.met, fit.unchecked, len(fit.inserted)) == (0, 4, 1001)
    assert "new sleep 'tick-3' would run here; and 996 more; run() depends on" in fit.note


def test_a_program_that_would_leave_the_process(row: WorkflowInstance) -> None:
    """It does not end the check of the others."""

    def leaving(step: Step) -> Any:
        step.do("load", ran)
        sys.exit("bye")

    deployed(leaving)
    with pytest.raises(ReplayBroken, match="run\\(\\) raises SystemExit: bye"):
        replay_check(row)
