"""A real cluster on the test database, in processes of its own, for as long as a test needs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from durableflow.core.transactions import write_transaction
from project.settings import BASE_DIR
from tests.support.database import child_environment
from tests.support.postgres import die_with_parent

QUIET_SECONDS = 0.3
"""A process that has used no processor time for so long waits for something."""

START_SECONDS = 60.0
"""Far more than anything takes, for a machine that is busy with other tests."""


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
    """Wait until ``condition()`` is true; fail with ``what`` if that takes longer than ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


class ClusterProcess:
    """``manage.py durableflow_cluster`` in a process group of its own."""

    def __init__(self, log: Path, environment: Mapping[str, str], command: str = "durableflow_cluster") -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", command],
                cwd=BASE_DIR,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def wait_until_running(self) -> None:
        """Until django-q2 says that it runs."""
        until(lambda: self.said(" running.") or self.process.poll() is not None, "cluster runs", START_SECONDS)
        assert self.process.poll() is None, self.log.read_text()

    def said(self, words: str) -> bool:
        """Whether the log holds these words."""
        return words in self.log.read_text(errors="replace")

    def stop(self, number: int = signal.SIGTERM, *, group: bool = False, seconds: float = 30.0) -> int:
        """Send a signal, to the main process or to all, and give the exit status."""
        if group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def alive(self) -> bool:
        """Whether any process of the cluster is left. One that has ended and waits for the init process to notice is not."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return _any_runs(self.process.pid)

    def idle_readers(self, count: int) -> list[int]:
        """Wait until ``count`` workers and monitors are there and do nothing, so that they wait for their queues; their
        pids (Linux)."""
        before: dict[int, int] = {}
        quiet_since = time.monotonic()

        def idle() -> bool:
            nonlocal before, quiet_since
            now = {pid: _ticks(pid) for pid in self._readers()}
            if now != before:
                before, quiet_since = now, time.monotonic()
            return len(now) == count and time.monotonic() - quiet_since > QUIET_SECONDS

        until(idle, f"{count} readers are idle")
        return list(before)

    def _readers(self) -> list[int]:
        said = re.findall(r"(?:ready for work|monitoring) at (\d+)", self.log.read_text(errors="replace"))
        alive = {pid for sentinel in _children(self.process.pid) for pid in _children(sentinel)}
        return sorted(alive & {int(pid) for pid in said})

    def sentinel(self) -> int:
        """The pid of the sentinel."""
        [pid] = _children(self.process.pid)
        return pid

    def members(self) -> list[int]:
        """The sentinel's children: workers, monitor, pusher."""
        return _children(self.sentinel())

    def role(self, role: str) -> int:
        """The pid of the living ``monitor`` or ``pusher``, 0 while there is none."""
        words = {"monitor": "monitoring at", "pusher": "pushing tasks at"}[role]
        said = re.findall(rf"{words} (\d+)", self.log.read_text(errors="replace"))
        alive = set(self.members())
        return next((int(pid) for pid in reversed(said) if int(pid) in alive), 0)

    def freeze(self, pid: int = 0) -> None:
        """SIGSTOP of one process, or of all, at a moment at which it holds no lock of SQLite's: else nobody could write until
        it is thawed, the test neither. Returns when nothing of it runs any more."""
        with write_transaction("default"):
            self._signal(pid, signal.SIGSTOP)
            until(lambda: _stands_still(self.process.pid, pid), "nothing of it runs any more")

    def thaw(self, pid: int = 0) -> None:
        """SIGCONT of one process, or of all."""
        self._signal(pid, signal.SIGCONT)

    def _signal(self, pid: int, number: int) -> None:
        if pid:
            os.kill(pid, number)
        else:
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End everything at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        until(lambda: not self.alive(), "all processes of the cluster are gone")


def _any_runs(group: int) -> bool:
    """Whether a process of the group is no zombie; also where that cannot be seen (Linux alone shows it)."""
    return not Path("/proc/self/stat").exists() or any(state not in "ZX" for _pid, state in _states(group))


def _states(group: int, which: str = "[0-9]*/stat") -> list[tuple[int, str]]:
    """Pid and state of each process of the group, or of each thread (Linux)."""
    found = []
    for stat in Path("/proc").glob(which):
        try:
            state, _parent, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group:
            found.append((int(stat.parts[2]), state))
    return found


def _stands_still(group: int, pid: int) -> bool:
    """Whether no thread of the process, or of the group, can run."""
    return all(state in "TtZX" for _pid, state in _states(group, f"{pid or '[0-9]*'}/task/[0-9]*/stat"))


def _ticks(pid: int) -> int:
    """Processor time that a process has used; -1 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return int(fields[11]) + int(fields[12])


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def cluster(
    log: Path,
    *,
    durableflow: Mapping[str, Any] | None = None,
    q_cluster: Mapping[str, Any] | None = None,
    constants: Mapping[str, float] | None = None,
    **extra: str,
) -> Iterator[ClusterProcess]:
    """A running cluster with changed settings, and changed ``constants`` by dotted name; nothing of it is left
    afterwards."""
    environment = child_environment(
        DJANGO_SETTINGS_MODULE="tests.support.cluster_settings",
        TEST_DURABLEFLOW=json.dumps(durableflow or {}),
        TEST_Q_CLUSTER=json.dumps(q_cluster or {}),
        TEST_CONSTANTS=json.dumps(constants or {}),
        **extra,
    )
    process = ClusterProcess(log, environment)
    try:
        process.wait_until_running()
        yield process
    except BaseException:
        sys.stderr.write(f"--- {log}\n{log.read_text(errors='replace')[-8000:]}\n")
        raise
    finally:
        process.kill()
