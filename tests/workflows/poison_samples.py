"""Bodies that harm the process they run in, each in a workflow of its own kind."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypedDict

from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, connections, transaction

from durableflow import NonRetryableError, Retries, Step, Workflow, WorkflowEvent, get_step_context
from durableflow.engine import attempts
from durableflow.models import WorkflowInstance
from tests.support.ledger import Ledger

HANG: float = 4.0
"""Seconds that a body in C code does not return; more than its timeout, and in one case than lease and takeover."""
LONG_HANG: float = 8.0
"""More than its timeout and the time after which the watcher gives a main thread up, as tests shorten it."""
PIECE = 1 << 20
ROOM = 64 * PIECE
"""What a body that exhausts the memory may still take."""
_kept: list[bytearray] = []

if "POISON_STUCK_AFTER" in os.environ:
    attempts.STUCK_AFTER = float(os.environ["POISON_STUCK_AFTER"])


class Poison(TypedDict):
    """``kind``: a name in BODIES; ``log``: the ledger."""

    kind: str
    log: str


class UnreadableError(Exception):
    """Even its text fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class DemandingError(Exception):
    """Cannot be made again from its args, nor pickled."""

    def __init__(self, one: Any, *, two: Any) -> None:
        super().__init__(lambda: one)
        self.two = two


def mine() -> WorkflowInstance:
    """The instance whose body runs."""
    context = get_step_context()
    return WorkflowInstance.objects.get(workflow=context.workflow, instance_id=context.instance_id)


def raises(error: Callable[[], BaseException]) -> Callable[[], NoReturn]:
    """A body that raises."""

    def body() -> NoReturn:
        raise error()

    return body


def recurse() -> None:
    """Until Python stops it."""
    recurse()


def swallows() -> str:
    """Catches the time-out, twice, and gives a result that nobody wants."""
    for _ in range(2):
        with contextlib.suppress(BaseException):
            time.sleep(60)
    return "late"


def swallows_for_ever() -> NoReturn:
    """Catches whatever would end it."""
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.05)


def exhausts_memory() -> NoReturn:
    """Takes what the process may have, and leaves it with that limit."""
    limit_memory()
    pieces = []
    while True:
        pieces.append(bytearray(PIECE))


def keeps_memory() -> NoReturn:
    """The same, and nothing of it becomes free: whatever the process does next fails too."""
    limit_memory()
    size = PIECE
    while size > 64:
        try:
            _kept.append(bytearray(size))
        except MemoryError:
            size //= 2
    raise MemoryError


def limit_memory() -> None:
    """The process may take little more than it has."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + ROOM, resource.RLIM_INFINITY))


def cycle() -> dict[str, Any]:
    """Contains itself."""
    value: dict[str, Any] = {}
    value["me"] = value
    return value


def broken_transaction() -> str:
    """An IntegrityError inside of ``atomic()``, caught where it must not be: the block cannot go on, and is left."""
    with contextlib.suppress(transaction.TransactionManagementError), transaction.atomic():
        Group.objects.create(name=f"poison {os.getpid()} {time.monotonic()}")
        with contextlib.suppress(IntegrityError):
            Group.objects.create(pk=Group.objects.latest("pk").pk, name="poison")
        Group.objects.count()
    return "left"


def closes_connections() -> str:
    """Closes what the engine uses, in Django's way and behind its back."""
    connections.close_all()
    connection.ensure_connection()
    connection.connection.close()
    return "closed"


def leaves_block_open() -> str:
    """Enters ``atomic()`` and never leaves."""
    transaction.atomic().__enter__()
    return "open"


def leaves_manual_mode() -> str:
    """Switches autocommit off."""
    connection.set_autocommit(False)
    Group.objects.count()
    return "manual"


def changes_signals() -> str:
    """Takes the signals that the engine and the cluster use."""
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    return "deaf"


def forks() -> int:
    """A child that does nothing, and ends as a child of a fork must."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def child_goes_on() -> str:
    """A child that returns from the body, into an engine that is not its own."""
    if pid := os.fork():
        return "the parent" if os.waitpid(pid, 0)[0] else ""
    return "the child"


def child_exits() -> str:
    """A child that leaves by an exception, through an engine that is not its own."""
    if pid := os.fork():
        os.waitpid(pid, 0)
        return "the parent"
    sys.exit(0)


def starts_threads() -> str:
    """Threads that outlive the body; one of them uses the database."""

    def count() -> None:
        time.sleep(0.2)
        Group.objects.count()
        connections.close_all()

    threading.Thread(target=count).start()
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
    return "started"


def floods() -> int:
    """Five megabytes to the log."""
    return sum(sys.stdout.write("x" * 79 + "\n") for _ in range(65536))


def lowers_recursion_limit() -> int:
    """As low as it goes here."""
    for limit in range(20, 1000):
        with contextlib.suppress(RecursionError):
            sys.setrecursionlimit(limit)
            return limit
    return 0


def many_errors() -> NoReturn:
    """A group within a group."""
    raise BaseExceptionGroup("many", [ValueError("one"), ExceptionGroup("few", [KeyError("two"), UnreadableError()])])


def deletes() -> str:
    """Deletes its own instance."""
    mine().delete()
    return "gone"


def terminates() -> str:
    """Terminates its own instance."""
    mine().terminate()
    return "terminated"


def in_c_code() -> str:
    """C code that lets other threads run and cannot be interrupted."""
    end = time.monotonic() + HANG
    while time.monotonic() < end:
        hashlib.pbkdf2_hmac("sha256", b"x", b"x", 2_000_000)
    return "late"


def in_c_code_with_the_lock() -> str:
    """C code that lets nothing else of this process run: no alarm, no renewal."""
    ctypes.PyDLL(None).usleep(int(HANG * 1e6))
    return "late"


def in_c_code_with_the_lock_for_long() -> str:
    """The same for so long that the watcher would have given it up."""
    ctypes.PyDLL(None).usleep(int(LONG_HANG * 1e6))
    return "late"


BODIES: dict[str, Callable[[], Any]] = {
    "exits": raises(SystemExit),
    "interrupts": raises(KeyboardInterrupt),
    "closes a generator": raises(GeneratorExit),
    "memory": lambda: bytearray(1 << 60),
    "recursion": recurse,
    "recursion limit": lowers_recursion_limit,
    "unreadable error": raises(UnreadableError),
    "demanding error": raises(lambda: DemandingError(1, two=lambda: 2)),
    "local error": raises(lambda: type("Local", (Exception,), {})("x")),
    "error with odd text": raises(lambda: ValueError("nul \0, lone \ud800, long " + "x" * 2_000_000)),
    "error group": many_errors,
    "model": mine,
    "queryset": lambda: WorkflowInstance.objects.all(),
    "lambda": lambda: mine,
    "file": lambda: Path(__file__).open(),
    "cycle": cycle,
    "swallows": swallows,
    "C code": in_c_code,
    "C code with the lock": in_c_code_with_the_lock,
    "C code with the lock for long": in_c_code_with_the_lock_for_long,
    "swallows for ever": swallows_for_ever,
    "exhausts memory": exhausts_memory,
    "keeps memory": keeps_memory,
    "child goes on": child_goes_on,
    "child exits": child_exits,
    "broken transaction": broken_transaction,
    "closed connections": closes_connections,
    "open block": leaves_block_open,
    "manual mode": leaves_manual_mode,
    "signals": changes_signals,
    "forks": forks,
    "threads": starts_threads,
    "floods": floods,
    "deletes": deletes,
    "terminates": terminates,
    "dies": lambda: os._exit(1),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crashes": lambda: ctypes.string_at(0),
}


class ClusterPoison(Workflow[Poison, str]):
    """A harmless step, the poison, and a step that times out, to see that time-outs still work."""

    class Meta:
        step_retries = Retries(limit=1, delay=0)

    def run(self, event: WorkflowEvent[Poison], step: Step) -> str:
        kind, log = event.params["kind"], Ledger(event.params["log"])
        step.do("before", log.add, f"{kind}: before")
        step.do("poison", lambda: self.poison(kind, log), timeout=1 if kind in TIMED else 60)
        step.do("after", log.add, f"{kind}: after")
        return kind

    def poison(self, kind: str, log: Ledger) -> Any:
        """Tell, then harm."""
        log.add(f"{kind}: start {get_step_context().attempt}")
        return BODIES[kind]()


TIMED = {"swallows", "swallows for ever", "C code", "C code with the lock", "C code with the lock for long"}


class ClusterAfterPoison(Workflow[Poison, str]):
    """Two steps in the same process as the poison, one of which has to be interrupted."""

    class Meta:
        step_retries = Retries(limit=0)

    def run(self, event: WorkflowEvent[Poison], step: Step) -> str:
        log = Ledger(event.params["log"])
        step.do("works", log.add, f"{event.params['kind']}: healthy")
        try:
            step.do("hangs", time.sleep, 60, timeout=0.2)
        except TimeoutError:
            return "timed out"
        raise NonRetryableError("The alarm did not come.")
