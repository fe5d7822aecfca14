"""``map``: one step per item (design 7)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durableflow import Retries, Step, Workflow, WorkflowEvent, get_step_context
from durableflow.engine.gathering import digest
from durableflow.models import StepRecord, WorkflowInstance
from tests.integration.conftest import StoppedClock
from tests.support.engine import drained, history_of, steps_of

pytestmark = pytest.mark.django_db(transaction=True)
S = WorkflowInstance.Status


class Doubles(Workflow[int, Any]):
    """Items with values of their own."""

    class Meta:
        name = "map-doubles"

    ran: list[int] = []

    def run(self, event: WorkflowEvent[int], step: Step) -> Any:
        items = list(range(event.params))
        doubled = step.map("double", self.double, items)
        step.wait_for_event("go on", type="go-on", timeout=None)
        return sum(doubled)

    def double(self, item: int) -> int:
        self.ran.append(item)
        return 2 * item


def test_items_are_steps_and_results_have_their_order(stopped_clock: StoppedClock) -> None:
    Doubles.ran = []
    instance = drained(Doubles.create(5))
    assert sorted(Doubles.ran) == list(range(5))
    labels = [label for label, _status in steps_of(instance)]
    assert labels[0] == "double-1" and sorted(labels[1:6]) == [f"double-1/double-{n}" for n in range(1, 6)]
    instance.send_event("go-on")
    assert drained(instance).output == 20
    assert sorted(Doubles.ran) == list(range(5)), "a replay runs none again"


def test_no_items_is_an_empty_list() -> None:
    class Empty(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.map("none", str, [])

    instance = drained(Empty.create())
    assert (instance.status, instance.output, steps_of(instance)) == (S.COMPLETE, [], [("none-1", "complete")])


def test_each_item_has_attempts_and_a_key_of_its_own() -> None:
    keys: list[tuple[int, int, str]] = []

    class Keys(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return step.map("items", self.item, [10, 20], retries=Retries(limit=1, delay=0), concurrency=1)

        def item(self, item: int) -> int:
            context = get_step_context()
            keys.append((context.count, context.attempt, context.idempotency_key))
            if item == 20 and context.attempt == 1:
                raise OSError("once")
            return item

    instance = drained(Keys.create())
    assert instance.output == [10, 20]
    assert [key[:2] for key in keys] == [(1, 1), (2, 1), (2, 2)]
    assert keys[1][2] == keys[2][2] != keys[0][2]
    assert [data["attempt"] for data in history_of(instance, "attempt_errored")] == [1]


def test_the_same_name_again_is_another_map() -> None:
    class Twice(Workflow):
        def run(self, event: WorkflowEvent, step: Step) -> Any:
            return [step.map("many", str, [1]), step.map("many", str, [2])]

    instance = drained(Twice.create())
    assert instance.output == [["1"], ["2"]]
    assert {"many-1/many-1", "many-2/many-1"} <= set(dict(steps_of(instance)))


def recorded(number: int) -> WorkflowInstance:
    """An instance whose map of ``number`` items is recorded as complete, without the bodies ever having run."""
    instance = Doubles.create(number)
    own = {"instance": instance, "run_number": 1, "execution": 1, "status": "complete", "started": timezone.now()}
    digests = [digest(item, "item") for item in range(number)]
    StepRecord.objects.create(**own, kind="map", name="double", seq=1, config={"items": digests})
    rows = [
        StepRecord(
            **own,
            scope="double-1",
            kind="do",
            name="double",
            count=item + 1,
            seq=item + 2,
            raw_output=2 * item,
            attempts=1,
        )
        for item in range(number)
    ]
    StepRecord.objects.bulk_create(rows, batch_size=500)
    WorkflowInstance.objects.filter(pk=instance.pk).update(execution=1)
    return instance


def test_many_items_replay_in_as_many_queries_as_few() -> None:
    """Case OPS-01 with a map: what is recorded of its items is read at once."""
    Doubles.ran = []

    def queries(number: int) -> int:
        instance = recorded(number)
        instance.send_event("go-on")
        with CaptureQueriesContext(connection) as captured:
            instance = drained(instance)
        assert (instance.status, instance.output) == (S.COMPLETE, number * (number - 1)), instance.error
        # Looks at what is due come by the clock: they are not counted.
        return sum(StepRecord._meta.db_table in query["sql"] for query in captured)

    assert queries(500) == queries(5)
    assert not Doubles.ran


def test_a_map_over_the_limit_runs_none_of_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """ENG-12: how many steps it would make is known before the first of them runs."""
    ran: list[int] = []

    class Large(Workflow):
        class Meta:
            name = "map-large"

        def run(self, event: WorkflowEvent, step: Step) -> Any:
            step.do("first", lambda: None)
            return step.map("items", ran.append, range(event.params))

    with override_settings(DURABLEFLOW={"LIMITS": {"steps": 5}}):
        fits, large = drained(Large.create(4)), drained(Large.create(5))
    assert (fits.status, len(ran)) == (S.COMPLETE, 4)
    assert large.error is not None
    assert (large.status, large.error["type"]) == (S.ERRORED, "durableflow.LimitExceeded")
    assert "5 items of 'items-1'" in large.error["message"] and "continue_as_new" in large.error["message"]
