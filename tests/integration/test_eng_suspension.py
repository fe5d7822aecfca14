"""A suspension leaves ``run`` whatever user code does with it, or is found out; refusals are sticky."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from durableflow import Step
from durableflow.models import WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.integration.eng_flows import Run, workflow
from tests.support.engine import drained, noted, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# What suspends (table of ways to leave) -------------------------------------------------------------------------------


def try_finally(step: Step, log: list[str]) -> str:
    try:
        step.sleep("nap", 60)
    finally:
        log.append("finally")
    return "woke"


def step_in_finally(step: Step, log: list[str]) -> str:
    try:
        step.sleep("nap", 60)
    finally:
        step.do("clean", lambda: log.append("clean"))
    return "woke"


def exit_stack(step: Step, log: list[str]) -> str:
    with ExitStack() as stack:
        stack.callback(log.append, "closed")
        step.sleep("nap", 60)
    return "woke"


def in_a_generator(step: Step, log: list[str]) -> str:
    def parts() -> Any:
        yield "w"
        step.sleep("nap", 60)
        yield "oke"

    return "".join(list(parts()))


def context_manager_of_the_project(step: Step, log: list[str]) -> str:
    @contextmanager
    def logged() -> Any:
        try:
            yield
        except Exception:
            log.append("exception")
            raise

    with logged():
        step.sleep("nap", 60)
    return "woke"


def step_in_except_below(step: Step, log: list[str]) -> str:
    try:
        step.sleep("nap", 60)
    except BaseException:
        step.do("clean", lambda: log.append("clean"))  # refused: the suspension is still on its way
        raise
    return "woke"


def step_in_an_exit_callback(step: Step, log: list[str]) -> str:
    with ExitStack() as stack:
        stack.callback(lambda: step.do("clean", lambda: log.append("clean")))
        step.sleep("nap", 60)
    return "woke"


def step_in_a_context_manager(step: Step, log: list[str]) -> str:
    @contextmanager
    def cleaned() -> Any:
        try:
            yield
        finally:
            step.do("clean", lambda: log.append("clean"))

    with cleaned():
        step.sleep("nap", 60)
    return "woke"


def step_in_a_generator_s_finally(step: Step, log: list[str]) -> str:
    def parts() -> Any:
        try:
            yield "w"
            step.sleep("nap", 60)
            yield "oke"
        finally:
            step.do("clean", lambda: log.append("clean"))

    return "".join(list(parts()))


def except_group(step: Step, log: list[str]) -> str:
    try:
        step.sleep("nap", 60)
    except* ValueError:
        log.append("group")
    return "woke"


def inside_a_handler(step: Step, log: list[str]) -> str:
    try:
        step.do("fails", lambda: 1 / 0, retries=0)
    except ZeroDivisionError:
        step.sleep("nap", 60)
    return "woke"


SUSPENDS = [
    try_finally,
    step_in_finally,
    exit_stack,
    in_a_generator,
    context_manager_of_the_project,
    step_in_except_below,
    step_in_an_exit_callback,
    step_in_a_context_manager,
    step_in_a_generator_s_finally,
    except_group,
    inside_a_handler,
]


@pytest.mark.parametrize("run", SUSPENDS, ids=lambda run: run.__name__)
def test_it_suspends_and_goes_on(run: Run, stopped_clock: StoppedClock) -> None:
    """ENG-02: the wait is kept, and ``finally`` does no durable work on the way out."""
    log: list[str] = []
    instance = drained(workflow(run, log).create())
    assert (instance.status, instance.blocked) == (S.WAITING, "")
    assert "clean" not in log and "exception" not in log
    stopped_clock.advance(60)
    assert (drained(instance).status, instance.output) == (S.COMPLETE, "woke")
    assert log.count("clean") == (0 if run is step_in_except_below else int(run.__name__.startswith("step_in")))


# What is found out ----------------------------------------------------------------------------------------------------


def bare_except(step: Step, log: list[str]) -> str:
    try:
        step.sleep("nap", 60)
    except:  # noqa: E722
        pass
    return "went on"


def suppressed(step: Step, log: list[str]) -> str:
    with suppress(BaseException):
        step.sleep("nap", 60)
    return "went on"


def return_in_finally(step: Step, log: list[str]) -> str:
    try:
        step.sleep("nap", 60)
    finally:
        return "went on"  # noqa: B012


def raises_another(step: Step, log: list[str]) -> str:
    try:
        step.sleep("nap", 60)
    except BaseException:
        raise ValueError("the real cause is hidden") from None
    return "woke"


def finally_raises(step: Step, log: list[str]) -> str:
    try:
        step.sleep("nap", 60)
    finally:
        raise ValueError("the real cause is hidden")


def raises_a_group(step: Step, log: list[str]) -> str:
    try:
        step.sleep("nap", 60)
    except BaseException as error:
        raise BaseExceptionGroup("several", [error, ValueError("one more")]) from None
    return "woke"


def system_exit(step: Step, log: list[str]) -> str:
    try:
        step.sleep("nap", 60)
    except BaseException:
        sys.exit(1)
    return "woke"


def step_after(step: Step, log: list[str]) -> str:
    with suppress(BaseException):
        step.sleep("nap", 60)
    return step.do("after", lambda: noted(log, "after", "went on"))


def loop_of_ten(step: Step, log: list[str]) -> str:
    for _ in range(10):
        with suppress(BaseException):
            step.sleep("nap", 60)
            step.do("after", lambda: log.append("after"))
    return "went on"


def swallowed_by_an_outer_handler(step: Step, log: list[str]) -> str:
    try:
        step.do("fails", lambda: 1 / 0, retries=0)
    except ZeroDivisionError:
        with suppress(BaseException):
            step.sleep("nap", 60)
        step.do("after", lambda: log.append("after"))
    return "went on"


SWALLOWS = [
    bare_except,
    suppressed,
    return_in_finally,
    raises_another,
    finally_raises,
    raises_a_group,
    system_exit,
    step_after,
    loop_of_ten,
    swallowed_by_an_outer_handler,
]


@pytest.mark.parametrize("run", SWALLOWS, ids=lambda run: run.__name__)
def test_a_swallowed_suspension_blocks(run: Run) -> None:
    """ENG-02, spike 5: nothing after the wait ran, nothing ended; the message names the wait and the cure."""
    log: list[str] = []
    instance = drained(workflow(run, log).create())
    assert instance.status == S.PAUSED, instance.error
    assert instance.blocked.startswith("SuspensionSwallowed: sample/")
    assert "nap-1" in instance.blocked and "bare except" in instance.blocked
    assert (log, instance.error, instance.finished) == ([], None, None)
    assert dict(steps_of(instance))["nap-1"] == "pending"
    if run in (raises_another, finally_raises):
        assert "the real cause is hidden" in instance.blocked


def test_a_reason_that_no_database_can_store_is_shown_escaped() -> None:
    """ENG-02: the error that hid the suspension may say anything."""

    def run(step: Step, log: list[str]) -> None:
        try:
            step.sleep("nap", 60)
        except BaseException:
            raise ValueError("a\0b\ud800") from None

    instance = drained(workflow(run, []).create())
    assert (instance.status, instance.blocked[:20]) == (S.PAUSED, "SuspensionSwallowed:")
    assert "a\\x00b\\ud800" in instance.blocked


def test_helper_threads_are_refused() -> None:
    """ENG-10, spike 5: durable calls belong to the thread that runs run()."""
    log: list[str] = []

    def run(step: Step, log: list[str]) -> str:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(step.sleep, "nap", 60).result()
        return "woke"

    instance = drained(workflow(run, log).create())
    assert instance.status == S.ERRORED
    assert instance.error is not None and "another thread" in instance.error["message"]
    assert "nap" in instance.error["message"]
    assert steps_of(instance) == []


def test_refusal_in_a_helper_thread_is_sticky() -> None:
    """ENG-10: nobody hears the error of a plain thread, so the instance must not go on as if nothing was."""

    def run(step: Step, log: list[str]) -> str:
        def work() -> None:
            with suppress(Exception):
                step.do("in a thread", lambda: log.append("ran"))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return "went on"

    log: list[str] = []
    instance = drained(workflow(run, log).create())
    assert (instance.status, log) == (S.PAUSED, [])
    assert instance.blocked.startswith("InvalidDurableCall") and "another thread" in instance.blocked


def test_durable_call_of_a_helper_thread_inside_a_body() -> None:
    """ENG-10: a body cannot hand its step to a thread either."""

    def run(step: Step, log: list[str]) -> str:
        def outer() -> str:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(step.do, "inner", lambda: "x").result()

        return step.do("outer", outer)

    instance = drained(workflow(run, []).create())
    assert instance.status == S.ERRORED
    assert instance.error is not None and "inside the body of step 'outer-1'" in instance.error["message"]
    assert steps_of(instance) == [("outer-1", "failed")]
