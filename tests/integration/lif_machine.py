"""A machine that applies random verbs to instances while random things happen to their workers, and knows what must hold.

Everything runs in one thread: a verb that comes while a body runs is applied by the body itself, a worker that dies raises
ProcessDied, and time passes when a rule says so. What the statuses allow stands here as design 2 says it, not as the code does.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from django.db import connection
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from durableflow import InvalidTransition, StaleDecision
from durableflow.core import clock
from durableflow.engine.claims import look
from durableflow.engine.delivery import deliver
from durableflow.engine.executor import execute
from durableflow.engine.unwind import ProcessDied
from durableflow.models import ConcurrencyLimit, PendingEvent, SentEvent, StepRecord, WorkflowInstance
from tests.integration.lif_world import (
    ALLOWED,
    ENDED,
    EVENTS_REFUSED,
    IDS,
    SEEDS,
    SOME,
    STEPS,
    USING,
    LifeModel,
    Mortal,
    Script,
    call,
    plans_of,
    which,
)


class LifeMachine(RuleBasedStateMachine):
    """Two instances of a workflow of which one runs at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = clock.stop(clock.host_now().replace(microsecond=0))
        self._clock.__enter__()
        Script.machine, Script.plans = self, []
        self.results: dict[tuple[int, int, str], Any] = {}
        self.begun = Counter[tuple[int, str]]()
        self.again = Counter[int]()
        self.sent: dict[int, str] = {}
        self.mortal: Mortal | None = None
        self.token: int | None = None
        self.closing = False
        self.wrong: list[str] = []

    @initialize()
    def create(self) -> None:
        """Both exist from the beginning."""
        for name in IDS:
            LifeModel.create({"undone": name == "two"}, instance_id=name)

    # What happens -----------------------------------------------------------------------------------------------------

    @rule(name=which, seed=SEEDS)
    def execute(self, name: str, seed: int) -> None:
        """A worker looks, and executes this instance if it is due."""
        Script.plans = plans_of(seed)
        deliver(USING)
        self.work(self.row(name))
        Script.plans = []

    @rule(name=which, seed=SEEDS, answered=st.booleans(), rounds=st.integers(1, 4))
    def go_on(self, name: str, seed: int, answered: bool, rounds: int) -> None:
        """What it waits for happens, or its time comes, and it is executed; several times in a row."""
        Script.plans = plans_of(seed)
        for _ in range(rounds):
            row = self.row(name)
            if answered and row.status == "waiting":
                self.answer(row)
            deliver(USING)
            row.refresh_from_db()
            if row.wake_at is not None and row.wake_at > clock.host_now():
                self.advance((row.wake_at - clock.host_now()).total_seconds())
            self.work(self.row(name))
        Script.plans = []

    @rule(name=which, verb=SOME, twice=st.booleans())
    def apply(self, name: str, verb: str, twice: bool) -> None:
        """Somebody applies a verb, or clicks twice; both pages were loaded before (design 2: a verb repeated changes nothing)."""
        row, same = self.row(name), self.row(name)
        if self.verb(row, verb) and twice and row.status not in ALLOWED[verb]:
            before = self.picture(same)
            try:
                call(same, verb)
            except InvalidTransition:
                assert self.picture(same) == before
            else:
                raise AssertionError(f"a second {verb} of a {row.status} instance was accepted")

    @rule(name=which, verbs=st.lists(SOME, min_size=2, max_size=4))
    def meddle(self, name: str, verbs: list[str]) -> None:
        """Somebody does not know what he wants."""
        for verb in verbs:
            self.verb(self.row(name), verb)

    @rule(name=which, wanted=st.sampled_from([*STEPS, "nap", "nothing"]))
    def restart_from(self, name: str, wanted: str) -> None:
        """Somebody restarts from a step, if there is one of that name."""
        row = self.row(name)
        known = {step.name: step for step in row.steps.filter(run_number=row.run_number)}
        allowed = row.status in ALLOWED["restart"] and wanted in known
        before, run, kept = self.picture(row), row.run_number, self.complete_before(row, known.get(wanted))
        try:
            row.restart(from_step=known.get(wanted, wanted))
        except (InvalidTransition, ValueError):
            assert not allowed and self.picture(row) == before
            return
        assert allowed and row.status == "queued" and row.run_number == run + 1
        now_complete = set(
            row.steps.filter(run_number=row.run_number, status="complete").values_list("scope", "kind", "name", "count")
        )
        assert now_complete <= kept, "something else than what was before the step is kept"

    @rule(name=which)
    def complete_step(self, name: str) -> None:
        """Somebody gives the result of a step that failed or waits for its retry."""
        row = self.row(name)
        step = row.steps.filter(run_number=row.run_number, kind="do").exclude(status="complete").order_by("seq").first()
        if step is None:
            return
        before, leased = self.picture(row), row.lease_token is not None
        try:
            row.complete_step(step, f"given {step.name}")
        except (InvalidTransition, ValueError):
            assert self.picture(row) == before
            return
        assert not leased, "a step was completed by hand while a worker may be in it"
        step.refresh_from_db()
        assert (step.status, step.output) == ("complete", f"given {step.name}")
        assert row.status in {"queued", "waiting", "paused"}

    @rule(name=which)
    def send(self, name: str) -> None:
        """A program sends an event."""
        self.send_to(self.row(name))

    @rule(name=which, approved=st.booleans())
    def decide(self, name: str, approved: bool) -> None:
        """Somebody answers the open approval, if there is one."""
        pending = PendingEvent.objects.filter(instance=self.row(name), kind="wait_for_approval").order_by("-id").first()
        if pending is None:
            return
        was_open = pending.status == "open"
        try:
            pending.decide(approved, by=None)
        except StaleDecision:
            assert not was_open
        else:
            assert was_open

    @rule(seconds=st.sampled_from([1, 31, 61, 301, 3601]))
    def pass_time(self, seconds: int) -> None:
        """Time passes, and leases of the dead expire."""
        self.advance(seconds)

    # What must hold ---------------------------------------------------------------------------------------------------

    @invariant()
    def consistent(self) -> None:
        """Nothing was wrong in a body, and each row says one thing in all its columns."""
        assert not self.wrong, self.wrong
        for row in WorkflowInstance.objects.filter(workflow="lif-model"):
            steps = row.steps.filter(run_number=row.run_number)
            if row.status == "paused":
                assert row.paused_at is not None and row.wake_at is None and row.lease_token is None
            else:
                assert row.paused_at is None and not row.blocked, (
                    f"{row.status}, but paused at {row.paused_at}: {row.blocked}"
                )
            if row.status in ENDED:
                assert row.finished is not None and row.wake_at is None
                assert not row.pending_events.filter(status="open").exists()
                assert not steps.filter(status__in=("pending", "started")).exists()
            else:
                assert row.finished is None and row.output is None
                assert row.error is None or row.status == "rolling_back"
            if row.status == "queued":
                assert row.wake_at is not None or row.hold == "limit"
            assert not row.pending_events.filter(status="open").exclude(step__run_number=row.run_number).exists()

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """What a run has recorded as complete stays what it is (promise 1). A gather goes on when a branch of it does."""
        found = {
            (step.instance_id, step.run_number, f"{step.scope}/{step.kind}/{step.name}/{step.count}"): step.output
            for step in StepRecord.objects.filter(instance__workflow="lif-model", status="complete").exclude(
                kind="gather"
            )
        }
        for key, value in self.results.items():
            moved = (key[0], key[1] + 1, key[2])
            if key in found:
                assert found[key] == value, f"{key} has changed"
            else:  # kept by a restart from a later step
                assert self.later(found, key) == value, f"{key} is gone; {moved}"
        self.results |= found

    @invariant()
    def slots_are_counted(self) -> None:
        """``running`` is the number of rows that hold a slot, and there is one slot."""
        holding = WorkflowInstance.objects.filter(holds_slot=True).count()
        counted = sum(ConcurrencyLimit.objects.values_list("running", flat=True))
        assert holding == counted <= 1

    @invariant()
    def events_are_there(self) -> None:
        """Every accepted event is still there, and no two waits have taken the same."""
        rows = {event.pk: event for event in SentEvent.objects.filter(kind="event")}
        assert set(self.sent) <= set(rows), "an accepted event is gone"

    def teardown(self) -> None:
        """Let everything come to an end: nothing may be stuck."""
        try:
            if WorkflowInstance.objects.filter(workflow="lif-model").exists():
                self.closing = True
                self.drive_to_the_end()
        finally:
            Script.machine = None
            WorkflowInstance.objects.filter(workflow="lif-model").delete()
            SentEvent.objects.all().delete()
            ConcurrencyLimit.objects.all().delete()
            self._clock.__exit__(None, None, None)

    def drive_to_the_end(self) -> None:
        """Resume, answer and execute until all have ended."""
        for _ in range(200):
            rows = [self.row(name) for name in IDS]
            if all(row.status in ENDED for row in rows):
                break
            for row in rows:
                if row.status in ("paused", "waiting_for_pause"):
                    self.verb(row, "resume")
                for pending in PendingEvent.objects.open().filter(instance=row, kind="wait_for_approval"):
                    pending.approve(by=None)
            deliver(USING)
            due = WorkflowInstance.objects.filter(wake_at__isnull=False).order_by("wake_at").first()
            assert due is not None, f"nothing is due: {[(row.status, row.hold) for row in rows]}"
            if due.wake_at > clock.host_now():
                self.advance((due.wake_at - clock.host_now()).total_seconds())
            for name in IDS:
                self.work(self.row(name))
            self.consistent()
            self.nothing_is_forgotten()
            self.slots_are_counted()
        for name in IDS:
            row = self.row(name)
            assert row.status in ENDED, f"{row.label} is stuck: {row.status} {row.hold} {row.blocked}"
            if row.status == "complete":
                first, got, both, approved, last = row.output
                assert (first, both, last) == self.recorded(row), row.output
                assert got in ("timeout", "hello") and approved in (True, False)
        assert not ConcurrencyLimit.objects.exclude(running=0).exists()

    # Inside -----------------------------------------------------------------------------------------------------------

    def row(self, name: str) -> WorkflowInstance:
        """The instance as it is now."""
        return LifeModel.get(name)

    def recorded(self, row: WorkflowInstance) -> tuple[Any, Any, Any]:
        """What the steps have recorded, as the output has it."""
        values = {step.name: step.output for step in row.steps.filter(run_number=row.run_number, kind="do")}
        return [values["first"], values["also"]], [values["left"], values["right"]], values["last"]

    def complete_before(self, row: WorkflowInstance, target: StepRecord | None) -> set[Any]:
        """Identities of the complete steps that were started before ``target``."""
        if target is None:
            return set()
        steps = row.steps.filter(run_number=row.run_number, seq__lt=target.seq, status="complete")
        return set(steps.values_list("scope", "kind", "name", "count"))

    def later(self, found: dict[Any, Any], key: tuple[int, int, str]) -> Any:
        """The value that a record has under a later run number."""
        runs = [run for pk, run, label in found if (pk, label) == (key[0], key[2]) and run > key[1]]
        assert runs, f"{key} is gone"
        return found[(key[0], min(runs), key[2])]

    def picture(self, row: WorkflowInstance) -> Any:
        """All columns of the instance, its steps and its waits."""
        values = WorkflowInstance.objects.filter(pk=row.pk).values().get()
        steps = list(row.steps.order_by("id").values())
        return values, steps, list(row.pending_events.order_by("id").values()), row.history.count()

    def verb(self, row: WorkflowInstance, verb: str) -> bool:
        """Apply a verb; whether it was done. It must be done exactly where the table says so."""
        row.refresh_from_db()
        status, before = row.status, self.picture(row)
        expected = ALLOWED[verb].get(status)
        if verb == "undo" and expected and not self.undoable(row):
            expected = "terminated"
        if verb == "retry" and row.rollback and row.rollback["outcome"] == "failed":
            expected = "rolling_back"
        elif verb == "retry" and row.rollback:
            expected = None
        try:
            call(row, verb)
        except InvalidTransition as error:
            assert expected is None, f"{verb} of a {status} instance was refused: {error}"
            assert error.status == status and self.picture(row) == before
            return False
        assert expected is not None, f"{verb} of a {status} instance was accepted"
        assert row.status == expected, f"{verb}: {status} -> {row.status}, not {expected}"
        if verb in ("terminate", "restart", "undo"):
            assert row.lease_token is None and not row.holds_slot
        if verb == "retry":
            self.again[row.pk] += 1
        return True

    def undoable(self, row: WorkflowInstance) -> bool:
        """Whether the first step may have had an effect that its handler undoes."""
        step = row.steps.filter(run_number=row.run_number, name="first").first()
        return row.params["undone"] and step is not None and step.attempts > 0

    def answer(self, row: WorkflowInstance) -> None:
        """What its open wait waits for."""
        pending = PendingEvent.objects.open().filter(instance=row).first()
        if pending is not None and pending.kind == "wait_for_approval":
            pending.approve(by=None)
        elif pending is not None:
            self.send_to(row)

    def send_to(self, row: WorkflowInstance) -> None:
        """Send an event; it is refused exactly where nobody can ever read it."""
        row.refresh_from_db()
        status = row.status
        try:
            sent = row.send_event("go", "hello")
        except InvalidTransition:
            assert status in EVENTS_REFUSED
        else:
            assert status not in EVENTS_REFUSED
            self.sent[sent.pk] = row.instance_id

    def work(self, row: WorkflowInstance) -> None:
        """Claim and execute the row, if it is due."""
        for claimed in look(USING, pk=row.pk).taken:
            claimed.lease.renewed = float("inf")
            self.mortal, self.token = Mortal(claimed.lease), claimed.lease.token
            try:
                execute(claimed, interceptor=self.mortal, renew=False)
            except ProcessDied:
                pass
            finally:
                self.mortal = self.token = None
            assert connection.get_autocommit() and not connection.in_atomic_block
            after = WorkflowInstance.objects.get(pk=row.pk)
            died = claimed.lease.lost and after.lease_token == claimed.lease.token
            assert died or after.lease_token is None, "the execution has kept its lease"

    def in_body(self, instance_id: str, name: str) -> str:
        """What a body does, and what must be true when it begins."""
        row = self.row(instance_id)
        assert row.status == "running", f"the body of {name} began while the instance was {row.status}"
        assert row.lease_token == self.token, "a body began under a lease that is lost"
        done = row.steps.filter(run_number=row.run_number, kind="do", name=name, status="complete")
        assert not done.exists(), f"the body of {name} ran again after its checkpoint (promise 2)"
        record = row.steps.filter(run_number=row.run_number, kind="do", name=name).first()
        key = f"{row.run_number if record is None else record.key_run} {name}"
        self.begun[row.pk, key] += 1
        if name == "last":
            assert self.begun[row.pk, key] <= 1 + self.again[row.pk], "retries=0 began twice (promise 2)"
        verbs, end = Script.plans.pop(0) if Script.plans and not self.closing else ((), "fine")
        for verb in verbs:
            self.send_to(row) if verb == "send" else self.verb(row, verb)
        if end == "fail":
            raise RuntimeError(f"{name} fails")
        assert self.mortal is not None
        self.mortal.dies = end == "die"
        return f"result of {name}"

    def in_handler(self, instance_id: str) -> None:
        """What a rollback handler does, and what must be true when it begins."""
        row = self.row(instance_id)
        assert (row.status, row.lease_token) == ("rolling_back", self.token)
        step = row.steps.filter(run_number=row.run_number, name="first").get()
        assert step.rollback_status not in ("complete", "failed"), "what is undone was undone again"
        verbs, end = Script.plans.pop(0) if Script.plans and not self.closing else ((), "fine")
        for verb in verbs:
            self.send_to(row) if verb == "send" else self.verb(row, verb)
        if end == "fail":
            raise RuntimeError("cannot be undone")

    def advance(self, seconds: float) -> None:
        """Move the clock; whoever has a lease then is dead."""
        WorkflowInstance.objects.filter(lease_token__isnull=False).update(suspect=True)
        clock.move(clock.host_now() + timedelta(seconds=max(seconds, 0.001)))
