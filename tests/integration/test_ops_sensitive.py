"""What a sensitive step has returned is masked wherever it shows (SEC-09)."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import pytest

from durableflow import Retries, Step, Workflow, WorkflowEvent
from durableflow.models import HistoryEntry, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# Sensitive ------------------------------------------------------------------------------------------------------------

TOKEN = "tok-4f9d2c"


@pytest.mark.parametrize("replayed", [False, True])
def test_a_secret_is_masked_outside_of_run(
    replayed: bool, stopped_clock: StoppedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """SEC-09: the next step gets the real value, also on replay; its error text and every trace of it are masked."""
    caplog.set_level(logging.DEBUG)
    used: list[Any] = []

    class Secret(Workflow):
        class Meta:
            name = "secret"

        def run(self, event: WorkflowEvent, step: Step) -> str:
            login: Any = step.do("log in", lambda: {"token": TOKEN, "for": ["me"]}, sensitive=True)
            if replayed:
                step.sleep("nap", 60)
            step.do("call", self.use, login["token"], retries=Retries(limit=1, delay=0))
            return "never"

        def use(self, token: str) -> None:
            used.append(token)
            try:
                raise ConnectionError(f"401 for {token}")
            except ConnectionError as error:
                raise PermissionError(f"refused: {token}") from error

    instance = drained(Secret.create())
    if replayed:
        stopped_clock.advance(60)
        drained(instance)
    assert (instance.status, used) == (S.ERRORED, [TOKEN, TOKEN])
    first = instance.steps.get(name="log in")
    assert (first.sensitive, first.output) == (True, "[REDACTED]")
    shown: list[Any] = [instance.error, first.output, instance.steps.get(name="call").error]
    shown += [(entry.type, entry.step, entry.data) for entry in HistoryEntry.objects.all()]
    shown += [record.getMessage() for record in caplog.records if not record.name.startswith("django.db")]
    assert TOKEN not in repr(shown)
    assert instance.error is not None
    assert instance.error["message"] == "refused: [REDACTED]"
    assert "401 for [REDACTED]" in instance.error["traceback"]


@pytest.mark.parametrize("ending", ["uncaught", "wrapped", "caught"])
def test_an_error_of_a_sensitive_step_is_masked(ending: str) -> None:
    """SEC-09: message and traceback are masked on step, attempt and instance; run gets the real one."""
    seen: list[str] = []

    class Secret(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            def body() -> None:
                raise PermissionError(f"refused: {TOKEN}")

            try:
                step.do("log in", body, sensitive=True, retries=Retries(limit=1, delay=0))
            except PermissionError as error:
                seen.append(str(error))
                if ending == "uncaught":
                    raise
                if ending == "wrapped":
                    raise RuntimeError(f"login failed: {error}") from error
            return "caught"

    instance = drained(Secret.create())
    assert seen == [f"refused: {TOKEN}"]
    shown: list[Any] = [instance.error, instance.steps.get().error]
    shown += [(entry.type, entry.step, entry.data) for entry in HistoryEntry.objects.all()]
    assert TOKEN not in repr(shown)
    error = instance.steps.get().error
    assert error is not None and error["type"] == "PermissionError"
    if ending != "caught":
        assert instance.error is not None
        expected = "PermissionError" if ending == "uncaught" else "RuntimeError"
        assert (instance.error["type"], instance.error["step"]) == (expected, "log in-1")


@pytest.mark.parametrize("secret", [TOKEN, 1234567, b"tok-4f9d2c", uuid.UUID(int=7), {"a": ["longer-" + TOKEN, TOKEN]}])
def test_secrets_of_all_kinds_are_masked_in_reasons_too(secret: Any) -> None:
    """SEC-09: numbers, bytes and UUIDs are quoted in messages as texts are; a reason of a block is shown as well."""

    class Secret(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            got = step.do("log in", lambda: secret, sensitive=True)
            try:
                step.sleep("nap", 60)
            except BaseException:
                raise RuntimeError(f"in its place: {got}") from None

    instance = drained(Secret.create())
    assert instance.status == S.PAUSED
    assert "RuntimeError: in its place: " in instance.blocked and "[REDACTED]" in instance.blocked
    for text in (TOKEN, "1234567", str(uuid.UUID(int=7)), "longer-"):
        assert text not in instance.blocked
        assert text not in repr(history_of(instance, "workflow_paused"))


def grouped(step: Step, token: str) -> None:
    def fail() -> None:
        raise ValueError(f"bad token {token}")

    step.gather("all", fail, lambda: None)


def caused(step: Step, token: str) -> None:
    raise RuntimeError("the login failed") from ValueError(token)


@pytest.mark.parametrize("end", [grouped, caused])
def test_a_parent_shows_no_secret_of_its_child(end: Any) -> None:
    """SEC-09: causes and members of what ended a child are masked too: its parent rebuilds and shows them as its own."""

    class Child(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            end(step, step.do("log in", lambda: 'tok-"4f9d2c"', sensitive=True))

    class Parent(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            step.run_workflow("child", Child, None)

    instance = drained(Parent.create())
    assert instance.status == S.ERRORED
    told = [row.error_data for row in WorkflowInstance.objects.all()]
    told += [record.error_data for record in instance.steps.all()]
    told += list(HistoryEntry.objects.values_list("data", flat=True))
    assert "4f9d2c" not in str(told) and "[REDACTED]" in str(told)
