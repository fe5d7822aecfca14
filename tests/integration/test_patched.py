"""``step.patched``: a changed path for runs that have not come there yet (design 6 "Determinism"; ENG-04)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from durableflow import AsyncStep, Step, Workflow, WorkflowEvent
from durableflow.engine.journal import Identity, Record
from durableflow.engine.replay import Replay
from durableflow.models import StepRecord, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of, steps_of, types_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status
Run = Callable[[Step], Any]


def deployed(run: Run) -> type[Workflow[Any, Any]]:
    """What a process finds after a deploy: a version of the workflow ``patched``."""

    def method(self: Any, event: WorkflowEvent[Any], step: Step) -> Any:
        return run(step)

    space = {"run": method, "Meta": type("Meta", (), {"name": "patched"}), "__module__": __name__}
    return type("Patched", (Workflow,), {**space, "__qualname__": "Patched"})


def patches_of(instance: WorkflowInstance) -> list[tuple[str, str, int, Any]]:
    rows = instance.steps.filter(kind="patch").order_by("seq")
    return [(row.scope, row.name, row.count, row.raw_output) for row in rows]


def pay_by_card(step: Step) -> list[str]:
    """The code before the change."""
    first = step.do("load", lambda: "load")
    step.sleep("nap", 60)
    paid = step.do("pay", lambda: "card")
    step.sleep("second nap", 60)
    return [first, paid, step.do("mail", lambda: "mail")]


def pay_by_bank(step: Step) -> list[str]:
    """The code after it, for as long as old runs are there."""
    first = step.do("load", lambda: "load")
    step.sleep("nap", 60)
    if step.patched("by bank"):
        paid = step.do("transfer", lambda: "bank")
    else:
        paid = step.do("pay", lambda: "card")
    step.sleep("second nap", 60)
    return [first, paid, step.do("mail", lambda: "mail")]


def pay_by_bank_only(step: Step) -> list[str]:
    """The code when they are gone: the call is taken out."""
    first = step.do("load", lambda: "load")
    step.sleep("nap", 60)
    paid = step.do("transfer", lambda: "bank")
    step.sleep("second nap", 60)
    return [first, paid, step.do("mail", lambda: "mail")]


def test_a_new_run_takes_the_new_path(stopped_clock: StoppedClock) -> None:
    """True, recorded once, and still true when records follow it."""
    row = drained(deployed(pay_by_bank).create())
    stopped_clock.advance(60)
    assert drained(row).status == S.WAITING
    assert patches_of(row) == [("", "by bank", 1, True)]
    assert [label for label, _ in steps_of(row)] == ["load-1", "nap-1", "by bank-1", "transfer-1", "second nap-1"]
    stopped_clock.advance(60)
    assert (drained(row).status, row.output) == (S.COMPLETE, ["load", "bank", "mail"])
    assert StepRecord.objects.filter(kind="patch").count() == 1
    assert not history_of(row, "patch") and len([type for type in types_of(row) if type == "step_completed"]) == 3


def test_a_run_beyond_the_change_keeps_the_old_path(stopped_clock: StoppedClock) -> None:
    """ENG-04: it was in ``second nap`` when the code was changed before it. Nothing is written for it."""
    row = drained(deployed(pay_by_card).create())
    stopped_clock.advance(60)
    assert [label for label, _ in steps_of(drained(row))][-1] == "second nap-1"
    deployed(pay_by_bank)
    stopped_clock.advance(60)
    assert (drained(row).status, row.output, row.blocked) == (S.COMPLETE, ["load", "card", "mail"], "")
    assert patches_of(row) == []


def test_a_run_before_the_change_takes_the_new_path(stopped_clock: StoppedClock) -> None:
    """It was in ``nap``: what it has recorded stands before the change, so nothing speaks against the new path."""
    row = drained(deployed(pay_by_card).create())
    deployed(pay_by_bank)
    stopped_clock.advance(60)
    drained(row)
    stopped_clock.advance(60)
    assert (drained(row).status, row.output) == (S.COMPLETE, ["load", "bank", "mail"])
    assert patches_of(row) == [("", "by bank", 1, True)]


def test_without_it_the_same_change_blocks(stopped_clock: StoppedClock) -> None:
    """What it is for."""
    row = drained(deployed(pay_by_card).create())
    stopped_clock.advance(60)
    drained(row)
    deployed(pay_by_bank_only)
    stopped_clock.advance(60)
    assert drained(row).status == S.PAUSED
    assert "recorded with do 'pay-1'" in row.blocked


def test_the_call_can_be_taken_out_later(stopped_clock: StoppedClock) -> None:
    """Its record is none of the program's: no order and no end is checked for it."""
    row = drained(deployed(pay_by_bank).create())
    stopped_clock.advance(60)
    drained(row)
    deployed(pay_by_bank_only)
    stopped_clock.advance(60)
    assert (drained(row).status, row.output, row.blocked) == (S.COMPLETE, ["load", "bank", "mail"], "")


@pytest.mark.parametrize("started", ["before", "after"])
def test_a_loop_does_not_change_its_path(stopped_clock: StoppedClock, started: str) -> None:
    """The first answer counts for the whole run: also in the turns that were not recorded when the code was changed."""

    def old(step: Step) -> list[str]:
        paid = []
        for _ in range(4):
            paid.append(step.do("pay", lambda: "card"))
            step.sleep("nap", 60)
        return paid

    def new(step: Step) -> list[str]:
        paid = []
        for _ in range(4):
            paid.append(step.do("transfer", lambda: "bank") if step.patched("bank") else step.do("pay", lambda: "card"))
            step.sleep("nap", 60)
        return paid

    row = drained(deployed(old if started == "before" else new).create())
    deployed(new)
    for _ in range(4):
        stopped_clock.advance(60)
        drained(row)
    assert (row.status, row.output) == (S.COMPLETE, ["card" if started == "before" else "bank"] * 4)
    assert len(patches_of(row)) == (0 if started == "before" else 1)


def test_one_answer_for_one_id_within_one_execution(stopped_clock: StoppedClock) -> None:
    """A run that is at its last record: false before it stays false behind it, and each id has an answer of its own."""

    def old(step: Step) -> Any:
        step.sleep("nap", 60)

    def new(step: Step) -> Any:
        answers = [step.patched("a")]
        step.sleep("nap", 60)
        answers += [step.patched("a"), step.patched("b"), step.patched("b")]
        step.sleep("second nap", 60)
        return [*answers, step.patched("a"), step.patched("b")]

    row = drained(deployed(old).create())
    deployed(new)
    for _ in range(2):
        stopped_clock.advance(60)
        drained(row)
    assert (row.status, row.output) == (S.COMPLETE, [False, False, True, True, False, True])
    assert patches_of(row) == [("", "b", 1, True)]


def test_a_step_may_have_the_same_name(stopped_clock: StoppedClock) -> None:
    """A patch is no step: names do not clash, in neither order."""

    def run(step: Step) -> Any:
        answers: list[Any] = [step.patched("bank"), step.do("bank", lambda: 1), step.patched("bank")]
        answers += [step.do("other", lambda: 2), step.patched("other"), step.patched("other")]
        step.sleep("other", 60)
        return [*answers, step.do("bank", lambda: 3)]

    row = drained(deployed(run).create())
    stopped_clock.advance(60)
    assert (drained(row).status, row.blocked) == (S.COMPLETE, "")
    assert row.output == [True, 1, True, 2, True, True, 3]
    assert [name for _scope, name, _count, _value in patches_of(row)] == ["bank", "other"]


def test_a_recorded_step_may_have_the_name_of_the_patch(stopped_clock: StoppedClock) -> None:
    """Old runs have the step on their journal: that is no clash either."""

    def old(step: Step) -> Any:
        paid = step.do("pay", lambda: "card")
        step.sleep("nap", 60)
        return paid

    def new(step: Step) -> Any:
        paid = step.do("transfer", lambda: "bank") if step.patched("pay") else step.do("pay", lambda: "card")
        step.sleep("nap", 60)
        return paid

    row = drained(deployed(old).create())
    deployed(new)
    stopped_clock.advance(60)
    assert (drained(row).status, row.output, row.blocked) == (S.COMPLETE, "card", "")


def test_each_branch_answers_for_itself(stopped_clock: StoppedClock) -> None:
    """Design 6: a branch that was beyond the change keeps the old path, one that was not takes the new one."""

    def branch(step: Step, new: bool, nap: int) -> str:
        step.sleep("nap", nap)
        bank = new and step.patched("bank")
        paid = step.do("transfer" if bank else "pay", lambda: "bank" if bank else "card")
        step.sleep("second nap", 600)
        return paid

    def program(new: bool) -> Run:
        return lambda step: step.gather("both", lambda: branch(step, new, 10), lambda: branch(step, new, 100))

    row = drained(deployed(program(False)).create())
    stopped_clock.advance(10)
    drained(row)
    deployed(program(True))
    for seconds in (90, 600, 600):
        stopped_clock.advance(seconds)
        drained(row)
    assert (row.status, row.output, row.blocked) == (S.COMPLETE, ("card", "bank"), "")
    ((scope, name, count, value),) = patches_of(row)
    assert scope.endswith("[2]") and (name, count, value) == ("bank", 1, True)


@pytest.mark.parametrize("beyond", [False, True])
def test_async_programs(stopped_clock: StoppedClock, beyond: bool) -> None:
    """The same in an ``async def run``, in its tasks and in the branches of a group."""

    def program(new: bool) -> type[Workflow[Any, Any]]:
        class Patched(Workflow[Any, Any]):
            class Meta:
                name = "patched"

            async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
                await step.sleep("nap", 60)
                at_root = await self.pay(step, "root")
                in_branch = await step.gather("one", lambda: self.pay(step, "branch"))
                in_task = await asyncio.create_task(self.pay(step, "task"))
                await step.sleep("second nap", 60)
                return [at_root, *in_branch, in_task, await step.patched("bank") if new else None]

            async def pay(self, step: AsyncStep, name: str) -> str:
                if new and await step.patched("bank"):
                    return await step.do(f"transfer {name}", lambda: "bank")
                return await step.do(f"pay {name}", lambda: "card")

        return Patched

    row = drained(program(False).create())
    if beyond:
        stopped_clock.advance(60)
        drained(row)
    program(True)
    for _ in range(2):
        stopped_clock.advance(60)
        drained(row)
    paid = "card" if beyond else "bank"
    assert (row.status, row.output, row.blocked) == (S.COMPLETE, [paid, paid, paid, not beyond], "")
    assert [scope for scope, *_ in patches_of(row)] == ([] if beyond else ["", "one-1[1]"])


def test_it_is_a_durable_call(stopped_clock: StoppedClock) -> None:
    """Refused inside of a body by name, and its id follows the rule of names."""

    def run(step: Step) -> Any:
        for wrong in ("", "a\nb", 7):
            with pytest.raises(ValueError, match="step name"):
                step.patched(wrong)  # type: ignore[arg-type]
        return step.do("pay", lambda: step.patched("bank"))

    row = drained(deployed(run).create())
    assert row.status == S.ERRORED and row.error is not None
    assert "patch 'bank' was called inside the body of step 'pay-1'" in row.error["message"]
    assert patches_of(row) == []


def test_its_record_is_nothing_to_be_met() -> None:
    """OPS-02: for ``is_replaying`` and the end check it is not there, called or not."""
    journal = [
        Record(Identity("", kind, name, 1), seq, 1, 1, "complete")
        for seq, (kind, name) in enumerate([("do", "load"), ("patch", "bank")], 1)
    ]
    replay = Replay(journal, where="w/i", owner=0)
    replay.meet(replay.root, replay.enter(replay.root, "do", "load"))
    assert not replay.replaying(replay.root) and replay.root.first_unmet() is None
    replay.check_end()
