"""Durable calls in open transactions, and bodies that leave one open, are refused (design 6)."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from durableflow import Step
from durableflow.models import WorkflowInstance
from tests.integration.eng_flows import Run, workflow
from tests.support.engine import drained, noted, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# Open transactions ----------------------------------------------------------------------------------------------------


def around_a_step(step: Step, log: list[str]) -> str:
    with transaction.atomic():
        Group.objects.create(name="written")
        step.do("inside", lambda: log.append("ran"))
    return "went on"


def around_a_sleep(step: Step, log: list[str]) -> str:
    with transaction.atomic():
        Group.objects.create(name="written")
        step.sleep("nap", 60)
    return "went on"


def around_progress(step: Step, log: list[str]) -> str:
    with transaction.atomic():
        Group.objects.create(name="written")
        step.set_progress(1)
    return "went on"


def autocommit_off(step: Step, log: list[str]) -> str:
    transaction.set_autocommit(False)
    Group.objects.create(name="written")
    return step.do("inside", lambda: noted(log, "ran", "ran"))


OPEN = [around_a_step, around_a_sleep, around_progress, autocommit_off]


@pytest.mark.parametrize("run", OPEN, ids=lambda run: run.__name__)
def test_durable_call_in_an_open_transaction(run: Run) -> None:
    """Design 6: refused by name; uncaught it ends the instance, and what was written is rolled back."""
    log: list[str] = []
    instance = drained(workflow(run, log).create())
    assert instance.status == S.ERRORED
    assert instance.error is not None and instance.error["type"].endswith("InvalidDurableCall")
    assert "'default'" in instance.error["message"]
    assert (log, steps_of(instance), Group.objects.count()) == ([], [], 0)
    assert connection.get_autocommit() and not connection.in_atomic_block


@pytest.mark.parametrize("run", OPEN, ids=lambda run: run.__name__)
def test_refusal_in_an_open_transaction_is_sticky(run: Run) -> None:
    """Spike 5: catching it does not help: it ends as blocked."""
    log: list[str] = []

    def catching(step: Step, log: list[str]) -> str:
        try:
            return run(step, log)
        except Exception:
            return "caught"

    instance = drained(workflow(catching, log).create())
    assert (instance.status, log) == (S.PAUSED, [])
    assert instance.blocked.startswith("InvalidDurableCall")
    assert Group.objects.count() == 0
    assert connection.get_autocommit() and not connection.in_atomic_block


def body_leaves_atomic_open(step: Step, log: list[str]) -> Any:
    def body() -> str:
        transaction.atomic().__enter__()
        Group.objects.create(name="written")
        return "x"

    return step.do("leaks", body, retries=3)


def body_leaves_autocommit_off(step: Step, log: list[str]) -> Any:
    def body() -> str:
        transaction.set_autocommit(False)
        Group.objects.create(name="written")
        return "x"

    return step.do("leaks", body, retries=3)


def body_fails_with_atomic_open(step: Step, log: list[str]) -> Any:
    def body() -> str:
        transaction.atomic().__enter__()
        Group.objects.create(name="written")
        raise ValueError("and fails")

    return step.do("leaks", body, retries=3)


LEAKS = [body_leaves_atomic_open, body_leaves_autocommit_off, body_fails_with_atomic_open]


@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize("run", LEAKS, ids=lambda run: run.__name__)
def test_body_leaves_a_transaction_open(run: Run, caught: bool) -> None:
    """Design 6: rolled back, refused by name, not retried; caught it is blocked."""

    def catching(step: Step, log: list[str]) -> Any:
        if not caught:
            return run(step, log)
        try:
            run(step, log)
        except Exception:
            log.append("caught")
        return "went on"

    instance = drained(workflow(catching, []).create())
    text = instance.blocked if caught else (instance.error or {}).get("message", "")
    assert instance.status == (S.PAUSED if caught else S.ERRORED)
    assert "leaks-1" in text and "left" in text and "open" in text
    assert instance.steps.get().attempts == 1
    assert Group.objects.count() == 0
    assert connection.get_autocommit() and not connection.in_atomic_block


@pytest.mark.parametrize("how", ["atomic", "autocommit"])
def test_run_leaves_a_transaction_open(how: str) -> None:
    """Design 6: run() ended with an open block: what it wrote is rolled back and the instance does not complete."""

    def run(step: Step, log: list[str]) -> str:
        step.do("one", lambda: 1)
        if how == "atomic":
            transaction.atomic().__enter__()
        else:
            transaction.set_autocommit(False)
        Group.objects.create(name="written")
        return "done"

    instance = drained(workflow(run, []).create())
    assert instance.status == S.ERRORED
    assert instance.error is not None and "left" in instance.error["message"]
    assert Group.objects.count() == 0
    assert connection.get_autocommit() and not connection.in_atomic_block
    assert instance.output is None


def test_run_raises_with_a_transaction_open() -> None:
    """Design 6: the end of the instance is committed although run left its block open."""

    def run(step: Step, log: list[str]) -> str:
        transaction.atomic().__enter__()
        Group.objects.create(name="written")
        raise ValueError("in the middle")

    instance = drained(workflow(run, []).create())
    assert (instance.status, Group.objects.count()) == (S.ERRORED, 0)
    assert instance.error is not None and instance.error["type"] == "ValueError"


def test_transactions_inside_bodies_are_fine() -> None:
    """Design 6: a body may use atomic() as it likes."""

    def run(step: Step, log: list[str]) -> int:
        def body() -> int:
            with transaction.atomic():
                Group.objects.create(name="written")
                with transaction.atomic():
                    return Group.objects.count()

        return step.do("writes", body)

    instance = drained(workflow(run, []).create())
    assert (instance.status, instance.output, Group.objects.count()) == (S.COMPLETE, 1, 1)
