"""The testing kit inside a test's transaction, and without one: bodies behave as they do in a worker (design 10)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, connection, transaction

from durableflow import Retries, Step, Workflow, WorkflowEvent
from durableflow.models import HistoryEntry, WorkflowInstance
from durableflow.testing import Harness

S = WorkflowInstance.Status

# Each test runs inside the transaction of a TestCase, and with real commits as in a worker: the outcome is the same.
pytestmark = pytest.mark.parametrize(
    "committed",
    [
        pytest.param(False, marks=pytest.mark.django_db, id="in a transaction"),
        pytest.param(True, marks=pytest.mark.django_db(transaction=True), id="committed"),
    ],
)


@pytest.fixture(autouse=True)
def mode(committed: bool, db: None) -> None:
    """Make sure that the test runs as its name says."""
    assert connection.in_atomic_block is not committed


def single(body: Any, **options: Any) -> type[Workflow[Any, Any]]:
    """A workflow of one step."""

    class Single(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.do("work", body, **options)

    return Single


def names() -> set[str]:
    return set(Group.objects.values_list("name", flat=True))


def errors() -> list[str]:
    """The types of the errors of all attempts."""
    entries = HistoryEntry.objects.filter(type="attempt_errored").order_by("id")
    return [entry.data["error"]["type"].rpartition(".")[2] for entry in entries]


def test_a_database_error_is_a_failed_attempt(workflows: Harness) -> None:
    Group.objects.create(name="taken")

    def body() -> str:
        Group.objects.create(name="taken")
        return "made"

    run = workflows.run(single(body, retries=Retries(limit=3, delay=5)))
    assert (run.status, errors(), names()) == (S.WAITING, ["IntegrityError"], {"taken"})
    Group.objects.all().delete()
    workflows.advance(5)
    assert (run.output, names()) == ("made", {"taken"})


@pytest.mark.parametrize("statement", ["SELECT 1 FROM nowhere", "SELECT broken syntax from"])
def test_an_error_of_a_plain_cursor(workflows: Harness, statement: str) -> None:
    def body() -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    run = workflows.run(single(body, retries=0))
    assert (run.status, len(errors()), names()) == (S.ERRORED, 1, set())


def test_errors_inside_a_transaction_of_the_body(workflows: Harness) -> None:
    Group.objects.create(name="taken")

    def body() -> str:
        Group.objects.create(name="before")
        try:
            with transaction.atomic():
                Group.objects.create(name="inside")
                Group.objects.create(name="taken")
        except IntegrityError:
            Group.objects.create(name="instead")
        Group.objects.bulk_create([Group(name="bulk")])
        with transaction.atomic(durable=True):
            Group.objects.create(name="durable")
        return "made"

    assert workflows.run(single(body)).output == "made"
    assert names() == {"taken", "before", "instead", "bulk", "durable"}


def test_other_errors_leave_what_was_written(workflows: Harness) -> None:
    """As in a worker, where each statement of a body commits by itself."""

    def body() -> str:
        _, created = Group.objects.get_or_create(name="written")
        if created:
            raise ValueError("after the write")
        return "found"

    run = workflows.run(single(body, retries=Retries(limit=1, delay=1)))
    assert (errors(), names()) == (["ValueError"], {"written"})
    workflows.advance(1)
    assert run.output == "found"


def test_a_failed_atomic_step_leaves_nothing(workflows: Harness) -> None:
    def body() -> None:
        Group.objects.create(name="written")
        raise ValueError("after the write")

    run = workflows.run(single(body, retries=0, atomic=True))
    assert (run.status, errors(), names()) == (S.ERRORED, ["ValueError"], set())


def test_an_atomic_step_that_breaks_its_transaction(workflows: Harness) -> None:
    Group.objects.create(name="taken")

    def body() -> None:
        Group.objects.create(name="written")
        Group.objects.create(name="taken")

    run = workflows.run(single(body, retries=0, atomic=True))
    assert (run.status, errors(), names()) == (S.ERRORED, ["IntegrityError"], {"taken"})


def test_a_block_that_a_body_leaves_open_is_refused(workflows: Harness) -> None:
    def body() -> None:
        Group.objects.create(name="before")
        transaction.atomic().__enter__()
        Group.objects.create(name="inside")
        transaction.atomic().__enter__()

    run = workflows.run(single(body))
    assert run.error is not None
    assert (run.status, run.error["type"].rpartition(".")[2]) == (S.ERRORED, "InvalidDurableCall")
    assert "left atomic() on 'default' open" in run.error["message"]
    assert names() == {"before"}
    Group.objects.create(name="usable")


def test_a_durable_call_inside_a_block_is_refused(workflows: Harness) -> None:
    class Inside(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            with transaction.atomic():
                Group.objects.create(name="inside")
                step.do("work", lambda: None)

    run = workflows.run(Inside)
    assert (run.status, workflows.attempts("work"), names()) == (S.ERRORED, 0, set())


def test_a_body_that_takes_too_long(workflows: Harness) -> None:
    def body() -> None:
        Group.objects.create(name="before")
        time.sleep(30)

    run = workflows.run(single(body, retries=0, timeout=0.1))
    assert (run.status, errors(), names()) == (S.ERRORED, ["StepTimeout"], {"before"})


def test_result_before_the_end(committed: bool, workflows: Harness) -> None:
    class Wait(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            step.wait_for_event("go", type="go")

    run = workflows.run(Wait)
    with pytest.raises(TimeoutError):
        run.result(timeout=0)
    with pytest.raises(RuntimeError, match="can never see the end"), transaction.atomic():
        run.result(timeout=0)
    run.send_event("go")
    workflows.run_due()
    with transaction.atomic():
        assert run.result() is None


def test_a_caught_database_error(committed: bool, workflows: Harness) -> None:
    """A test's transaction cannot forgive it; the message says what to do."""
    Group.objects.create(name="taken")

    def body() -> str:
        Group.objects.create(name="before")
        try:
            Group.objects.create(name="taken")
        except DatabaseError:
            return "it is there"
        return "made"

    run = workflows.run(single(body, retries=0))
    if committed:
        assert (run.output, names()) == ("it is there", {"taken", "before"})
    else:
        assert run.error is not None
        assert "Put the statement that may fail into transaction.atomic()" in run.error["message"]
        assert names() == {"taken"}
