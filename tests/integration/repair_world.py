"""What happens in ``test_lif_repair_random``: bodies that fail, workers that die, people who answer, repair and get it wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from django.db import connection
from django.db.models import Min, Q

from durableflow import (
    Event,
    InvalidTransition,
    StaleDecision,
    Undo,
    get_step_context,
)
from durableflow.engine.claims import look
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.engine.interception import Interceptor
from durableflow.engine.lease import Lease
from durableflow.engine.unwind import ProcessDied
from durableflow.models import ConcurrencyLimit, PendingEvent, StepRecord, WorkflowInstance
from durableflow.models.keeping import CLOSED
from tests.integration.conftest import StoppedClock
from tests.integration.repair_programs import Author

Status = WorkflowInstance.Status
FINISHED: Final = (Status.COMPLETE, Status.ERRORED, Status.TERMINATED)
USING: Final = "default"
VERBS: Final = "pause resume terminate undo restart from retry complete answer send delete".split()
LIKELY: Final = {
    Status.QUEUED: ["pause", "pause", "complete", "complete", "send", "terminate"],
    Status.RUNNING: ["pause", "send", "from", "terminate", "undo", "restart"],
    Status.WAITING: [*["answer", "from", "complete", "pause", "send"] * 3, "terminate", "undo", "restart"],
    Status.WAITING_FOR_PAUSE: ["resume", "from", "send"],
    Status.PAUSED: ["resume", "resume", "resume", "from", "from", "complete", "complete", "restart", "undo"],
    Status.ERRORED: ["retry", "retry", "retry", "from", "from", "complete", "complete", "complete", "restart"],
    Status.TERMINATED: ["from", "from", "from", "restart"],
    Status.COMPLETE: ["from", "from", "from", "from", "restart"],
    Status.ROLLING_BACK: ["answer"],
}
"""What somebody would do."""


class Mortal(Interceptor):
    """A worker that may die before any statement, also in the middle of a transaction; then it writes nothing more. Both the
    wrapper of its connection and the interceptor of its execution. ``between``: what may happen between its transactions."""

    def __init__(self, after: int | None, between: Callable[[], None]) -> None:
        self.after, self.between = after, between
        self.dead, self.resting = False, 0
        self.lease: Lease | None = None

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        """See ``connection.execute_wrapper``."""
        if self.after is not None and not self.resting:
            self.after -= 1
            if self.after < 0:
                self.die()
        if self.lease is not None and not self.resting and not in_transaction():
            self.between()
        return execute(sql, params, many, context)

    def die(self) -> None:
        """From now on."""
        self.dead = True
        if self.lease is not None:
            self.lease.lost = True
        raise ProcessDied("the worker died")


def in_transaction() -> bool:
    """Whether the connection is in one, of Django or of the engine's own."""
    driver: Any = connection.connection
    raw = driver.in_transaction if connection.vendor == "sqlite" else driver.info.transaction_status != 0
    return connection.in_atomic_block or bool(raw)


class RepairWorld(Author):
    """One random program, all that happens to it, and what must hold."""

    def __init__(self, seed: int, clock: StoppedClock) -> None:
        super().__init__(seed)
        self.clock = clock
        self.wild = True
        self.sent = 0
        self.begun = Counter[Any]()
        self.right: set[Any] = set()
        self.wrong: list[str] = []
        self.worker: Mortal | None = None
        self.log: list[str] = []
        self.limit = self.random.choice([None, None, 1, 2])
        self.duration = self.random.choice([None, None, "1 hour"])

    # Bodies -----------------------------------------------------------------------------------------------------------

    def body(self) -> str:
        """What every step does: it may fail, and somebody may do something meanwhile."""
        with self.watched():
            self.begin()
            if self.wild and self.random.random() < 0.06:
                self.meddle()
        return self.quiet()

    def quiet(self) -> str:
        """A body during which nobody does anything."""
        context = get_step_context()
        if self.wild and self.random.random() < 0.25:
            raise OSError("now and then")
        return f"{context.name}#{context.count}"

    async def later(self) -> str:
        """An async one."""
        await asyncio.sleep(0)
        return self.quiet()

    def item(self, number: int) -> str:
        """One of a map."""
        return self.once()

    def once(self) -> str:
        """A body without retries: no attempt begins twice."""
        context = get_step_context()
        with self.watched():
            # A child that is started anew for another that has ended has its keys.
            key = (self.row_of(context).pk, context.idempotency_key, context.attempt)
            assert not self.begun[key], f"{context.name}: attempt {context.attempt} began twice"
            self.begun[key] += 1
        return self.body()

    def begin(self) -> None:
        """A body begins: not of a step that is complete."""
        context = get_step_context()
        row = self.row_of(context)
        found = row.steps.filter(run_number=context.run_number, kind="do", name=context.name, count=context.count)
        assert not found.filter(status="complete").exists(), f"the body of {context.name} ran again"

    def row_of(self, context: Any) -> WorkflowInstance:
        """The instance of a body."""
        return WorkflowInstance.objects.get(workflow=context.workflow, instance_id=context.instance_id)

    def undo(self, undo: Undo[Any]) -> None:
        """A rollback handler."""
        with self.watched():
            row = self.row_of(undo.context)
            found = row.steps.filter(run_number=row.run_number, kind="do", name=undo.context.name).get()
            assert found.rollback_status not in ("complete", "failed"), "what is undone was undone again"
            assert not undo.completed or undo.output == f"{undo.context.name}#1", undo.output
        if self.wild and self.random.random() < 0.25:
            raise OSError("cannot be undone yet")

    def notify(self, pending: PendingEvent) -> None:
        """Somebody is told of a wait."""
        if self.wild and self.random.random() < 0.2:
            raise OSError("no mail today")

    def mistake(self, where: Any) -> None:
        """A mistake in ``run`` itself, which somebody may have put right by the next time."""
        if self.wild and where not in self.right and self.random.random() < 0.5:
            raise LookupError("a mistake in run()")
        self.right.add(where)

    def check_read(self, event: Event, name: str) -> None:
        """It is what was sent to this wait."""
        with self.watched():
            assert event.payload["to"] == event.type and event.type in (name, f"{name}-too"), event

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What is wrong in a body must fail the test, not the step alone. The worker does not die in it."""
        if self.worker is not None:
            self.worker.resting += 1
        try:
            yield
        except AssertionError as error:
            self.wrong.append(str(error))
            raise
        finally:
            if self.worker is not None:
                self.worker.resting -= 1

    # What happens -----------------------------------------------------------------------------------------------------

    @contextmanager
    def mortal(self, chance: float, most: int) -> Iterator[Mortal]:
        """Who may die before any of the next statements: what it was at is as if it had not been."""
        dies = self.wild and self.random.random() < chance
        worker = Mortal(self.random.randrange(most) if dies else None, self.between)
        with connection.execute_wrapper(worker):
            try:
                yield worker
            except ProcessDied:
                self.log.append("  died")
        assert connection.get_autocommit() and not connection.in_atomic_block

    def work(self, most: int = 500) -> None:
        """Do all that is due."""
        for _ in range(most):
            with self.mortal(0.05, 8):
                while deliver(USING):
                    pass
            found = look(USING)
            for claimed in found.taken:
                claimed.lease.renewed = float("inf")
                with self.mortal(0.1, 40) as worker:
                    worker.lease, self.worker = claimed.lease, worker
                    try:
                        execute(claimed, interceptor=worker, renew=False)
                    finally:
                        self.worker = None
                after = WorkflowInstance.objects.get(pk=claimed.lease.pk)
                self.log.append(f"  {after.label} {after.status} {after.blocked}")
                assert worker.dead or after.lease_token != claimed.lease.token, "the execution has kept its lease"
            if not found.taken and not found.again:
                break
        else:
            raise AssertionError("it never rests")
        self.check_rest()

    def meddle(self) -> None:
        """Somebody does something to some instance."""
        if in_transaction():
            return
        rows = list(WorkflowInstance.objects.order_by("id"))
        going = [row for row in rows if row.status != Status.COMPLETE]
        row = self.random.choice(self.random.choice([rows, going or rows, going or rows, rows[:1]]))
        verb = self.random.choice(VERBS if self.random.random() < 0.05 else LIKELY.get(row.status, VERBS))
        self.log.append(f"{verb} {row.label} {row.status}")
        try:
            with self.mortal(0.0 if self.worker else 0.1, 12):
                self.act(row, verb)
        except (InvalidTransition, StaleDecision) as refused:
            self.log.append(f"  refused: {refused}")

    def between(self) -> None:
        """Somebody may do something between two transactions of a worker."""
        if self.wild and self.random.random() < 0.03:
            self.log.append("  between:")
            with self.watched():
                self.meddle()

    def act(self, row: WorkflowInstance, verb: str) -> None:
        """Apply it."""
        steps = list(row.steps.filter(run_number=row.run_number).order_by("id"))
        if verb in ("pause", "resume", "restart", "retry"):
            getattr(row, verb)()
        elif verb in ("terminate", "undo"):
            row.terminate(rollback=verb == "undo")
        elif verb == "from" and steps:
            step = self.random.choice(steps)
            self.log.append(f"  {step.kind} {step.label}")
            try:
                row.restart(from_step=step)
            except ValueError as refused:
                assert "has started together" in str(refused) or "which code the run follows" in str(refused), refused
        elif verb == "complete":
            steps = [step for step in steps if step.kind == "do" and step.status != "complete"]
            if steps:
                self.complete(row, self.random.choice(steps))
        elif verb == "delete" and row.parent_step_id is not None and not self.worker:
            row.delete()
        elif verb == "answer":
            self.answer()
        elif verb == "send" and self.types:
            self.send(row, self.random.choice(self.types))

    def complete(self, row: WorkflowInstance, step: StepRecord) -> None:
        """By hand."""
        self.log.append(f"  {step.label}")
        row.complete_step(step, f"{step.name}#{step.count}")

    def answer(self) -> bool:
        """Somebody answers an open wait, if there is one."""
        waits = list(PendingEvent.objects.filter(status="open").select_related("instance", "step").order_by("id"))
        if not waits:
            return False
        wait = self.random.choice(waits)
        self.log.append(f"  answer {wait.instance.label} {wait.name}")
        with suppress(StaleDecision, InvalidTransition):
            if wait.kind == "wait_for_approval":
                wait.decide(self.random.random() < 0.5, by=None)
            else:
                self.send(wait.instance, self.random.choice(wait.types))
        return True

    def send(self, row: WorkflowInstance, type: str) -> None:
        """An event, and no other is like it."""
        self.sent += 1
        self.clock.advance(0.001)  # after the wait was opened
        row.send_event(type, {"to": type, "number": self.sent})

    def pass_time(self) -> None:
        """Whoever has a lease is dead by then."""
        seconds = self.random.choice([30, 30, 60, 60, 300, 1200])
        self.clock.outlast_leases()
        self.clock.advance(seconds)

    # What must hold ---------------------------------------------------------------------------------------------------

    def check_rest(self) -> None:
        """Whenever nobody does anything."""
        assert not self.wrong, self.wrong
        waits = Counter(PendingEvent.objects.filter(status="open").values_list("step", flat=True))
        assert all(count == 1 for count in waits.values()), "a wait is open twice"
        due = WorkflowInstance.objects.due()
        # Who needs a slot that others have waits for that, and reads then.
        waiting = PendingEvent.objects.filter(status="open", instance__status="waiting", instance__hold="")
        for wait in waiting.exclude(instance__in=due):
            unread = wait.instance.sent_events.filter(consumed_by__in=("", CLOSED), delivered=True, kind="event")
            lost = unread.filter(type__in=wait.types, sent_at__gt=wait.opened)
            assert not lost.exists(), (
                f"{wait.name} of {wait.instance.label} waits, and nobody has read what was sent to it"
            )
        for row in WorkflowInstance.objects.all():
            assert not row.blocked or "lost 10 times" in row.blocked, row.blocked
            if row.status in FINISHED:
                assert row.wake_at is None and row.lease_token is None and not row.holds_slot and not row.hold, (
                    row.label
                )
                assert not row.pending_events.filter(status="open").exists(), f"{row.label} has an open wait"
                assert not row.steps.filter(status__in=["pending", "started"]).exists(), f"{row.label} has an open step"
        for limit in ConcurrencyLimit.objects.all():
            held = WorkflowInstance.objects.filter(concurrency_key=limit.key, holds_slot=True).count()
            assert limit.running == held, f"{limit.key}: {limit.running} are said to run, {held} do"

    def check_end(self, root: WorkflowInstance) -> None:
        """All has come to its end."""
        root.refresh_from_db()
        assert (root.status, root.output, root.error) == (Status.COMPLETE, self.result_of(self.root), None)
        read = [step.output for step in StepRecord.objects.filter(kind="wait_for_event", status="complete")]
        numbers = Counter(output.payload["number"] for output in read if isinstance(output, Event))
        assert not [number for number, count in numbers.items() if count > 1], "an event was read twice"
        for row in WorkflowInstance.objects.filter(status=Status.COMPLETE):
            assert row.output == self.result_of(row.params["program"]), row.label
            groups = row.steps.filter(
                Q(kind__in=("gather", "map", "race")) | Q(remaining__isnull=False), status="failed"
            )
            failed = [step.label for step in groups.filter(run_number=row.run_number) if "settled" not in step.scope]
            assert not failed, f"{row.label} is complete, and {failed} failed"

    # A life -----------------------------------------------------------------------------------------------------------

    def live(self, root: WorkflowInstance, steps: int) -> None:
        """A wild time, then a calm one in which all that was begun ends."""
        for _ in range(steps):
            if self.random.random() < 0.5:
                self.meddle()
            elif self.random.random() < 0.5:
                self.answer()
            else:
                self.pass_time()
            if self.random.random() < 0.6:
                self.work()
        self.wild = False
        self.log.append("calm")
        for _ in range(400):
            self.work()
            if not self.next_move(root):
                break
        else:
            raise AssertionError("it never ends")
        self.check_end(root)

    def next_move(self, root: WorkflowInstance) -> bool:
        """What has to be done, that it goes on; False if nothing is left to do."""
        root.refresh_from_db()
        if WorkflowInstance.objects.filter(lease_token__isnull=False).exists():
            self.clock.outlast_leases()
            return True
        for row in WorkflowInstance.objects.filter(status=Status.PAUSED):
            row.resume()
            return True
        if root.status == Status.ERRORED and not (root.rollback and root.rollback["outcome"] == "complete"):
            self.log.append(f"  {root.error}")
            root.retry()
        elif root.status in (Status.ERRORED, Status.TERMINATED):
            root.restart()
        elif not self.answer():
            rows = WorkflowInstance.objects.exclude(status__in=FINISHED)
            if not rows.exists():
                return False
            soonest = rows.aggregate(soonest=Min("wake_at"))["soonest"]
            assert soonest is not None, "stuck: nothing is due, and nobody is asked"
            self.clock.advance(max((soonest - self.clock.now).total_seconds(), 0.001))
        return True
