"""How the processes of a cluster are made: none outlives its parent, and none dies of a signal that was sent to the
whole group (design 4, "children die with their parent, group SIGTERM ends cleanly")."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, Final

ORPHANED: Final = 72
"""Exit status of a process whose parent was gone before it could ask to die with it."""
STOPPED: Final = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG: Final = 1
_LOOK: Final = 0.5

# Loaded here: between a fork and the first line of the child nothing should be loaded.
_LIBC: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


def context() -> Any:
    """How processes are made: by a fork wherever there is one, as django-q2 does it."""
    return get_context("fork") if "fork" in get_all_start_methods() else get_context()


def settle(parent: int) -> None:
    """In a new process, first of all: die with ``parent``, and leave SIGTERM and SIGINT to the main process.

    A signal to the whole group reaches everybody; the main process alone acts on it. The handler is a function that does
    nothing: an ignored signal would stay ignored in the programs that bodies start.
    """
    for number in STOPPED:
        signal.signal(number, _nothing)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), name="durableflow-parent", daemon=True).start()
    if os.getppid() != parent:
        os._exit(ORPHANED)


@contextmanager
def signals_held() -> Iterator[None]:
    """SIGTERM and SIGINT come after the block: for one in which somebody else's code would have them end this process."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    pass


def _watch(parent: int) -> None:
    """Where the system does not kill orphans."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(ORPHANED)


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    return False


def ended(status: int | None) -> str:
    """Why a process ended, for people: ``SIGKILL`` or ``exit status 70``."""
    if status is None:
        return "an unknown cause"
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"


def kill(process: BaseProcess, seconds: float = 5.0) -> None:
    """End a child at once, and see that it is gone."""
    with suppress(ValueError, OSError):
        process.kill()
        process.join(seconds)


class Flag:
    """A sign from one process to others that nobody can be killed with: no lock, no list of those who wait."""

    def __init__(self) -> None:
        self._value = get_context().RawValue("b", 0)
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._rope, False)

    def set(self) -> None:
        """Give the sign. A signal handler may call this."""
        self._value.value = 1
        self.ring()

    def ring(self) -> None:
        """Wake one that waits, without the sign."""
        with suppress(OSError):
            os.write(self._rope, b".")

    def is_set(self) -> bool:
        """Whether it was given."""
        return bool(self._value.value)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the sign, at most ``timeout`` seconds. Only one process may wait."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            if select.select([self._bell], [], [], left)[0]:
                with suppress(OSError):
                    os.read(self._bell, 512)
        return self.is_set()

    def bell(self) -> int:
        """The descriptor that becomes readable when it rings."""
        return self._bell

    def hush(self) -> None:
        """Take the ringing off."""
        with suppress(OSError):
            os.read(self._bell, 512)
