"""Ids that a program gives to its children itself stay taken in the runs that follow (cases CHD-02, LIF-08)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from durableflow import Step, WorkflowEvent
from durableflow.admin.family import DERIVED
from durableflow.models import WorkflowInstance
from durableflow.models.restart import find_step
from tests.integration.chd_flows import Child, S, children_of
from tests.integration.restart_flows import flow
from tests.support.engine import drained

pytestmark = pytest.mark.django_db(transaction=True)


def calling(call: str, params: dict[str, Any], instance_id: str = "given") -> Any:
    """A ``run`` that starts a child of this id after a step, and ends with what it gets."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.do("before", int)
        own = instance_id.format(run=event.run_number)
        if call == "run":
            return step.run_workflow("child", Child, params, instance_id=own)
        return step.start_workflow("child", Child, params, instance_id=own)

    return run


def error_of(row: WorkflowInstance) -> str:
    assert row.status == S.ERRORED and row.error is not None and row.error["type"].endswith("InstanceAlreadyExists")
    return str(row.error["message"])


@pytest.mark.parametrize("call", ["run", "start"])
@pytest.mark.parametrize("from_step", [None, "before", "child"])
def test_a_child_of_an_earlier_run_keeps_its_id(call: str, from_step: str | None) -> None:
    """The error says which instance it is, of which step and run, how far it is, and what helps; it is not touched. Once it is
    deleted the parent can be retried, and starts its child under the id."""
    row = drained(flow(calling(call, {"n": 1})).create())
    (old,) = children_of(row)
    drained(old)
    before = WorkflowInstance.objects.filter(pk=old.pk).values().get()
    row.restart(from_step=from_step)
    message = error_of(drained(row))
    assert (
        'The workflow "chd-child" already has an instance "given": step \'child-1\' has started it in run 1' in message
    )
    assert "it is complete" in message and "event.run_number" in message and "delete that instance and retry" in message
    assert WorkflowInstance.objects.filter(pk=old.pk).values().get() == before
    row.retry()
    assert error_of(drained(row)) == message
    old.delete()
    row.retry()
    assert drained(row).status == S.COMPLETE
    (new,) = children_of(row)
    assert (new.instance_id, row.run_number) == ("given", 2)


def test_one_that_the_restart_has_ended_keeps_it_too() -> None:
    """The old run waited for it."""
    row = drained(flow(calling("run", {"wait": 1})).create())
    (old,) = children_of(row)
    row.restart()
    assert re.search("in run 1 of this instance, and it is (waiting|terminated)", error_of(drained(row)))
    assert drained(old).status == S.TERMINATED


@pytest.mark.parametrize("call", ["run", "start"])
def test_an_id_with_the_run_number_is_new(call: str) -> None:
    """What docs and error advise."""
    row = drained(flow(calling(call, {"n": 1}, "given-{run}")).create())
    row.restart()
    assert drained(row).status == S.COMPLETE
    assert [child.instance_id for child in children_of(row)] == ["given-1", "given-2"]


def test_the_next_run_of_continue_as_new() -> None:
    """It is a run like that after a restart."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.start_workflow("child", Child, {"n": 1}, instance_id="given")
        step.continue_as_new(None)

    assert "'child-1' has started it in run 1 of this instance" in error_of(drained(flow(run).create()))


def test_two_calls_of_one_run_with_one_id() -> None:
    """The error names the other call."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.gather("both", lambda: step.start_workflow("first", Child, {"n": 1}, instance_id="given"))
        return step.start_workflow("second", Child, {"n": 1}, instance_id="given")

    row = drained(flow(run).create())
    assert "step 'both-1[1]/first-1' has started it in run 1 of this instance" in error_of(row)


def test_a_foreign_one_is_said_to_be_foreign() -> None:
    """CHD-02: also the child of another parent."""
    other = drained(flow(calling("run", {"n": 1})).create())
    assert other.status == S.COMPLETE
    row = drained(flow(calling("run", {"n": 1})).create())
    assert "which this instance has not started" in error_of(row)


def test_ids_that_derive_from_their_calls_are_free_in_each_run() -> None:
    """Also those of ``run_workflows``, and of a child that ``retry()`` has started anew; the admin knows them from given ones."""

    def run(event: WorkflowEvent[Any], step: Step) -> Any:
        step.run_workflows("many", Child, [{"n": 1}, {"n": 2}])
        return step.run_workflow("child", Child, {"wait": 1})

    row = drained(flow(run).create())
    last = children_of(row)[-1]
    last.terminate()
    assert drained(row).status == S.ERRORED
    row.retry()
    assert drained(row).status == S.WAITING
    row.restart()
    assert drained(row).status == S.WAITING
    row.restart(from_step=find_step(row, "many", kind="child", scope=""))
    assert drained(row).status == S.WAITING
    ids = [child.instance_id for child in children_of(row)]
    assert len(ids) == len(set(ids)) == 10
    assert [each for each in ids if not re.search(DERIVED, each)] == []
