"""``replay_check``: recorded runs against changed code, before it is deployed (ENG-04, TST-06)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durableflow import (
    AsyncStep,
    Step,
)
from durableflow.models import (
    WorkflowInstance,
)
from durableflow.testing import ReplayBroken, replay_check
from durableflow.testing.checking import Break, Fit
from durableflow.testing.recorded import recorded_run, save
from tests.integration.check_flows import (
    Run,
    appended,
    async_inserted,
    async_needed,
    async_patched,
    async_recorded,
    async_removed,
    async_renamed,
    behind_an_inserted_step,
    deployed,
    deployed_async,
    earlier_end,
    inserted,
    inserted_and_used,
    inserted_group,
    other_kind,
    patched,
    raises,
    recorded,
    removed,
    renamed,
    renamed_and_used,
    renamed_wait,
    reordered,
    snapshot,
)
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


@pytest.fixture
def row() -> WorkflowInstance:
    row = drained(deployed(recorded).create(instance_id="a"))
    assert row.status == S.WAITING
    return row


@pytest.fixture(params=["row", "file"])
def checked(request: pytest.FixtureRequest, row: WorkflowInstance, tmp_path: Path) -> Callable[[Run], Fit | Break]:
    """Check the recorded run, stored or saved, against a version of its code."""

    def check(run: Run) -> Fit | Break:
        deployed(run)
        before = snapshot()
        source: Any = row if request.param == "row" else save(recorded_run(row), tmp_path)
        try:
            report = replay_check(source)
        except ReplayBroken as broken:
            report = broken.report
        assert snapshot() == before
        (found,) = [*report.fits, *report.breaks]
        return found

    return check


@pytest.mark.parametrize(
    ("run", "expected", "found"),
    [
        (renamed, "do 'load-1'", "do 'charge-1'"),
        (renamed_and_used, "do 'load-1'", "do 'load the cart-1'"),
        (renamed_wait, "wait_for_event 'go-1'", "the end of run()"),
        (other_kind, "do 'charge-1'", "sleep 'charge-1'"),
        (removed, "do 'charge-1'", "do 'pack-1'"),
        (reordered, "do 'charge-1'", "do 'pack-1'"),
        (earlier_end, "do 'charge-1'", "the end of run()"),
        (behind_an_inserted_step, "do 'charge-1'", "do 'pack-1'"),
        (raises, "", "KeyError: 'sum'"),
    ],
)
def test_a_bad_deploy_is_listed(checked: Callable[[Run], Fit | Break], run: Run, expected: str, found: str) -> None:
    """ENG-04, TST-06: with instance, what is recorded, what run() does, and what to do about it."""
    broken = checked(run)
    assert isinstance(broken, Break)
    assert (broken.workflow, broken.instance_id, broken.status) == ("check", "a", S.WAITING)
    assert (broken.expected, broken.found) == (expected, found)
    for part in ("check/a", expected, found.removeprefix("the end of "), "step.patched"):
        assert part in str(broken)


@pytest.mark.parametrize(
    ("run", "met", "note"),
    [
        (recorded, 4, ""),
        (appended, 4, ""),
        (patched, 4, ""),
        (inserted, 4, "new do 'enrich-1' would run here; new sleep 'pause-1' would run here"),
        (
            inserted_and_used,
            2,
            "new do 'is fragile-1' would run here; run() depends on the value of do 'is fragile-1', which is not known here: "
            "2 recorded calls after it were not checked",
        ),
        (inserted_group, 4, "new gather 'both-1' would run here; new map 'measure-1' would run here"),
    ],
)
def test_a_good_deploy_fits(checked: Callable[[Run], Fit | Break], run: Run, met: int, note: str) -> None:
    """TST-06: and the check says what would run, and how far it has come."""
    fit = checked(run)
    assert isinstance(fit, Fit), str(fit)
    assert (fit.recorded, fit.met, fit.note) == (4, met, note)


@pytest.mark.parametrize(
    ("run", "met", "unchecked"),
    [(async_recorded, 6, 0), (async_inserted, 6, 0), (async_patched, 6, 0), (async_needed, 1, 3)],
)
def test_async_programs_that_fit(run: Callable[[AsyncStep], Any], met: int, unchecked: int) -> None:
    """Design 6: one replay core, one check of it."""
    row = drained(deployed_async(async_recorded).create())
    assert row.status == S.WAITING
    deployed_async(run)
    (fit,) = replay_check(row).fits
    assert (fit.recorded, fit.met, fit.unchecked) == (6, met, unchecked)


@pytest.mark.parametrize(("run", "expected"), [(async_removed, "do 'load-1'"), (async_renamed, "do 'load-1'")])
def test_async_programs_that_break(run: Callable[[AsyncStep], Any], expected: str) -> None:
    row = drained(deployed_async(async_recorded).create())
    deployed_async(run)
    with pytest.raises(ReplayBroken) as broken:
        replay_check(row)
    assert broken.value.report.breaks[0].expected == expected


@pytest.mark.parametrize("bad", [renamed_and_used, other_kind, removed, reordered, earlier_end])
def test_what_it_tells_is_what_happens_and_can_be_repaired(row: WorkflowInstance, bad: Run) -> None:
    """ENG-04, ENG-13: the deploy that the check refuses blocks the instance; with the code put back it is resumed and completes,
    and no body runs twice."""
    bodies: list[str] = []

    def good(step: Step) -> Any:
        for name in ("load", "charge", "pack"):
            step.do(name, lambda name=name: bodies.append(name))
        step.wait_for_event("go", type="go", timeout=None)
        return step.do("ship", lambda: "shipped")

    def deploy_bad(step: Step) -> Any:
        quiet = _Quiet(step, bodies)
        return bad(quiet)  # type: ignore[arg-type]

    deployed(deploy_bad)
    with pytest.raises(ReplayBroken):
        replay_check(row)
    row.send_event("go")
    assert drained(row).status == S.PAUSED
    assert row.blocked.startswith("NonDeterminismError")
    with pytest.raises(ReplayBroken):
        replay_check(row)
    deployed(good)
    assert replay_check(row).breaks == []
    row.resume()
    assert (drained(row).status, row.output) == (S.COMPLETE, "shipped")
    assert not {"load", "charge", "pack"} & set(bodies)


class _Quiet:
    """The bad programs with bodies that run."""

    def __init__(self, step: Step, bodies: list[str]) -> None:
        self._step, self._bodies = step, bodies

    def do(self, name: str, body: Any, *args: Any) -> Any:
        return self._step.do(name, lambda: (self._bodies.append(name), {"total": 7})[1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)
