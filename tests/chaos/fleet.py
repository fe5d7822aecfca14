"""The clusters of the chaos test, kept running as a service manager would, and the hand that kills their processes."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from os import kill
from pathlib import Path
from typing import Final

from project.settings import BASE_DIR
from tests.support.postgres import die_with_parent

MARK: Final = "CHAOS_MARK"
"""An environment variable tells which process was started by which cluster: children inherit it, orphans keep it."""
ORPHAN_SECONDS: Final = 15.0
"""How long children may outlive their killed main process; far more than it takes."""
ROLES: Final = {
    "worker": r"ready for work at (\d+)",
    "monitor": r"monitoring at (\d+)",
    "pusher": r"pushing \w+ at (\d+)",
}


def marked(mark: str) -> list[int]:
    """The pids of the living processes with this mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            has = f"{MARK}={mark}\0".encode() in (path / "environ").read_bytes()
            if has and (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(path.name))
        except OSError:
            continue
    return sorted(found)


def parent(pid: int) -> int:
    """The parent's pid; 0 if the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@dataclass
class Dead:
    """A generation of a cluster whose main process is gone: nothing of it may be left after a while."""

    mark: str
    since: float


@dataclass
class Service:
    """One cluster: started, and started again whenever its main process ends."""

    name: str
    log: Path
    environment: Mapping[str, str]
    generation: int = 0
    process: subprocess.Popen[bytes] | None = None
    killed: bool = False

    @property
    def mark(self) -> str:
        return f"{self.name}-{self.generation}"

    def start(self) -> None:
        """Start the next generation."""
        self.generation += 1
        self.killed = False
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "durableflow_cluster"],
                cwd=BASE_DIR,
                env={**self.environment, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def roles(self) -> dict[int, str]:
        """What each living process of this generation is."""
        assert self.process is not None
        said = self.log.read_text(errors="replace")
        known = {int(pid): role for role, pattern in ROLES.items() for pid in re.findall(pattern, said)}
        main, roles = self.process.pid, {}
        for pid in marked(self.mark):
            if pid == main:
                roles[pid] = "main"
            elif parent(pid) == main:
                roles[pid] = "sentinel"
            else:
                roles[pid] = known.get(pid, "new")
        return roles


@dataclass
class Fleet:
    """All clusters. ``tend()`` is called often; ``kill_one()`` once a second."""

    services: list[Service]
    random: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    starts: int = 0
    orphans: int = 0
    stopping: bool = False
    _dead: list[Dead] = field(default_factory=list)

    def start(self) -> None:
        """Start all."""
        for service in self.services:
            service.start()

    def tend(self) -> None:
        """Start again what has ended, and look for what was left behind."""
        for service in self.services:
            assert service.process is not None
            status = service.process.poll()
            if status is None or self.stopping:
                continue
            if status == 0:
                self.problems.append(f"cluster {service.mark} ended with status 0 though nobody had stopped it")
            self._dead.append(Dead(service.mark, time.monotonic()))
            service.start()
            self.starts += 1
        for dead in list(self._dead):
            left = marked(dead.mark)
            if not left or time.monotonic() - dead.since > ORPHAN_SECONDS:
                self._dead.remove(dead)
                self._bury(dead.mark, left)

    def _bury(self, mark: str, left: list[int]) -> None:
        if left:
            self.orphans += len(left)
            self.problems.append(
                f"cluster {mark}: {len(left)} processes outlive its main process by {ORPHAN_SECONDS:g} s"
            )
        for pid in left:
            with suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)

    def kill_one(self) -> None:
        """kill -9 a random process of a random cluster."""
        everybody = {pid: role for service in self.services for pid, role in service.roles().items()}
        if everybody:
            pid = self.random.choice(sorted(everybody))
            with suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
                self.kills[everybody[pid]] += 1

    def stop(self, seconds: float) -> None:
        """SIGTERM to every main process: each ends with status 0, and leaves nothing."""
        self.stopping = True
        for service in self.services:
            assert service.process is not None
            if service.process.poll() is None:
                service.process.terminate()
        end = time.monotonic() + seconds
        for service in self.services:
            assert service.process is not None
            try:
                status: int | None = service.process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                status = None
            if status != 0:
                said = "hangs" if status is None else f"gives status {status}"
                self.problems.append(f"cluster {service.mark} {said} at its stop")
            self._dead.append(Dead(service.mark, time.monotonic()))
        while self._dead and time.monotonic() < end:
            self.tend()
            time.sleep(0.05)
        for dead in self._dead:
            self._bury(dead.mark, marked(dead.mark))
        self._dead.clear()

    def kill_all(self) -> None:
        """Whatever happened: nothing is left."""
        for service in self.services:
            for generation in range(1, service.generation + 1):
                for pid in marked(f"{service.name}-{generation}"):
                    with suppress(ProcessLookupError):
                        kill(pid, signal.SIGKILL)
            if service.process is not None:
                service.process.wait()
