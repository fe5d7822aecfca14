"""The clusters of the chaos test, kept running as a service manager would, and the hand that kills and freezes their
processes."""

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
from tests.chaos.verdict import Line, write
from tests.support.postgres import die_with_parent

MARK: Final = "CHAOS_MARK"
"""An environment variable tells which process was started by which cluster: children inherit it, orphans keep it."""
ORPHAN_SECONDS: Final = 15.0
"""How long children may outlive their killed main process; far more than it takes."""
REPLACE_SECONDS: Final = 60.0
"""How long a cluster may take to stop while others work; bodies take a second."""
FREEZES: Final = (0.5, 1.5, 2.5)
"""Of the lease: how long a process is frozen."""
FREEZE_WORKERS: Final = 0.5
READY_SHARE: Final = 0.8
"""So often it is a process of a cluster that has said that it runs."""
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
class Frozen:
    """A stopped process, until when, and for how long it was to be stopped."""

    pid: int
    until: float
    seconds: float


@dataclass
class Replaced:
    """A generation that was asked to stop. Nobody harms it any more: its exit status counts."""

    mark: str
    process: subprocess.Popen[bytes]
    since: float


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
    said_before: int = 0

    @property
    def mark(self) -> str:
        return f"{self.name}-{self.generation}"

    def start(self) -> None:
        """Start the next generation."""
        self.generation += 1
        self.said_before = self.log.stat().st_size if self.log.exists() else 0
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

    def ready(self) -> bool:
        """Whether this generation has said that it runs."""
        return b" running." in self.log.read_bytes()[self.said_before :]

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
    """All clusters. ``tend()`` is called often; ``kill_one()`` once a second, ``freeze_one()`` and ``replace_one()`` now and
    then. ``ledger``: is told who is frozen when."""

    services: list[Service]
    random: random.Random
    ledger: str
    lease: float
    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    frozen: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    replaced: int = 0
    orphans: int = 0
    stopping: bool = False
    _dead: list[Dead] = field(default_factory=list)
    _frozen: list[Frozen] = field(default_factory=list)
    _leaving: list[Replaced] = field(default_factory=list)
    _killed: set[int] = field(default_factory=set)

    def start(self) -> None:
        """Start all."""
        for service in self.services:
            service.start()

    def tend(self) -> None:
        """Start again what has ended, thaw, and look for what was left behind."""
        self._thaw()
        self._see_off()
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
        everybody = self._everybody()
        if everybody:
            pid = self.random.choice(sorted(everybody))
            with suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
                self.kills[everybody[pid]] += 1
                self._killed.add(pid)

    def _everybody(self) -> dict[int, str]:
        """Whom something may be done to: mostly processes of clusters that run, else on a busy machine none would ever get
        that far."""
        ready = [service for service in self.services if service.ready()]
        among = ready if self.random.random() < READY_SHARE else self.services
        return {pid: role for service in among for pid, role in service.roles().items()}

    def freeze_one(self) -> None:
        """SIGSTOP a random process, every second time a worker, for a part of the lease or for longer than lease and takeover
        take; SIGCONT comes by ``tend()``."""
        everybody = self._everybody()
        workers = [pid for pid, role in everybody.items() if role == "worker"]
        pids = sorted(workers if workers and self.random.random() < FREEZE_WORKERS else everybody)
        if not pids:
            return
        pid, seconds = self.random.choice(pids), self.lease * self.random.choice(FREEZES)
        write(self.ledger, Line("frozen", pid=pid, seconds=seconds))
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGSTOP)
            self.frozen[everybody[pid]] += 1
            self._frozen.append(Frozen(pid, time.monotonic() + seconds, seconds))

    def _thaw(self, *, all_of_them: bool = False) -> None:
        for frozen in list(self._frozen):
            if all_of_them or time.monotonic() >= frozen.until:
                self._frozen.remove(frozen)
                # Who was late in thawing has stopped it for longer.
                stopped = frozen.seconds + max(time.monotonic() - frozen.until, 0)
                write(self.ledger, Line("thawed", pid=frozen.pid, seconds=stopped))
                with suppress(ProcessLookupError):
                    kill(frozen.pid, signal.SIGCONT)

    def replace_one(self) -> None:
        """A deploy: SIGTERM to a cluster that runs, and at the same moment a new one in its place."""
        ready = [service for service in self.services if service.ready() and self._is_sound(service)]
        if not ready:
            return
        service = self.random.choice(ready)
        assert service.process is not None
        if service.process.poll() is not None:
            return
        service.process.terminate()
        self._leaving.append(Replaced(service.mark, service.process, time.monotonic()))
        self.replaced += 1
        service.start()

    def _is_sound(self, service: Service) -> bool:
        """Whether no process of this generation is frozen and its sentinel lives: else its exit status says nothing."""
        roles = service.roles()
        frozen = {frozen.pid for frozen in self._frozen}
        guarded = any(role == "sentinel" and pid not in self._killed for pid, role in roles.items())
        return guarded and not frozen & set(roles)

    def _see_off(self) -> None:
        for old in list(self._leaving):
            status, late = old.process.poll(), time.monotonic() - old.since > REPLACE_SECONDS
            if status is None and not late:
                continue
            self._leaving.remove(old)
            if status is None:
                self.problems.append(f"cluster {old.mark} has not stopped {REPLACE_SECONDS:g} s after SIGTERM")
                old.process.kill()
            elif status != 0:
                self.problems.append(f"cluster {old.mark} gives status {status} when it is replaced")
            self._dead.append(Dead(old.mark, time.monotonic()))

    def stop(self, seconds: float) -> None:
        """SIGTERM to every main process: each ends with status 0, and leaves nothing."""
        self.stopping = True
        self._thaw(all_of_them=True)
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
        while (self._dead or self._leaving) and time.monotonic() < end:
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
