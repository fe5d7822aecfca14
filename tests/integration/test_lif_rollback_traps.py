"""Rollback handlers that are made in a loop and see its variable (design 7; the trap of Python's closures)."""

# ruff: noqa: B023  the traps are what is tested
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from durableflow import AsyncStep, Rollback, Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness
from tests.integration.eng_flows import workflow
from tests.integration.lif_flows import Saga
from tests.support.engine import drained

S = WorkflowInstance.Status
CITIES = ["Rome", "Oslo", "Bern"]
UNDONE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_is_undone() -> None:
    UNDONE.clear()


def book(city: str) -> str:
    return city


def cancel(city: str, undo: Any = None) -> None:
    UNDONE.append(city)


def loop_variable(step: Step) -> None:
    for city in CITIES:
        step.do("book", book, city, rollback=lambda undo: cancel(city))


def names_that_differ(step: Step) -> None:
    for city in CITIES:
        step.do(f"book {city}", book, city, rollback=Rollback(partial(lambda undo: cancel(city))))


def one_function(step: Step) -> None:
    def undo(undo: Any) -> None:
        cancel(city)

    for city in CITIES:
        step.do("book", book, city, rollback=undo)


def the_result(step: Step) -> None:
    for city in CITIES:
        booked = step.do("book", book, city, rollback=lambda undo: cancel(booked))


def maps(step: Step) -> None:
    for city in CITIES:
        step.map(f"book in {city}", book, [city], rollback=lambda undo: cancel(city))


@pytest.mark.django_db
@pytest.mark.parametrize("loop", [loop_variable, names_that_differ, one_function, the_result, maps])
def test_a_shared_variable_is_refused(workflows: Harness, loop: Callable[[Step], None]) -> None:
    """The second call is, by name and with the cure; the first one's handler would cancel the wrong city by now, and does not."""
    repaired = False

    def run(step: Step, log: list[str]) -> None:
        if not repaired:
            loop(step)
        kind = "book in Rome" if loop is maps else "book Rome" if loop is names_that_differ else "book"
        if loop is maps:
            step.map(kind, book, ["Rome"], rollback=lambda undo: cancel(str(undo.output)))
        else:
            step.do(kind, book, "Rome", rollback=lambda undo: cancel(str(undo.output)))
        step.do("fail", Saga.fail)

    row = workflows.run(workflow(lambda step, log: run(step, log), []))
    error = row.error
    assert row.status == S.ERRORED and error is not None and error["type"].endswith("InvalidConfig")
    for part in ("share the variable", "its last value", "undo.output", "functools.partial", "lambda undo, "):
        assert part in error["message"]
    assert UNDONE == [] and row.rollback is not None and row.rollback["outcome"] == "failed"
    assert len(row.rollback["failed"]) == 1
    step = row.steps.get(rollback_status="failed")
    assert "share the variable" in step.rollback_error["message"]
    repaired = True
    row.retry()
    workflows.run_due()
    assert (UNDONE, row.rollback) == (["Rome"], {"outcome": "complete", "failed": []})


@pytest.mark.django_db
def test_loops_without_the_trap(workflows: Harness) -> None:
    """The cures, and variables that do not change."""

    def run(step: Step, log: list[str]) -> None:
        made = []
        for city in CITIES:
            step.do("output", book, city, rollback=lambda undo: cancel(f"output {undo.output}"))
            step.do("default", book, city, rollback=lambda undo, city=city: cancel(f"default {city}"))
            step.do("partial", book, city, rollback=partial(cancel, f"partial {city}"))
            step.do("same", book, city, rollback=lambda undo: log.append(f"same {undo.output} {step.run_number}"))
            step.do("fresh", book, city, rollback=fresh(city))
            made.append(city)
            step.do("grows", book, city, rollback=lambda undo: cancel(f"grows {len(made)}"))
        step.do("fail", Saga.fail)

    def fresh(city: str) -> Callable[[Any], None]:
        return lambda undo: cancel(f"fresh {city}")

    log: list[str] = []
    row = workflows.run(workflow(run, log))
    assert row.rollback == {"outcome": "complete", "failed": []}
    wanted = [["grows 3", f"fresh {city}", f"partial {city}", f"default {city}", f"output {city}"] for city in CITIES]
    assert UNDONE == [entry for city in reversed(wanted) for entry in city]
    assert log == [f"same {city} 1" for city in reversed(CITIES)]


@pytest.mark.django_db(transaction=True)
def test_tasks_of_an_async_run() -> None:
    """When a call is made counts, not when it is answered: by then the loop is over."""

    class AsyncLoop(Workflow[Any, Any]):
        async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> None:
            calls = []
            for city in CITIES:
                calls.append(step.do(f"book {city}", book, city, rollback=lambda undo: cancel(city)))
            for call in calls:
                await call

    row = drained(AsyncLoop.create())
    assert row.status == S.ERRORED and row.error is not None and "share the variable" in row.error["message"]
    assert UNDONE == []


@pytest.mark.django_db
def test_a_variable_that_is_assigned_later(workflows: Harness) -> None:
    """One call alone may look at what comes after it."""

    def run(step: Step, log: list[str]) -> None:
        booked = step.do("book", book, "Rome", rollback=lambda undo: cancel(f"{booked} {late}"))
        late = "later"
        step.do("fail", Saga.fail)

    row = workflows.run(workflow(run, []))
    assert (UNDONE, row.rollback) == (["Rome later"], {"outcome": "complete", "failed": []})
