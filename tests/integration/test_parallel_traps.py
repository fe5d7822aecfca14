"""What authors get wrong in branches: each ends in a message with the cure, nothing hangs (design 6, 7)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from durableflow import Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


def forked(branch: Callable[[Step], Any], *, nested: bool = False) -> WorkflowInstance:
    """An instance with ``branch`` beside one that is all right, executed once."""

    class Forked(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            if nested:
                return step.gather("outer", lambda: step.do("outer good", str, 0), lambda: self.fork(step))
            return self.fork(step)

        def fork(self, step: Step) -> Any:
            return step.gather("fork", lambda: step.do("good", str, 1), lambda: branch(step))

    return drained(Forked.create())


def error_of(instance: WorkflowInstance) -> str:
    assert instance.status == S.ERRORED and instance.error is not None, (instance.status, instance.blocked)
    return str(instance.error["message"]) + str(instance.error["traceback"])


both_depths = pytest.mark.parametrize("nested", [False, True])


# Suspensions --------------------------------------------------------------------------------------------------------------


def bare_except(step: Step) -> str:
    try:
        step.sleep("nap", 60)
    except:  # noqa: E722  the trap
        return "caught"
    return "slept"


def return_in_finally(step: Step) -> str:
    try:
        step.sleep("nap", 60)
    finally:
        return "swallowed"  # noqa: B012  the trap


def raises_another(step: Step) -> None:
    try:
        step.sleep("nap", 60)
    except BaseException:
        raise ValueError("in its place")  # noqa: B904  the trap


def goes_on(step: Step) -> str:
    try:
        step.sleep("nap", 60)
    except BaseException:
        pass
    return step.do("goes on", str, 1)


@both_depths
@pytest.mark.parametrize("branch", [bare_except, return_in_finally, raises_another, goes_on])
def test_a_branch_that_swallows_its_suspension_blocks_the_instance(
    branch: Callable[[Step], Any], nested: bool, stopped_clock: StoppedClock
) -> None:
    """ENG-02 in a branch; repaired code goes on from what was recorded."""
    instance = forked(branch, nested=nested)
    assert instance.status == S.PAUSED
    assert "SuspensionSwallowed" in instance.blocked and "nap-1" in instance.blocked
    assert not any("goes on" in label for label, _status in steps_of(instance))
    instance.resume()
    stopped_clock.advance("1 minute")
    assert drained(instance).status == S.COMPLETE  # nothing is suspended any more


# Transactions and threads -------------------------------------------------------------------------------------------------


def call_in_atomic(step: Step) -> None:
    with transaction.atomic():
        step.do("inside", str, 1)


def left_open(step: Step) -> None:
    step.do("before", str, 1)
    transaction.atomic().__enter__()


def left_open_by_a_body(step: Step) -> None:
    step.do("leaves", lambda: transaction.atomic().__enter__())


@both_depths
@pytest.mark.parametrize(
    ("branch", "told"),
    [(call_in_atomic, "called inside"), (left_open, "left"), (left_open_by_a_body, "left")],
)
def test_open_transactions_of_a_branch_are_refused(branch: Callable[[Step], Any], told: str, nested: bool) -> None:
    instance = forked(branch, nested=nested)
    message = error_of(instance)
    assert told in message and "atomic()" in message and instance.label in message
    assert not any("inside" in label for label, _status in steps_of(instance))


def from_a_thread(step: Step) -> None:
    caught: list[BaseException] = []

    def call() -> None:
        try:
            step.do("elsewhere", str, 1)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    raise caught[0]


def inside_a_body(step: Step) -> None:
    step.do("outer", lambda: step.do("inner", str, 1), retries=0)


@both_depths
@pytest.mark.parametrize(("branch", "told"), [(from_a_thread, "another thread"), (inside_a_body, "inside the body of")])
def test_calls_from_where_none_may_come_are_refused(branch: Callable[[Step], Any], told: str, nested: bool) -> None:
    instance = forked(branch, nested=nested)
    assert told in error_of(instance)
    assert not any(name in label for label, _status in steps_of(instance) for name in ("elsewhere", "inner-1"))


def test_a_gather_inside_the_items_of_a_map_is_refused_clearly() -> None:
    """An item is a body, and a body makes no durable calls."""

    class Items(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.map("items", lambda item: step.gather("inner", lambda: step.do("x", str, item)), [1], retries=0)

    message = error_of(drained(Items.create()))
    assert "inside the body of step 'items-1/items-1'" in message and "move the call to run()" in message


def test_a_refusal_that_is_asked_for_as_a_value_still_blocks() -> None:
    """return_exceptions does not hide a broken rule."""

    class Hides(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.gather("fork", lambda: inside_a_body(step), lambda: step.do("good", str, 1), return_exceptions=True)

    instance = drained(Hides.create())
    assert instance.status == S.PAUSED and "inside the body of" in instance.blocked


# Exceptions that are none ---------------------------------------------------------------------------------------------------


class Odd(BaseException):
    """No Exception, and none of the engine's."""


def raises(error: BaseException) -> Callable[[Step], Any]:
    def branch(step: Step) -> None:
        step.do("before", str, 1)
        raise error

    return branch


@both_depths
def test_another_base_exception_of_a_branch_ends_the_instance(nested: bool) -> None:
    """As where run() itself raises it."""
    instance = forked(raises(Odd("strange")), nested=nested)
    assert "strange" in error_of(instance)


@both_depths
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()])
def test_an_exit_in_a_branch_gives_the_instance_back(error: BaseException, nested: bool) -> None:
    """Design 6: outside of a body it is a wish to leave; all bodies in flight are stored first, and it counts: this may not go
    on for ever."""
    try:
        instance = forked(raises(error), nested=nested)
    except SystemExit:
        instance = WorkflowInstance.objects.get()
    instance.refresh_from_db()
    assert (instance.status, instance.give_backs, instance.lease_token) == (S.QUEUED, 1, None)
    assert all(status == "complete" for label, status in steps_of(instance) if "good" in label)


def test_ctrl_c_between_two_lines_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hit where a branch has been taken and not yet been run: nobody waits for that one then."""
    from durableflow.engine.groups import Group

    run, hits = Group._run, [True]

    def hit(self: Group, branch: Any, *, helping: bool) -> bool:
        if hits and not helping:
            hits.clear()
            raise KeyboardInterrupt
        return run(self, branch, helping=helping)

    monkeypatch.setattr(Group, "_run", hit)

    class Two(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("two", lambda: step.do("a", str, 1), lambda: step.do("b", str, 2))

    instance = Two.create()
    with pytest.raises(KeyboardInterrupt):
        drained(instance)
    instance.refresh_from_db()
    assert (instance.status, instance.lease_token, instance.give_backs) == (S.QUEUED, None, 1)
    WorkflowInstance.objects.update(wake_at=instance.created)
    assert drained(instance).output == ("1", "2")


@pytest.mark.parametrize("error", [Odd("strange"), GeneratorExit()])
def test_a_branch_that_leaves_while_another_one_meets_the_stop_first(error: BaseException) -> None:
    """The stop that one branch's exception is to the others comes to the group before the exception itself does."""
    started, raised, met = threading.Event(), threading.Event(), threading.Event()

    class Nested(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("outer", lambda: self.meets(step), lambda: self.inner(step))

        def meets(self, step: Step) -> None:
            raised.wait(20)
            for number in range(2000):  # until the other branch has raised
                try:
                    step.do(f"work {number}", str, 1)
                except BaseException:
                    met.set()
                    raise

        def inner(self, step: Step) -> None:
            step.gather("inner", lambda: step.do("long", self.long), lambda: self.raises())

        def long(self) -> None:
            started.set()
            met.wait(20)

        def raises(self) -> None:
            started.wait(20)
            raised.set()
            raise error

    instance = drained(Nested.create())
    assert met.is_set() and (instance.status, instance.lease_token) == (
        (S.QUEUED, None) if isinstance(error, GeneratorExit) else (S.ERRORED, None)
    )


@both_depths
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_the_same_inside_a_body_is_a_failed_attempt(error: BaseException, nested: bool) -> None:
    """RET-13 in a branch."""

    def fails() -> None:
        raise error

    instance = forked(lambda step: step.do("fails", fails, retries=0), nested=nested)
    assert type(error).__name__ in error_of(instance)


# Programs that have changed -------------------------------------------------------------------------------------------------


def test_another_number_of_branches_blocks(stopped_clock: StoppedClock) -> None:
    number = [2]

    class Grows(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            branches = [(lambda n=n: step.sleep(f"nap {n}", 60)) for n in range(number[0])]
            return step.gather("naps", *branches)

    instance = drained(Grows.create())
    number[0] = 3
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    assert instance.status == S.PAUSED
    assert "began with 2 branches" in instance.blocked and "3 now" in instance.blocked
    number[0] = 2
    instance.resume()
    assert drained(instance).status == S.COMPLETE


def test_changed_items_of_a_map_block(stopped_clock: StoppedClock) -> None:
    items = [1, 2, 3]

    class Items(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            found = step.map("square", lambda item: item * item, list(items))
            step.sleep("nap", 60)
            return found

    instance = drained(Items.create())
    items[1] = 5
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    assert instance.status == S.PAUSED and "number 2 is another one" in instance.blocked
    items[1] = 2
    instance.resume()
    assert drained(instance).output == [1, 4, 9]


def test_a_step_that_a_branch_no_longer_calls_blocks(stopped_clock: StoppedClock) -> None:
    calls = [True]

    class Skips(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.gather("fork", lambda: self.branch(step), lambda: step.do("other", str, 1))
            step.sleep("nap", 60)

        def branch(self, step: Step) -> None:
            if calls:
                step.do("work", str, 1)

    instance = drained(Skips.create())
    calls.clear()
    stopped_clock.advance("1 minute")
    instance = drained(instance)
    assert instance.status == S.PAUSED and "fork-1[1]/work-1" in instance.blocked
    calls.append(True)
    instance.resume()
    assert drained(instance).status in (S.WAITING, S.COMPLETE)


def test_an_item_that_cannot_be_stored_is_refused_before_anything_runs() -> None:
    ran: list[Any] = []

    class Items(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.map("items", ran.append, [1, object()])

    message = error_of(drained(Items.create()))
    assert "Item 2 of 'items-1'" in message and not ran


def test_scopes_that_are_too_deep_are_refused_with_the_cure() -> None:
    class Deep(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return self.down(step, 0)

        def down(self, step: Step, level: int) -> Any:
            if level == 5:
                return step.do("bottom", str, level)
            return step.gather("x" * 120, lambda: self.down(step, level + 1))

    message = error_of(drained(Deep.create()))
    assert "400 are possible" in message and "Use shorter names or fewer levels" in message


@pytest.mark.parametrize("wrap", [lambda branch: branch, functools.partial])
def test_two_lambdas_of_one_loop_are_refused_with_the_cure(wrap: Any) -> None:
    class Loop(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.gather("loop", *[wrap(lambda: step.do("work", str, n)) for n in range(2)])  # noqa: B023  the trap

    assert "Bind the value" in error_of(drained(Loop.create()))
