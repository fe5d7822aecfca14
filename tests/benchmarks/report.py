"""The table and the JSON of ``make bench`` (design 11 and 12): plain Python, no measuring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Found = Mapping[str, Mapping[str, Any]]
"""What was measured: database, then row, then figures."""

BOTH = ("postgresql", "sqlite")
PER_DATABASE: dict[str, dict[str, tuple[str, ...]]] = {
    "checkpoint": {"postgresql": ("ratio",), "sqlite": ("ms",)},
    "instances": {"postgresql": ("per_s", "ratio_to_absurd"), "sqlite": ("per_s",)},
    "start": dict.fromkeys(BOTH, ("p50_ms", "p95_ms")),
    "event": dict.fromkeys(BOTH, ("p50_ms", "p95_ms")),
    "timer": dict.fromkeys(BOTH, ("p50_ms", "p95_ms")),
}
SLOWER_COUNTS = {
    "kill": "seconds",
    "io_pool": "seconds",
    "replay": "seconds",
    "claim_million": "ms",
    "admin_list_million": "ms",
    "idle": "cpu_percent",
}
ROWS = (*PER_DATABASE, *SLOWER_COUNTS)


@dataclass(frozen=True)
class Bar:
    """One line of the table. ``database`` and ``row`` say where its figure is, ``limit`` what it must keep."""

    label: str
    row: str
    database: str
    key: str
    limit: float | None = None
    unit: str = "ms"
    least: bool = False

    def kept(self, value: float) -> bool:
        """Whether the bar is reached; a line without a bar always is."""
        return self.limit is None or (value >= self.limit if self.least else value <= self.limit)


def _latency(label: str, row: str, postgresql: tuple[float, float], sqlite: tuple[float, float]) -> list[Bar]:
    limits = {"postgresql": postgresql, "sqlite": sqlite}
    return [
        Bar(f"{label}, p{percent}", row, database, f"p{percent}_ms", limits[database][position])
        for database in BOTH
        for position, percent in enumerate((50, 95))
    ]


def _alike(label: str, row: str, key: str, limit: float, unit: str) -> list[Bar]:
    return [Bar(label, row, database, key, limit, unit) for database in BOTH]


BARS = (
    Bar("checkpoint / floor", "checkpoint", "postgresql", "ratio", 1.25, "x"),
    Bar("checkpoint", "checkpoint", "sqlite", "ms", 0.3),
    Bar("instances of 3 steps / Absurd", "instances", "postgresql", "ratio_to_absurd", 3, "x", least=True),
    Bar("instances of 3 steps", "instances", "postgresql", "per_s", None, "/s"),
    Bar("instances of 3 steps", "instances", "sqlite", "per_s", None, "/s"),
    *_latency("idle start", "start", (6, 15), (12, 25)),
    *_latency("event to body", "event", (6, 15), (12, 25)),
    *_latency("timer late", "timer", (5, 15), (5, 15)),
    *_alike("worker killed", "kill", "seconds", 2, "s"),
    Bar("host lost (lease + lease/3)", "lost_host", "postgresql", "seconds", 20, "s"),
    *_alike("200 x 50 ms of I/O", "io_pool", "seconds", 0.6, "s"),
    *_alike("replay of 10,000 steps", "replay", "seconds", 0.15, "s"),
    *_alike("claim beside 1,000,000", "claim_million", "ms", 1, "ms"),
    *_alike("admin lists of 1,000,000", "admin_list_million", "ms", 300, "ms"),
    *_alike("idle cluster, of a core", "idle", "cpu_percent", 2, "%"),
)


def figure(found: Found, database: str, row: str, key: str) -> float | None:
    """One figure; None if it was not measured, or failed."""
    value = found.get(database, {}).get(row, {}).get(key)
    return value if isinstance(value, int | float) else None


def table(found: Found) -> str:
    """A line for each figure with its bar, and whether it is kept; rows that failed say why at the end."""
    lines = [f"{'':32}{'':12}{'bar':>10}{'measured':>12}"]
    for bar in BARS:
        value = figure(found, bar.database, bar.row, bar.key)
        if bar.row not in found.get(bar.database, {}):
            continue
        limit = "" if bar.limit is None else f"{'>=' if bar.least else '<='} {bar.limit:g}"
        if value is None:
            verdict, shown = "not measured", ""
        else:
            verdict, shown = "" if bar.limit is None else "ok" if bar.kept(value) else "NOT", f"{value:g} {bar.unit}"
        lines.append(f"{bar.label:32}{bar.database:12}{limit:>10}{shown:>12}  {verdict}".rstrip())
    for database, rows in found.items():
        lines += [f"{database} {row} failed: {data['failed']}" for row, data in rows.items() if "failed" in data]
    return "\n".join(lines)


def peers_table(peers: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for each peer."""
    lines = [f"{'peer':28}{'1,000 steps / floor':>20}{'3 steps, /s':>14}{'start p50/p95':>16}{'event p50/p95':>16}"]
    for name, rows in peers.items():
        told = rows.get("settings", {})
        cells = (
            _cell(rows, "steps", lambda row: f"{row['ratio']:g} x"),
            _cell(rows, "instances", lambda row: f"{row['per_s']:g}"),
            _cell(rows, "start", lambda row: f"{row['p50_ms']:g}/{row['p95_ms']:g}"),
            _cell(rows, "event", lambda row: f"{row['p50_ms']:g}/{row['p95_ms']:g}"),
        )
        title = f"{told.get('peer', name)} {told.get('version', '')}".strip()
        lines.append(f"{title:28}{cells[0]:>20}{cells[1]:>14}{cells[2]:>16}{cells[3]:>16}")
    lines += [f"{name} failed: {rows['failed']}" for name, rows in peers.items() if "failed" in rows]
    return "\n".join(lines)


def _cell(rows: Mapping[str, Any], row: str, show: Callable[[Any], str]) -> str:
    data = rows.get(row)
    return "-" if not data or "failed" in data else show(data)


def with_ratio(found: Found, peers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """``found`` with ``ratio_to_absurd``: our instances per second by Absurd's; None without Absurd."""
    result = {database: dict(rows) for database, rows in found.items()}
    ours, theirs = figure(found, "postgresql", "instances", "per_s"), figure(peers, "absurd", "instances", "per_s")
    if "instances" in result.get("postgresql", {}):
        ratio = round(ours / theirs, 2) if ours and theirs else None
        result["postgresql"]["instances"] = {**result["postgresql"]["instances"], "ratio_to_absurd": ratio}
    return result


def shaped(found: Found, peers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON of the last line: the agreed keys, null where nothing was measured, with all figures beside them.

    Where the agreed key is one figure for both databases, it is the slower one's.
    """
    result: dict[str, Any] = {}
    for row, databases in PER_DATABASE.items():
        result[row] = {
            database: {**dict.fromkeys(keys), **found.get(database, {}).get(row, {})}
            for database, keys in databases.items()
        }
    for row, key in SLOWER_COUNTS.items():
        values = [value for database in BOTH if (value := figure(found, database, row, key)) is not None]
        details = {database: found[database][row] for database in BOTH if row in found.get(database, {})}
        result[row] = {key: max(values) if values else None, **details}
    lost = found.get("postgresql", {}).get("lost_host")
    if lost:
        result["kill"]["lost_host"] = lost
    if peers:
        result["instances"]["peers"] = dict(peers)
    return result
