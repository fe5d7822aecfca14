"""Every way in which an instance ends is told at once to those who wait for its result (scenario L)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import WorkflowFailed, drain
from durableflow.core import notices
from durableflow.models import WorkflowInstance, watching
from tests.integration.follow_flows import following
from tests.integration.wait_flows import (
    AwaitedFailure,
    AwaitedLate,
    AwaitedOrder,
    AwaitedParent,
    AwaitedSteps,
    Waiter,
    hears,
)
from tests.support.concurrency import eventually
from tests.support.engine import drain_all, types_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _notices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a notice (PostgreSQL) or a commit (SQLite) wakes who waits, from the first moment on."""
    monkeypatch.setattr(watching, "MARK_EVERY", 3600.0)
    monkeypatch.setattr(watching, "HEAR_AFTER", 0.0)


def waited(row: WorkflowInstance, *acts: Any) -> Any:
    """What somebody gets who waits for ``row``, while after each of ``acts`` all that is due is executed."""
    waiter = Waiter(row)
    for act in (lambda: None, *acts):
        act()
        eventually(lambda: drain(seconds=0.1) or not WorkflowInstance.objects.due().exists(), "nothing is due")
    eventually(lambda: drain(seconds=0.1) or waiter.task.done, "the end")
    return waiter.task.result()


def test_it_completes() -> None:
    """The output."""
    row = AwaitedOrder.create()
    assert waited(row, lambda: row.send_event("go", 7)) == 7


def test_it_fails_and_is_undone() -> None:
    """The end of a rollback is the end."""
    with pytest.raises(WorkflowFailed, match="no money"):
        waited(AwaitedFailure.create())


def test_it_is_terminated() -> None:
    """By a person, who is another process."""
    row = AwaitedOrder.create()
    with pytest.raises(WorkflowFailed, match="terminated"):
        waited(row, lambda: AwaitedOrder.get(row.instance_id).terminate())


def test_it_is_terminated_with_rollback() -> None:
    """The verb begins it, a worker ends it."""
    row = AwaitedOrder.create()
    with pytest.raises(WorkflowFailed, match="terminated"):
        waited(row, lambda: AwaitedOrder.get(row.instance_id).terminate(rollback=True))


def test_it_ends_with_its_parent() -> None:
    """What ends it is the look of a broker, after the parent's end."""
    parent = AwaitedParent.create(instance_id="waited")
    drain_all()
    with pytest.raises(WorkflowFailed, match="terminated"):
        waited(AwaitedOrder.get("child-of-waited"), parent.terminate)


def test_it_runs_out_of_time() -> None:
    """max_duration ends it."""
    with pytest.raises(WorkflowFailed, match="errored"):
        waited(AwaitedLate.create())


def test_it_is_deleted() -> None:
    """There is nothing left to wait for."""
    row = AwaitedOrder.create()
    with pytest.raises(WorkflowInstance.DoesNotExist):
        waited(row, lambda: AwaitedOrder.get(row.instance_id).delete())


def test_a_restart_in_between_goes_on() -> None:
    """The next run's end is what is waited for; a pause is no end."""
    row = AwaitedOrder.create()

    def again() -> None:
        mine = AwaitedOrder.get(row.instance_id)
        mine.pause()
        mine.restart()

    assert waited(row, again, lambda: AwaitedOrder.get(row.instance_id).send_event("go", 8)) == 8


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The instances of which notices are given."""
    found: list[int] = []
    real = notices._give

    def give(using: str, pk: int) -> None:
        found.append(pk)
        real(using, pk)

    monkeypatch.setattr(notices, "_give", give)
    return found


@pytest.mark.postgresql_only
def test_steps_give_no_notice_to_who_waits_for_the_end(given: list[int]) -> None:
    """Nor does the claim: that somebody waits makes a workflow no slower."""
    row = AwaitedSteps.create(20)
    assert waited(row) == list(range(20))
    assert given == [row.pk]


@pytest.mark.postgresql_only
def test_who_follows_beside_is_told_everything(given: list[int]) -> None:
    """Whoever waits for the end leaves the mark of who follows as it is, and needs no other."""
    row = AwaitedSteps.create(20)
    with following(row) as follower:
        eventually(lambda: hears(row), "following")
        assert waited(row) == list(range(20))
    assert follower.types == types_of(row)
    assert len(given) >= len(follower.types) - 1 == 22
