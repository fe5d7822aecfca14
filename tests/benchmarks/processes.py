"""Processes of a measurement: their descendants, their CPU time, and an end to all of them. Linux (``/proc``)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STOP_SECONDS = 20
TICKS = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the name, which may hold spaces; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def family(root: int) -> list[int]:
    """``root`` and all its descendants that are alive."""
    parents = {int(entry): _stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
    found = [root] if parents.get(root) else []
    for pid in found:
        found += [child for child, stat in parents.items() if stat and int(stat[1]) == pid]
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time that the processes have used so far."""
    return sum(int(stat[11]) + int(stat[12]) for stat in map(_stat, pids) if stat) / TICKS


def kill(pids: Sequence[int]) -> None:
    """SIGKILL to each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def end(process: subprocess.Popen[Any], seconds: float = STOP_SECONDS) -> None:
    """Ask the leader of a session to stop, wait, then kill what is left of the session."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    kill(session(process.pid))
    process.wait()


def session(leader: int) -> list[int]:
    """All processes of the session that ``leader`` began, whoever is their parent by now."""
    stats = {int(entry): _stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
    return [pid for pid, stat in stats.items() if stat and int(stat[3]) == leader]


def output(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> Any:
    """The JSON on the last line that ``command`` prints; RuntimeError if it fails or takes too long."""
    process = subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, _nothing = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command)} did not end in {seconds:.0f} s.") from None
    finally:
        end(process)
    lines = printed.strip().splitlines()
    if process.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}.")
    return json.loads(lines[-1])
