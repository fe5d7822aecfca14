"""``Harness``: runs workflows inside a test, with a clock that only ``advance`` moves (design 10, "Testing kit")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

from django.db import connections, models
from django.db.models import Sum

from durableflow.authoring.workflow import Workflow
from durableflow.core import atomicity, clock, dispatch, registry
from durableflow.core.durations import Duration, parse_duration
from durableflow.core.exceptions import StepTimeout
from durableflow.core.retries import Retention
from durableflow.core.statuses import StepKind
from durableflow.engine.claims import look
from durableflow.engine.declaring import declare
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.engine.lease import Claim
from durableflow.engine.sql import run as run_sql
from durableflow.engine.unwind import ProcessDied
from durableflow.models import PendingEvent, Priority, StepRecord, WorkflowInstance
from durableflow.models.creation import database
from durableflow.models.instance_fields import Who
from durableflow.testing.addresses import address
from durableflow.testing.interception import KitInterceptor
from durableflow.testing.mocks import Mocks
from durableflow.testing.skips import Skip
from durableflow.testing.slots import run_slots
from durableflow.timeline import reason

AT_ONE_MOMENT: Final = 20_000  # executions; a step has at most 10,000 retries


class CreateOptions(TypedDict, total=False):
    """The options of ``Workflow.create``."""

    instance_id: str | None
    start_at: datetime | Duration | None
    priority: Priority | None
    retention: Retention | None
    created_by: Who


class Harness:
    """Runs workflows in the test's thread, connection and transaction.

    Time stands still; ``advance`` alone moves it, and waits for retry delays, sleeps and deadlines without sleeping.
    ``run``, ``run_due``, ``advance``, ``approve``, ``reject`` and ``crash_before_checkpoint`` run everything that is due
    before they return, and refresh every row that the harness gave out or was given. Schedules fire by ``advance`` alone.
    """

    def __init__(self, before_exit: Callable[[], None] = lambda: None) -> None:
        self._using = database()
        self._mocks = Mocks()
        self._rows: dict[int, models.Model] = {}
        self._before_exit = before_exit
        self._declared: list[Any] = []

    # Running ----------------------------------------------------------------------------------------------------------

    def run(
        self, workflow: type[Workflow[Any, Any]], params: Any = None, **create: Unpack[CreateOptions]
    ) -> WorkflowInstance:
        """Start an instance (as ``create`` does, with its options and errors), run all that is due, return the row."""
        row = workflow.create(params, **create)
        self._rows[id(row)] = row
        self.run_due()
        return row

    def run_due(self) -> None:
        """Deliver what was sent and run all that is due now, in time order, also what other code of the test started."""
        self._run_until(self._now())

    def advance(self, duration: Duration) -> None:
        """Move the clock, and run at its moment whatever becomes due on the way: retries, sleeps, deadlines, schedules.

        The rows of ``Meta.schedules`` are made by the first call. Raises ValueError for a bad duration.
        """
        target = self._now() + parse_duration(duration)
        if (options := registry.options()) != self._declared:
            declare(self._using)
            self._declared = options
        run_slots(self._using, target, self._now, self._run_until)

    # Answering --------------------------------------------------------------------------------------------------------

    def pending(self, instance: WorkflowInstance, name: str | None = None) -> PendingEvent:
        """The open pending event of an instance, of the wait ``name`` if given. Raises LookupError unless there is one."""
        return self._pending(instance, name, PendingEvent.objects.using(self._using).open())

    def approve(
        self,
        instance: WorkflowInstance,
        name: str | None = None,
        *,
        by: Who = None,
        data: Mapping[str, Any] | None = None,
        comment: str = "",
    ) -> None:
        """Approve the open approval of an instance, then run all that is due.

        ``by=None`` decides as trusted code. Raises LookupError unless there is one such approval, and what ``decide``
        raises (PermissionDenied, ValidationError, StaleDecision).
        """
        self._approval(instance, name).approve(by=by, data=data, comment=comment)
        self.run_due()

    def reject(self, instance: WorkflowInstance, name: str | None = None, *, by: Who = None, comment: str = "") -> None:
        """Reject the open approval of an instance, then run all that is due; see ``approve``."""
        self._approval(instance, name).reject(by=by, comment=comment)
        self.run_due()

    # Looking ----------------------------------------------------------------------------------------------------------

    def attempts(self, step: str, instance: WorkflowInstance | None = None) -> int:
        """How often the body of the steps of this name was tried (lost and mocked attempts too), in one instance or in all."""
        records = StepRecord.objects.using(self._using).filter(kind=StepKind.DO, name=step)
        if instance is not None:
            self._rows[id(instance)] = instance
            records = records.filter(instance=instance.pk)
        return records.aggregate(sum=Sum("attempts"))["sum"] or 0

    # Mocking ----------------------------------------------------------------------------------------------------------

    def mock_result(
        self, step: str, value: Any, *, count: int | None = None, workflow: type[Workflow[Any, Any]] | None = None
    ) -> None:
        """Let ``do`` steps of this name return ``value``; their real body never runs.

        ``count``: only this occurrence of the name in a run. ``workflow``: only there. The most precise mock wins. A mock
        that nothing uses fails the test. Raises ValueError for a second result of the same address, CodecError.
        """
        self._mocks.add_result(address(step, count, workflow), value)

    def mock_error(
        self,
        step: str,
        error: BaseException,
        *,
        times: int | None = None,
        count: int | None = None,
        workflow: type[Workflow[Any, Any]] | None = None,
    ) -> None:
        """Let the next ``times`` attempts of these steps fail with ``error`` (None: every attempt); see ``mock_result``.

        After them a mocked result counts, else the real body runs. Raises TypeError, ValueError.
        """
        self._mocks.add_error(address(step, count, workflow), error, times)

    def mock_timeout(
        self,
        step: str,
        *,
        times: int | None = None,
        count: int | None = None,
        workflow: type[Workflow[Any, Any]] | None = None,
    ) -> None:
        """Let the next ``times`` attempts of these steps end as one that took longer than its timeout (StepTimeout), at once;
        counted together with ``mock_error``."""
        error = StepTimeout(f"Step {step!r} took longer than its timeout: mock_timeout().")
        self._mocks.add_error(address(step, count, workflow), error, times, "mock_timeout")

    def mock_event_timeout(
        self, wait: str, *, count: int | None = None, workflow: type[Workflow[Any, Any]] | None = None
    ) -> None:
        """Let the deadline of these waits (for events and approvals) pass as soon as they wait; see ``mock_result``.

        A wait whose answer is there already takes it, and one without a deadline has none to miss: neither uses the mock.
        """
        self._mocks.skips.timeouts.append(Skip("mock_event_timeout", address(wait, count, workflow)))

    def skip_sleeps(self, *steps: str) -> None:
        """From now on ``sleep`` and ``sleep_until`` end at once, those of these names or all; also what sleeps already, as
        soon as something runs. The clock does not move. A name that nothing uses fails the test."""
        self._mocks.skips.sleeps += [Skip("skip_sleeps", address(step)) for step in steps] or [Skip("skip_sleeps")]

    def skip_retry_delays(self, *steps: str) -> None:
        """From now on retries come without their delay, also those of rollback handlers and ``notify``; see ``skip_sleeps``."""
        skips = [Skip("skip_retry_delays", address(step)) for step in steps] or [Skip("skip_retry_delays")]
        self._mocks.skips.delays += skips

    def crash_before_checkpoint(self, step: str) -> None:
        """Let the process "die" once, after the next body of this step has returned and before anything is written of it.

        The lease expires at once and the next execution takes over, so the body runs again with the same idempotency key.
        Runs all that is due.
        """
        self._mocks.crashes.append(address(step).step)
        self.run_due()

    # Inner ------------------------------------------------------------------------------------------------------------

    def _now(self) -> datetime:
        now = clock.stopped()
        if now is None:
            raise RuntimeError("This harness has ended: use it inside its test.")
        return now

    def _run_until(self, target: datetime) -> None:
        """Run due instances in time order, moving the clock from one due moment to the next, up to ``target``."""
        executions = 0
        while (due := self._next_due()) is not None and due.wake_at is not None and due.wake_at <= target:
            if due.wake_at > self._now():
                clock.move(due.wake_at)
                executions = 0
            executions += 1
            if executions > AT_ONE_MOMENT:
                raise RuntimeError(f"{due.label} is due again and again without a delay: {executions:,} executions.")
            self._execute(due)
        clock.move(target)
        self._refresh()

    def _next_due(self) -> WorkflowInstance | None:
        deliver(self._using)
        self._mocks.skips.apply(self._using, self._now())
        rows = WorkflowInstance.objects.using(self._using).filter(wake_at__isnull=False)
        return rows.light().order_by("wake_at", "claim_class", "id").first()

    def _execute(self, due: WorkflowInstance) -> None:
        found = look(self._using, pk=due.pk)
        if not found.taken and not found.again:
            raise RuntimeError(f"{due.label} is due, but another transaction holds its row.")
        for claimed in found.taken:
            claimed.lease.renewed = float("inf")  # nobody renews, however long somebody looks around in a debugger
            interceptor = KitInterceptor(self._mocks, claimed.lease, self._before_exit)
            try:
                execute(claimed, interceptor=interceptor, renew=False)
            except ProcessDied:
                pass
            finally:
                if interceptor.crashed:
                    self._expire(claimed)

    def _expire(self, claimed: Claim) -> None:
        """What a supervisor does when it has reaped a dead worker."""
        rows = WorkflowInstance.objects.using(self._using).filter(lease_token=claimed.lease.token)
        rows.update(wake_at=self._now(), suspect=True)

    def _refresh(self) -> None:
        for key, row in list(self._rows.items()):
            try:
                row.refresh_from_db()
            except type(row).DoesNotExist:  # type: ignore[attr-defined]
                del self._rows[key]

    def _approval(self, instance: WorkflowInstance, name: str | None) -> PendingEvent:
        return self._pending(instance, name, PendingEvent.objects.using(self._using).open().approvals())

    def _pending(self, instance: WorkflowInstance, name: str | None, open_waits: Any) -> PendingEvent:
        self._rows[id(instance)] = instance
        waits = list(open_waits.filter(instance=instance.pk).order_by("id"))
        found = [wait for wait in waits if name in (None, wait.name)]
        if len(found) != 1:
            instance.refresh_from_db()
            what = "open wait" if name is None else f"open wait {name!r}"
            raise LookupError(
                f"{instance.label} is {instance.status} and has {len(found) or 'no'} {what}{'s' if len(found) > 1 else ''}"
                f" (open: {', '.join(repr(wait.name) for wait in waits) or 'none'})."
                + (" Name the one that is meant." if len(found) > 1 else f" {reason(instance)}")
            )
        pending: PendingEvent = found[0]
        self._rows[id(pending)] = pending
        return pending


@contextmanager
def harness(*, now: datetime | None = None) -> Iterator[Harness]:
    """A harness for the length of a block.

    ``now``: an aware moment at which its clock stands (default: the database's time). Workflow classes that are defined in
    functions inside the block are forgotten after it. Raises AssertionError at the end if nothing has used a mock, unless
    an error ends the block.
    """
    with open_harness(now=now) as kit:
        yield kit
        if message := unused_mocks(kit):
            raise AssertionError(message)


@contextmanager
def open_harness(*, now: datetime | None = None, before_exit: Callable[[], None] = lambda: None) -> Iterator[Harness]:
    """``harness()`` without its last check, for test runners that know better whether the test has failed.

    ``before_exit`` is called when the engine is about to end the process (design 6, "Suspension").
    """
    if now is not None and now.utcoffset() is None:
        raise ValueError(f"now: {now!r} has no time zone. Give an aware datetime.")
    kit = Harness(before_exit)
    with atomicity.baseline(), dispatch.silent(), clock.stop(now or _database_now()), registry.isolated():
        yield kit


def unused_mocks(kit: Harness) -> str:
    """Which mocks of a harness nobody has used, as a message; '' if all were used."""
    return kit._mocks.unused()


def _database_now() -> datetime:
    """Rows that the test made before the harness must not lie in its future."""
    using = database()
    if connections[using].vendor != "postgresql":
        return clock.host_now()
    moment: datetime = run_sql(using, "SELECT clock_timestamp()")[0][0]
    return moment
