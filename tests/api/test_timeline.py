"""The read model over what the engine really writes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durableflow import timeline
from durableflow.core import clock
from durableflow.testing import Harness
from tests.api import flows
from tests.api.flows import TOKEN, ApiRepair

MASKED = {"type": "OSError", "message": "refused [REDACTED]", "step": "flaky-1"}


@pytest.fixture(autouse=True)
def broken() -> Iterator[None]:
    flows.broken[0] = True
    yield
    flows.broken[0] = True


def types(instance, **options) -> list[str]:
    return [entry.type for entry in timeline.history(instance, **options)]


def test_a_repair_from_start_to_end(workflows: Harness) -> None:
    """A retry, a failure, a retry by hand, a sleep, a wait and an event, as people see them."""
    row = workflows.run(ApiRepair)
    _, step = timeline.steps(row)
    assert (step.label, step.kind, step.status, step.attempts) == ("flaky-1", "do", "pending", 1)
    failed = step.tries[0].finished
    assert failed is not None and step.next_attempt_at == failed + timedelta(seconds=60)
    assert (step.tries[0].number, step.tries[0].status, step.tries[0].retry_delay) == (1, "failed", 60)
    assert timeline.reason(row).startswith("Attempt 2 of step flaky-1 is due at ")

    workflows.advance("1 hour")
    assert row.status == "errored"
    _, step = timeline.steps(row)
    assert (step.status, step.next_attempt_at) == ("failed", None)
    assert [(item.number, item.status) for item in step.tries] == [(1, "failed"), (2, "failed"), (3, "failed")]
    assert timeline.reason(row) == "Failed in step flaky-1: OSError: refused [REDACTED]"

    flows.broken[0] = False
    row.retry()
    workflows.run_due()
    token, step, nap = timeline.steps(row)
    assert [(item.number, item.status) for item in step.tries][2:] == [(3, "failed"), (4, "complete")]
    assert (step.output, token.output, token.error) == ("ok", "[REDACTED]", None)
    assert [(item.number, item.status) for item in token.tries] == [(1, "complete")]
    assert token.tries[0].started == token.started
    assert (nap.status, nap.tries, nap.next_attempt_at, nap.duration) == ("pending", (), None, None)
    assert nap.started is not None and nap.wake_at == nap.started + timedelta(hours=1)
    assert timeline.reason(row).startswith("Sleeps in nap-1 until ")

    workflows.advance("1 hour")
    wait = timeline.steps(row)[-1].wait
    assert wait is not None
    assert (wait.status, wait.types, wait.deadline, wait.is_open) == ("open", ("note",), None, True)
    assert timeline.reason(row) == "Waits for an event of type note in note-1."
    assert timeline.waited_types(row) == ["note"]

    row.send_event("note", {"a": 1})
    workflows.run_due()
    assert (row.status, timeline.reason(row)) == ("complete", "Complete.")
    wait = timeline.steps(row)[-1].wait
    assert wait is not None and not wait.is_open
    assert timeline.waiting_for(row) == []


def test_nothing_secret_is_shown(workflows: Harness) -> None:
    """SEC-09: the next step's error quotes the output of a sensitive one; the workflow itself got the real value."""
    row = workflows.run(ApiRepair)
    workflows.advance("1 hour")
    assert row.steps.get(name="token").raw_output == TOKEN
    shown = [timeline.steps(row), timeline.history(row), timeline.error_of(row), timeline.reason(row)]
    assert TOKEN not in repr(shown)
    error = timeline.error_of(row)
    assert error is not None
    assert {key: error[key] for key in MASKED} == MASKED


def test_the_history_tells_every_attempt(workflows: Harness) -> None:
    """Design 2: one stored entry of a step that succeeds at once, four for a reader."""
    row = workflows.run(ApiRepair)
    assert row.history.filter(step="token-1").count() == 1
    assert types(row) == [
        "workflow_queued",
        "workflow_started",
        "step_started",
        "attempt_started",
        "attempt_completed",
        "step_completed",
        "step_started",
        "attempt_started",
        "attempt_errored",
    ]
    workflows.advance("1 hour")
    assert types(row)[9:] == [
        "attempt_started",
        "attempt_errored",
        "attempt_started",
        "attempt_errored",
        "step_errored",
        "workflow_errored",
    ]
    assert types(row, types=["step_started"]) == ["step_started"] * 2
    assert types(row, types=["attempt_completed", "workflow_errored"]) == ["attempt_completed", "workflow_errored"]


def test_any_cut_gives_the_same_history(workflows: Harness) -> None:
    """Design 2: reading from cursor to cursor gives each entry once, whatever the size of the pages."""
    row = workflows.run(ApiRepair)
    workflows.advance("1 hour")
    whole = timeline.history(row)
    for limit in (1, 2, 3, 100):
        found, after, more = [], 0, True
        while more:
            page = timeline.history_page(row, after, limit=limit)
            found += page.entries
            after, more = page.last_id, page.has_more
        assert found == whole


def test_every_type_is_known(workflows: Harness) -> None:
    """What the engine writes can be filtered for."""
    flows.broken[0] = False
    row = workflows.run(ApiRepair)
    workflows.advance("1 hour")
    row.send_event("note")
    workflows.run_due()
    assert row.status == "complete"
    assert set(types(row)) <= set(timeline.HISTORY_TYPES)


def test_queries_do_not_grow(workflows: Harness) -> None:
    """Each function needs the same number of queries for a short and a long instance."""

    def cost() -> int:
        with CaptureQueriesContext(connection) as captured:
            timeline.steps(row)
            timeline.history(row)
            timeline.reason(row)
            timeline.waiting_for(row)
        return len(captured)

    row = workflows.run(ApiRepair)
    workflows.advance("2 minutes")
    few = cost()
    record = row.steps.get(name="token")
    for number in range(50):
        record.pk, record.name, record.seq = None, f"more {number}", 100 + number
        record._state.adding = True
        record.save()
    assert cost() == few


@pytest.mark.django_db
def test_a_rollback_that_stands_still(order, step_of) -> None:
    """Of a blocked rollback the next attempt is shown as a resume would make it; what the step itself waited for is over."""
    now = timezone.now()
    hour = timedelta(hours=1)
    row = order(status="paused", paused_at=now - 2 * hour)
    given = {"rollback_status": "pending", "rollback_attempts": 1, "wake_at": now - hour}
    step_of(row, "later", **given, rollback_wake_at=now - hour)
    step_of(row, "over", **given, rollback_wake_at=now - 3 * hour)
    with clock.stop(now):
        found = timeline.steps(row)
    assert [(view.wake_at, view.rollback and view.rollback.next_attempt_at) for view in found] == [
        (now - hour, now + hour), (now - hour, now - 3 * hour),
    ]  # fmt: skip
