"""Child processes, each in a process group of its own: started, watched, started again, ended with all descendants."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from project.demo.runner.errors import DemoFailed

GRACE = 15.0
"""Seconds between SIGTERM and SIGKILL: above the cluster's own SHUTDOWN_GRACE."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Child:
    """One program with its log file."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path) -> None:
        self.name = name
        self.log = log
        self.command = list(command)
        self.env = dict(env)
        self.cwd = cwd
        self.starts = 0
        self.ended_at: float | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program. On Linux it is asked to end (SIGTERM) when this process is killed outright."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab" if self.starts else "wb") as log:
            self.process = subprocess.Popen(  # noqa: S603  our own management commands
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                cwd=self.cwd,
                start_new_session=True,
                preexec_fn=_end_with_parent if _libc else None,
            )
        self.starts += 1
        self.ended_at = None

    def ended(self) -> int | None:
        """The exit code once the program has ended, else None. Remembers since when."""
        code = self.process.poll() if self.process else None
        if code is not None and self.ended_at is None:
            self.ended_at = time.monotonic()
        return code

    def last_lines(self, count: int = 8) -> str:
        """The end of its log, for the message of a failure."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])


class Children:
    """The children of one demo. ``revive`` starts ended ones again; ``stop`` ends them all."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._children: list[Child] = []
        self._groups: set[int] = set()
        if _libc:
            # Orphans of our children come to us, so that we can reap them.
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(self, child: Child) -> None:
        """Start a child and keep it."""
        child.start()
        if child not in self._children:
            self._children.append(child)
        if child.process:
            self._groups.add(child.process.pid)

    def drop(self, child: Child) -> None:
        """Stop caring for a child that has ended. Its group is still looked at in ``stop``."""
        self._children.remove(child)

    def revive(self, child: Child, *, after: float, replaced: Callable[[], bool], most: int = 4) -> None:
        """Start a child again that has been down for ``after`` seconds, unless somebody else ``replaced()`` it.

        Raises ``DemoFailed`` where it had to be started more than ``most`` times.
        """
        code = child.ended()
        if child.process is None or child.ended_at is None:
            return
        if time.monotonic() - child.ended_at < after or replaced():
            return
        if child.starts >= most:
            raise DemoFailed(
                f"The {child.name} ended {child.starts} times (last exit code {code}). "
                f"Its log, {child.log}:\n{child.last_lines()}"
            )
        self._say(f"the {child.name} has ended (exit code {code}): starting it again")
        _signal_group(child.process.pid, signal.SIGKILL)  # what it left behind
        self.start(child)

    def stop(self) -> None:
        """End everything: ask the children to end, then their groups, then kill what is left. Takes little over the grace."""
        stages: tuple[tuple[Callable[[], None], float, Callable[[], bool]], ...] = (
            (self._ask_children, GRACE, self._children_live),
            (lambda: self._signal_groups(signal.SIGTERM), 2.0, self._groups_live),
            (lambda: self._signal_groups(signal.SIGKILL), 5.0, self._groups_live),
        )
        for act, seconds, going_on in stages:
            if not self._groups_live():
                return
            act()
            limit = time.monotonic() + seconds
            while going_on() and time.monotonic() < limit:
                time.sleep(0.05)

    def _ask_children(self) -> None:
        for child in self._children:
            if child.process and child.ended() is None:
                child.process.terminate()

    def _children_live(self) -> bool:
        return None in [child.ended() for child in self._children if child.process]

    def _signal_groups(self, signum: int) -> None:
        for group in self._groups:
            _signal_group(group, signum)

    def _groups_live(self) -> bool:
        self._children_live()  # a child is reaped by its own object first, which then knows its exit code
        self._groups = {group for group in self._groups if _group_lives(group)}
        return bool(self._groups)


def manage(*arguments: str) -> list[str]:
    """The command line of one of this project's management commands, in the same Python."""
    return [sys.executable, "manage.py", *arguments]


def _signal_group(group: int, signum: int) -> None:
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        pass


def _group_lives(group: int) -> bool:
    try:
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _load_libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


_libc = _load_libc()


def _end_with_parent() -> None:
    """Runs in the new process before its program: only a prepared call into the C library, which takes no lock."""
    if _libc:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
