"""How large values may be, and which names steps may have (SER-06, SER-07)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from durableflow import LimitExceeded, NonRetryableError, Step, Workflow, WorkflowEvent, drain
from durableflow.models import SentEvent, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


# SER-06, limits -------------------------------------------------------------------------------------------------------


def test_a_result_that_is_too_large(settings: Any) -> None:
    """SER-06: not retried; the message has size and limit; the limit is a setting, in bytes of UTF-8."""
    bodies: list[int] = []

    class Large(Workflow):
        class Meta:
            name = "large"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            def body() -> str:
                bodies.append(1)
                return "x" * 2_000_000

            return step.do("large", body, retries=5)

    instance = drained(Large.create())
    assert (instance.status, bodies) == (S.ERRORED, [1])
    assert instance.error is not None and instance.error["type"].endswith("LimitExceeded")
    assert "2,000,002 bytes" in instance.error["message"] and "1,048,576 bytes" in instance.error["message"]
    assert "'large-1'" in instance.error["message"]

    settings.DURABLEFLOW = {"LIMITS": {"output": 3_000_000, "params": 10, "payload": 10}}
    assert drained(Large.create()).status == S.COMPLETE
    with pytest.raises(LimitExceeded, match=r"(?i)params of large/.* 12 bytes, at most 10 bytes"):
        Large.create("é" * 5)
    instance = Large.create("é" * 4)
    with pytest.raises(LimitExceeded, match=r"(?i)payload of event 'news'.* 12 bytes, at most 10 bytes"):
        instance.send_event("news", "é" * 5)
    assert SentEvent.objects.count() == 0


def test_a_final_output_that_is_too_large(settings: Any) -> None:
    """SER-06: the instance is errored, nothing of the output is stored."""
    settings.DURABLEFLOW = {"LIMITS": {"output": 100}}

    class Large(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> str:
            with pytest.raises(LimitExceeded):
                step.set_progress("x" * 200)
            return "x" * 200

    instance = drained(Large.create())
    assert (instance.status, instance.output, instance.progress) == (S.ERRORED, None, None)
    assert instance.error is not None and instance.error["type"].endswith("LimitExceeded")


def test_sum_of_outputs_is_limited(settings: Any, stopped_clock: StoppedClock) -> None:
    """SER-06: bytes per instance, counted alike in one execution and over replays; what was refused does not count."""
    settings.DURABLEFLOW = {"LIMITS": {"bytes": 100}}

    class Sums(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> list[str]:
            got = []
            for size in (19, 200, 19, 39, 8):  # in bytes: 2 each and two quotes
                try:
                    step.do(f"{size} letters", "é".__mul__, size)
                    got.append(f"{size}")
                except LimitExceeded:
                    got.append(f"not {size}")
                if event.params:
                    step.sleep("nap", 60)
            return got

    expected = ["19", "not 200", "19", "not 39", "8"]
    assert drained(Sums.create(False)).output == expected
    instance = drained(Sums.create(True))
    for _ in range(5):
        stopped_clock.advance(60)
        drained(instance)
    assert instance.output == expected


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257, "a\0b", 5, None])
def test_names_of_steps(name: Any) -> None:
    """Design 6, 12: 1 to 256 characters of any script, no control characters."""

    class Names(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.do(name, lambda: 1)

    instance = drained(Names.create())
    assert (instance.status, steps_of(instance)) == (S.ERRORED, [])
    assert instance.error is not None and "step name" in instance.error["message"].lower()


def test_names_of_any_script() -> None:
    """Design 12."""
    names = ["Überweisung", "支払い", "🧾", "x" * 256, " spaces ", "%s {0} '\"\\"]

    class Names(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return [step.do(name, str, name) for name in names]

    instance = drained(Names.create())
    assert instance.output == names
    assert [step.name for step in instance.steps.order_by("seq")] == names


# SER-07 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 10, 200_000, 700_000])
def test_bytes_come_back_as_bytes(size: int, stopped_clock: StoppedClock) -> None:
    """SER-07: equal bytes, within the factor of base64; bytearray and memoryview become bytes at once."""
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    seen: list[Any] = []

    class Binary(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> None:
            for name, value in (("bytes", data), ("bytearray", bytearray(data)), ("memoryview", memoryview(data))):
                seen.append(step.do(name, list, [value])[0])
            step.sleep("nap", 60)

    instance = drained(Binary.create())
    stopped_clock.advance(60)
    assert drained(instance).status == S.COMPLETE
    assert len(seen) == 6
    assert all(type(value) is bytes and value == data for value in seen)
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(length(output)) FROM durableflow_steprecord")
        assert cursor.fetchone()[0] <= size * 4 / 3 + 50


def test_bytes_that_are_too_large() -> None:
    """SER-07: 900,000 bytes are 1.2 MB as stored: refused with advice, never str(b'..')."""

    class Binary(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.do("bytes", lambda: bytes(900_000))

    instance = drained(Binary.create())
    assert instance.error is not None and instance.error["type"].endswith("LimitExceeded")
    assert "reference" in instance.error["message"]
    assert isinstance(LimitExceeded(), NonRetryableError)


def test_drain_inside_a_transaction_is_refused() -> None:
    """Api: a claim has to be committed before anything runs."""
    from django.db import transaction

    with transaction.atomic(), pytest.raises(RuntimeError, match="drain"):
        drain()
