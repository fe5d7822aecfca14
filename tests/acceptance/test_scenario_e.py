"""What starts workflows, and their life cycle (reference 26, scenario E: E2, E4, E5; E1 and E6 are in tests/api, E3 with the schedules)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import InstanceAlreadyExists, InvalidTransition, Step, Workflow, WorkflowEvent, operations
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


def test_e2_a_child_that_is_created_in_a_step(workflows: Harness) -> None:
    """The parent never waits for it and is complete first; a creation that fails once is tried again, and a replay creates no second
    one."""
    log: list[str] = []
    failures = [ConnectionError("the first creation fails")]

    class IndependentChild(Workflow[dict[str, str], str]):
        def run(self, event: WorkflowEvent[dict[str, str]], step: Step) -> str:
            step.sleep("a long job", "1 hour")
            return event.params["fileKey"]

    def create(key: str, parent: str) -> str:
        log.append("create")
        if failures:
            raise failures.pop()
        try:
            return IndependentChild.create({"fileKey": key}, instance_id=f"child-{parent}").instance_id
        except InstanceAlreadyExists as error:
            return str(error.instance_id)

    class TriggeringParent(Workflow[None, str]):
        def run(self, event: WorkflowEvent[None], step: Step) -> str:
            key = step.do("initial processing", lambda: "file-1")
            child = step.do("trigger child workflow", create, key, step.instance_id)
            step.do("continue with other work", log.append, f"{child} is {IndependentChild.get(child).status}")
            return child

    workflows.crash_before_checkpoint("trigger child workflow")
    parent = workflows.run(TriggeringParent, instance_id="p")
    workflows.advance("1 minute")
    child = IndependentChild.get("child-p")
    assert (parent.status, parent.output, child.status) == (S.COMPLETE, "child-p", S.WAITING)
    assert log[:2] == ["create", "create"] and log[-1].startswith("child-p is")
    assert IndependentChild.instances().count() == 1
    workflows.advance("1 hour")
    child.refresh_from_db()
    assert child.output == "file-1"


class Log:
    """What the bodies of ``flow`` have done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.inside: Any = None

    def body(self, name: str) -> str:
        """Note the name, and do what the test wants done inside of this body."""
        self.done.append(name)
        if self.inside is not None:
            inside, self.inside = self.inside, None
            inside()
        return f"{name} {self.done.count(name)}"


def flow(log: Log) -> type[Workflow[Any, Any]]:
    class LifeCycle(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> list[str]:
            one = step.do("one", log.body, "one")
            step.sleep("nap", "1 hour")
            return [one, step.do("two", log.body, "two"), step.do("three", log.body, "three")]

    return LifeCycle


def test_e4_pause_in_a_sleep_and_in_a_running_step(workflows: Harness) -> None:
    """In a sleep it is paused at once; while a body runs it waits for its end, keeps the result and starts nothing more."""
    log = Log()
    row = workflows.run(flow(log))
    row.pause()
    assert row.status == S.PAUSED
    row.resume()
    assert row.status == S.QUEUED
    seen: list[str] = []

    def pause() -> None:
        same = WorkflowInstance.objects.get(pk=row.pk)
        same.pause()
        seen.append(same.status)

    log.inside = pause
    workflows.advance("1 hour")
    assert (seen, row.status, log.done) == ([S.WAITING_FOR_PAUSE], S.PAUSED, ["one", "two"])
    assert row.steps.get(name="two").output == "two 1"
    row.resume()
    workflows.run_due()
    assert (row.status, row.output) == (S.COMPLETE, ["one 1", "two 1", "three 1"])


def test_e4_terminate(workflows: Harness) -> None:
    """For good: nothing runs any more, and a second one is refused, as it is of a complete instance."""
    log = Log()
    row, complete = workflows.run(flow(log)), workflows.run(flow(Log()))
    row.terminate()
    workflows.advance("2 hours")
    assert (row.status, row.output, log.done) == (S.TERMINATED, None, ["one"])
    for ended in (row, complete):
        with pytest.raises(InvalidTransition) as refused:
            ended.terminate()
        assert refused.value.status == ended.status


def test_e4_restart_and_restart_from_a_step(workflows: Harness) -> None:
    """A restart runs everything again under the same id; one from a step keeps what was before it."""
    log = Log()
    row = workflows.run(flow(log), {"n": 1}, instance_id="again")
    workflows.advance("1 hour")
    assert row.output == ["one 1", "two 1", "three 1"]
    row.restart(from_step="two")
    workflows.run_due()
    assert (row.run_number, row.output) == (2, ["one 1", "two 2", "three 2"])
    with pytest.raises(ValueError, match="four"):
        row.restart(from_step="four")
    assert (row.run_number, row.status) == (2, S.COMPLETE)
    row.restart()
    workflows.run_due()
    assert (row.status, row.output, row.params, row.instance_id) == (S.WAITING, None, {"n": 1}, "again")
    workflows.advance("1 hour")
    assert (row.run_number, row.output) == (3, ["one 2", "two 3", "three 3"])


def test_e4_delete_one_and_many(workflows: Harness) -> None:
    """What is deleted is gone, and its id is free; of many the missing are told."""
    log = Log()
    flows = flow(log)
    rows = [workflows.run(flows, instance_id=name) for name in ("a", "b", "c")]
    rows[0].delete()
    assert flows.create(instance_id="a").pk not in {row.pk for row in rows}
    chosen = flows.instances().filter(instance_id__in=["b", "b", "c", "nobody"])
    report = operations.bulk_delete(chosen, by=None)
    assert ([row.instance_id for row in report.done], report.skipped) == (["b", "c"], [])
    assert [row.instance_id for row in flows.instances()] == ["a"]


def test_e5_a_workflow_that_restarts_itself(workflows: Harness) -> None:
    """A page of files, one step per file, the cursor stored outside; it restarts itself while more remain."""
    files, done, cursor = [f"file-{n}" for n in range(7)], [], {"at": 0}

    class Pages(Workflow[None, int]):
        def run(self, event: WorkflowEvent[None], step: Step) -> int:
            at = step.do("read cursor", lambda: cursor["at"])
            page = files[at : at + 3]
            for name in page:
                step.do(f"process {name}", lambda name=name: done.append(name))
            step.do("store cursor", lambda: cursor.update(at=at + len(page)))
            if at + len(page) < len(files):
                step.do("restart", lambda: Pages.get(step.instance_id).restart())
            return at + len(page)

    row = workflows.run(Pages)
    assert (row.status, row.output, row.run_number, done) == (S.COMPLETE, 7, 3, files)


def test_e5_the_same_as_a_new_run(workflows: Harness) -> None:
    """With ``continue_as_new`` the cursor goes along as params."""
    done: list[str] = []

    class PagesAnew(Workflow[dict[str, int], int]):
        def run(self, event: WorkflowEvent[dict[str, int]], step: Step) -> int:
            at = event.params["at"]
            for number in range(at, min(at + 3, 7)):
                step.do("process", done.append, f"file-{number}")
            if at + 3 < 7:
                step.continue_as_new({"at": at + 3})
            return 7

    row = workflows.run(PagesAnew, {"at": 0})
    assert (row.status, row.output, row.run_number, len(done)) == (S.COMPLETE, 7, 3, 7)
