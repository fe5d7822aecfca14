"""The rules of workflows, each as a program that keeps it (reference 26, scenario F)."""

from __future__ import annotations

import copy
import random
import re
import threading
from queue import SimpleQueue
from typing import Any

import pytest

from durableflow import (
    AsyncStep,
    CodecError,
    InstanceAlreadyExists,
    LimitExceeded,
    NonRetryableError,
    Step,
    Workflow,
    WorkflowEvent,
    get_step_context,
)
from durableflow.models import StepRecord, WorkflowInstance
from durableflow.testing import Harness
from tests.integration.eng_flows import workflow

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status


class Bank:
    """A provider that knows a request by its key. ``loses`` answers get lost after the money has moved."""

    def __init__(self, loses: int = 0) -> None:
        self.loses = loses
        self.asked = 0
        self.charges: dict[str, int] = {}

    def charge(self, total: int) -> str:
        key = get_step_context().idempotency_key
        self.asked += 1
        self.charges.setdefault(key, total)
        if self.asked <= self.loses:
            raise ConnectionError("the answer was lost")
        return key


def test_f1_an_idempotent_charge(workflows: Harness) -> None:
    """The provider commits and its answer is lost: the second attempt has the same key, and there is one charge."""
    bank = Bank(loses=1)
    row = workflows.run(workflow(lambda step, log: step.do("charge", bank.charge, 30), []))
    workflows.advance("1 minute")
    assert (row.status, row.output, bank.asked) == (S.COMPLETE, *bank.charges, 2)


def test_f2_granular_steps(workflows: Harness) -> None:
    """The second step fails: the first is not done again."""

    def run(step: Step, log: list[str]) -> str:
        key = step.do("read", lambda: log.append("read") or "k")
        return step.do("fetch", fetch, key, retries=1)

    def fetch(key: str) -> str:
        log.append("fetch")
        if log.count("fetch") == 1:
            raise OSError("HTTP 503")
        return key

    log: list[str] = []
    row = workflows.run(workflow(run, log))
    workflows.advance("1 minute")
    assert (row.status, row.output, log) == (S.COMPLETE, "k", ["read", "fetch", "fetch"])


def test_f3_state_is_what_steps_return(workflows: Harness) -> None:
    """After the sleep ``run`` starts anew: results are there, what bodies put into a list of ``run`` is not."""

    def run(step: Step, log: list[str]) -> Any:
        kept_outside: list[str] = []

        def fetch(name: str) -> str:
            log.append(name)
            kept_outside.append(name)
            return name.upper()

        both = step.gather("all", lambda: step.do("a", fetch, "a"), lambda: step.do("b", fetch, "b"))
        step.sleep("three hours", "3 hours")
        return step.do("use", lambda: [both, kept_outside])

    log: list[str] = []
    row = workflows.run(workflow(run, log))
    assert row.status == S.WAITING
    workflows.advance("3 hours")
    assert (row.status, row.output, sorted(log)) == (S.COMPLETE, [("A", "B"), []], ["a", "b"])


def branches(step: Step, log: list[str], broken: list[str], **options: Any) -> Any:
    def work(name: str) -> str:
        log.append(name)
        if name in broken:
            raise NonRetryableError(f"{name} is broken")
        return name

    return step.gather("three", *[lambda name=name: step.do(name, work, name) for name in "abc"], **options)


def test_f4_a_branch_fails(workflows: Harness) -> None:
    """The error is raised once all have ended; the other results are stored, and ``retry()`` reuses them."""
    log: list[str] = []
    broken = ["b"]
    row = workflows.run(workflow(lambda step, log: branches(step, log, broken), log))
    assert row.status == S.ERRORED and row.error is not None and row.error["type"] == "ExceptionGroup"
    ends = dict(StepRecord.objects.filter(instance=row.pk, kind="do").values_list("name", "status"))
    assert ends == {"a": "complete", "b": "failed", "c": "complete"}
    broken.clear()
    row.retry()
    workflows.run_due()
    assert (row.status, row.output) == (S.COMPLETE, ("a", "b", "c"))
    assert sorted(log) == ["a", "b", "b", "c"]


def test_f4_errors_as_values(workflows: Harness) -> None:
    """The variant that completes."""

    def run(step: Step, log: list[str]) -> Any:
        return [str(got) for got in branches(step, log, ["b"], return_exceptions=True)]

    row = workflows.run(workflow(run, []))
    assert (row.status, row.output) == (S.COMPLETE, ["a", "b is broken", "c"])


def first_of_two(log: list[str]) -> str:
    """A race of bodies inside one body: the slow one waits for the fast one."""
    ended: SimpleQueue[str] = SimpleQueue()
    fast_ended = threading.Event()

    def slow() -> None:
        fast_ended.wait(30)
        ended.put("first")

    def fast() -> None:
        ended.put("second")
        fast_ended.set()

    threads = [threading.Thread(target=slow), threading.Thread(target=fast)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.append("raced")
    return ended.get()


def test_f5_a_race_of_bodies_stands_in_one_step(workflows: Harness) -> None:
    def run(step: Step, log: list[str]) -> str:
        winner = step.do("race", first_of_two, log)
        step.sleep("two hours", "2 hours")
        return winner

    log: list[str] = []
    row = workflows.run(workflow(run, log))
    workflows.advance("2 hours")
    assert (row.status, row.output, log) == (S.COMPLETE, "second", ["raced"])


def test_f5_a_race_of_waits(workflows: Harness) -> None:
    """The earlier moment wins whatever its place, also after a replay; the loser is cancelled and never seen again."""

    def run(step: Step, log: list[str]) -> Any:
        winner = step.race(
            "answer",
            first=lambda: step.sleep("slow", "2 hours"),
            second=lambda: step.wait_for_event("reply", type="reply", timeout=None),
        )
        log.append(winner.name)
        step.sleep("two hours", "2 hours")
        return [winner.name, None if winner.value is None else winner.value.payload]

    log: list[str] = []
    row = workflows.run(workflow(run, log))
    workflows.advance("1 hour")
    row.send_event("reply", {"yes": True})
    workflows.run_due()
    assert (row.status, log) == (S.WAITING, ["second"])
    workflows.advance("2 hours")
    assert (row.status, row.output, log) == (S.COMPLETE, ["second", {"yes": True}], ["second"] * 2)
    (lost,) = StepRecord.objects.filter(instance=row.pk, name="slow")
    assert lost.status == "cancelled"


def test_f6_params_do_not_change(workflows: Harness) -> None:
    """A change is refused where it is made; a copy is the author's, and the next execution has the original."""

    def run(self: Any, event: WorkflowEvent[Any], step: Step) -> Any:
        seen.append(list(event.params["items"]))
        with pytest.raises(TypeError, match=r"copy\.deepcopy\(event\.params\)"):
            event.params["items"].append("x")
        own = copy.deepcopy(event.params)
        own["items"].append("y")
        step.sleep("nap", "1 hour")
        return own["items"]

    seen: list[Any] = []
    kind = type("FrozenParams", (Workflow,), {"run": run, "__module__": __name__})
    row = workflows.run(kind, {"items": ["a"]})
    workflows.advance("1 hour")
    assert (row.status, row.output, seen) == (S.COMPLETE, ["a", "y"], [["a"], ["a"]])


def test_f7_dynamic_names(workflows: Harness) -> None:
    """One step per item of a list that a step gave, and one name in a loop: counts from 1; a replay runs none again."""

    def run(step: Step, log: list[str]) -> None:
        for item in step.do("list", lambda: ["a", "b"]):
            step.do(f"item {item}", log.append, item)
            step.do("again", log.append, item * 2)
        step.sleep("nap", "1 hour")

    log: list[str] = []
    row = workflows.run(workflow(run, log))
    workflows.advance("1 hour")
    assert (row.status, log) == (S.COMPLETE, ["a", "aa", "b", "bb"])
    steps = StepRecord.objects.filter(instance=row.pk, kind="do").order_by("seq")
    assert [(step.name, step.count) for step in steps] == [
        ("list", 1),
        ("item a", 1),
        ("again", 1),
        ("item b", 1),
        ("again", 2),
    ]


def test_f8_conditions(workflows: Harness) -> None:
    """On a step's result, on params, and on a random choice that a step keeps."""

    def run(self: Any, event: WorkflowEvent[Any], step: Step) -> Any:
        chosen = step.do("choose", random.random)
        taken.append(chosen)
        if event.params["careful"] and step.do("look", lambda: True):
            step.sleep("high" if chosen > 0.5 else "low", "1 hour")
        return step.do("high" if chosen > 0.5 else "low", lambda: chosen)

    taken: list[float] = []
    kind = type("Conditional", (Workflow,), {"run": run, "__module__": __name__})
    row = workflows.run(kind, {"careful": True})
    workflows.advance("1 hour")
    assert (row.status, row.output, taken) == (S.COMPLETE, taken[0], [taken[0]] * 2)
    assert workflows.run(kind, {"careful": False}).status == S.COMPLETE


class Forgetful(Workflow):
    """A step that nobody awaits."""

    log: list[str] = []

    async def run(self, event: WorkflowEvent, step: AsyncStep) -> str:
        step.do("lost", self.log.append, "lost")  # type: ignore[unused-coroutine]
        await step.do("kept", self.log.append, "kept")
        return "done"


def test_f9_a_step_that_is_not_awaited(workflows: Harness) -> None:
    """Its body does not run, and the run fails with its name and the cure; it is not a silent success."""
    Forgetful.log = []
    row = workflows.run(Forgetful)
    assert (row.status, row.output, Forgetful.log) == (S.ERRORED, None, ["kept"])
    assert row.error is not None and row.error["type"] == "durableflow.InvalidDurableCall"
    assert re.match(r"do 'lost' of forgetful/\S+ was called but not awaited\. Write await", row.error["message"])


@pytest.mark.parametrize(
    ("value", "error", "told"),
    [("x" * (2 << 20), LimitExceeded, "too large"), (object(), CodecError, "object")],
    ids=["large", "foreign"],
)
def test_f10_results_that_cannot_be_stored(workflows: Harness, value: Any, error: type[Exception], told: str) -> None:
    """Each fails its step at once, without a retry; ``run`` may catch it."""

    def run(step: Step, log: list[str]) -> str:
        def body() -> Any:
            log.append("body")
            return value

        try:
            step.do("give", body)
        except error as caught:
            return str(caught)
        return "stored"

    log: list[str] = []
    row = workflows.run(workflow(run, log))
    workflows.advance("1 day")
    assert row.status == S.COMPLETE and told in row.output
    assert log == ["body"]


def test_f11_an_id_is_given_once(workflows: Harness) -> None:
    """Until its instance is deleted, also after its end."""
    kind = workflow(lambda step, log: step.do("one", lambda: 1), [])
    row = workflows.run(kind, instance_id="order-1")
    assert row.status == S.COMPLETE
    with pytest.raises(InstanceAlreadyExists):
        kind.create(instance_id="order-1")
    first = row.pk
    row.delete()
    again = workflows.run(kind, instance_id="order-1")
    assert (again.status, again.run_number, again.pk > first) == (S.COMPLETE, 1, True)
