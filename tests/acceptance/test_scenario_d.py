"""Lifecycle mails with sleeps of days, under a jumping clock (reference 26, scenario D; cases TIM-09, LIF-05)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from durableflow import NonRetryableError, Retries, Step, StepContext, Workflow, WorkflowEvent
from durableflow.core import clock
from durableflow.models import ConcurrencyLimit, WorkflowInstance
from durableflow.testing import Harness

pytestmark = pytest.mark.django_db
S = WorkflowInstance.Status
MARKETING = Retries(limit=5, delay=5, backoff="exponential")


class Post:
    """The mails that were sent: when, and which. ``fails``: so often sending the marketing mail fails first."""

    def __init__(self, fails: int = 0, error: Exception | None = None) -> None:
        self.sent: list[tuple[datetime, str]] = []
        self.tried: list[datetime] = []
        self.fails = fails
        self.error = error or ConnectionError("the mail server is away")

    def send(self, what: str) -> str:
        """Send it."""
        self.sent.append((clock.host_now(), what))
        return what

    def follow_up(self) -> str:
        """Send the marketing mail, if the server lets us."""
        self.tried.append(clock.host_now())
        if len(self.tried) <= self.fails:
            raise self.error
        return self.send("marketing")

    @property
    def names(self) -> list[str]:
        """Which, in their order."""
        return [what for _when, what in self.sent]

    def gaps(self) -> list[float]:
        """Seconds between two tries."""
        return [(b - a).total_seconds() for a, b in zip(self.tried, self.tried[1:], strict=False)]


def mails(post: Post, retries: Retries = MARKETING) -> type[Workflow[Any, Any]]:
    class LifecycleMails(Workflow[Any, Any]):
        class Meta:
            name = "lifecycle-mails"
            max_concurrency = 1

        def run(self, event: WorkflowEvent[Any], step: Step) -> str:
            step.do("submit payment", post.send, "payment")
            step.do("send confirmation text", post.send, "confirmation")
            step.sleep("wait for feedback", "2 days")
            step.do("send feedback email", post.send, "feedback")
            step.sleep("delay before marketing", "30 days")
            return step.do("send marketing follow up", post.follow_up, retries=retries, timeout="15 minutes")

    return LifecycleMails


def test_d_each_mail_once_and_in_order(workflows: Harness) -> None:
    """In the sleeps it is waiting and holds no slot; each mail goes out once, at its time."""
    post = Post()
    row = workflows.run(mails(post))
    began = post.sent[0][0]
    assert (row.status, post.names) == (S.WAITING, ["payment", "confirmation"])
    assert (row.holds_slot, row.lease_token, ConcurrencyLimit.objects.get().running) == (False, None, 0)
    workflows.advance("1 day")
    assert post.names[2:] == []
    workflows.advance("1 day")
    assert (row.status, post.names[2:]) == (S.WAITING, ["feedback"])
    workflows.advance("30 days")
    assert (row.status, row.output, post.names[3:]) == (S.COMPLETE, "marketing", ["marketing"])
    assert [when - began for when, _ in post.sent] == [timedelta(days=days) for days in (0, 0, 2, 32)]


def test_d_workers_that_die_around_the_sleeps(workflows: Harness) -> None:
    """A worker dies after each body, before its checkpoint: that body runs again, nothing before it does."""
    post = Post()
    for step in ("submit payment", "send confirmation text", "send feedback email", "send marketing follow up"):
        workflows.crash_before_checkpoint(step)
    row = workflows.run(mails(post))
    workflows.advance("32 days")
    assert row.status == S.COMPLETE
    assert post.names == [name for name in ("payment", "confirmation", "feedback", "marketing") for _ in range(2)]


def test_d_the_gaps_between_tries(workflows: Harness) -> None:
    """5, 10, 20, 40, 80 seconds; the sixth try succeeds."""
    post = Post(fails=5)
    row = workflows.run(mails(post))
    workflows.advance("32 days")
    workflows.advance("155 seconds")
    assert (row.status, post.gaps()) == (S.COMPLETE, [5, 10, 20, 40, 80])


def test_d_a_delay_that_depends_on_the_error(workflows: Harness) -> None:
    """After a rate limit 30 seconds times the attempt, after anything else 10."""

    def delay(context: StepContext, error: BaseException) -> int:
        return context.attempt * 30 if "rate limit" in str(error) else 10

    retries = Retries(limit=5, delay=delay, backoff="constant")
    limited, others = Post(2, RuntimeError("rate limit reached")), Post(2)
    for post in (limited, others):
        row = workflows.run(mails(post, retries))
        workflows.advance("33 days")
        assert row.status == S.COMPLETE
    assert (limited.gaps(), others.gaps()) == ([30, 60], [10, 10])


def test_d_what_need_not_be_tried_again(workflows: Harness) -> None:
    """A NonRetryableError ends the instance after one attempt."""
    post = Post(9, NonRetryableError("no such address"))
    row = workflows.run(mails(post))
    workflows.advance("33 days")
    assert (row.status, len(post.tried)) == (S.ERRORED, 1)
    assert row.error is not None and row.error["step"] == "send marketing follow up-1"


def test_d_a_failure_that_is_caught(workflows: Harness) -> None:
    """The program catches it, cleans up and goes on."""
    log: list[str] = []

    def fail() -> None:
        log.append("fail")
        raise NonRetryableError("never")

    class CaughtMails(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> str:
            try:
                step.do("task", fail)
            except NonRetryableError:
                step.do("clean-up-task", log.append, "clean up")
            step.sleep("pause", "1 hour")
            step.do("next-task", log.append, "next")
            return "done"

    row = workflows.run(CaughtMails)
    workflows.advance("1 hour")
    assert (row.status, row.output, log) == (S.COMPLETE, "done", ["fail", "clean up", "next"])


def test_d_a_pause_in_a_sleep_delays_the_mail_by_its_length(workflows: Harness) -> None:
    """TIM-09: paused for a day in the middle of the sleep, so the mail goes out a day later."""
    post = Post()
    row = workflows.run(mails(post))
    began = post.sent[0][0]
    workflows.advance("1 day")
    row.pause()
    workflows.advance("1 day")
    assert (row.status, post.names[2:]) == (S.PAUSED, [])
    row.resume()
    workflows.run_due()
    assert (row.status, post.names[2:]) == (S.WAITING, [])
    workflows.advance("1 day")
    assert (post.sent[2][1], post.sent[2][0] - began) == ("feedback", timedelta(days=3))


def test_d_a_date_stays_where_it_is(workflows: Harness) -> None:
    """TIM-09: ``sleep_until`` keeps its date whatever pauses come; one that has passed meanwhile is over at the resume."""
    seen: list[datetime] = []
    fixed = clock.host_now() + timedelta(days=10)

    class DatedMails(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> None:
            step.sleep_until("the day", fixed)
            step.do("greet", lambda: seen.append(clock.host_now()))

    paused, late = workflows.run(DatedMails), workflows.run(DatedMails)
    paused.pause()
    late.pause()
    workflows.advance("1 day")
    paused.resume()
    workflows.advance(fixed - clock.host_now() + timedelta(days=2))
    assert (paused.status, late.status, seen) == (S.COMPLETE, S.PAUSED, [fixed])
    late.resume()
    workflows.run_due()
    assert (late.status, seen[1:]) == (S.COMPLETE, [fixed + timedelta(days=2)])
