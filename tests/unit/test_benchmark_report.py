"""The pure parts of ``make bench``: percentiles, the table, and the JSON of design 12."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.benchmarks import __main__ as bench
from tests.benchmarks import databases, processes, report
from tests.benchmarks.figures import median, percentiles

LATE = {"p50_ms": 3.0, "p95_ms": 9.0}


def found(**changed: Any) -> dict[str, dict[str, Any]]:
    """Figures of a run in which everything was measured."""
    postgresql: dict[str, Any] = {
        "checkpoint": {"ratio": 1.1, "ms": 0.4},
        "instances": {"per_s": 600},
        **dict.fromkeys(("start", "event", "timer"), LATE),
        "kill": {"seconds": 0.4},
        "lost_host": {"seconds": 18.1},
        "io_pool": {"seconds": 0.5},
        "replay": {"seconds": 0.05},
        "claim_million": {"ms": 0.5},
        "admin_list_million": {"ms": 120.0},
        "idle": {"cpu_percent": 0.7},
    }
    sqlite = {key: value for key, value in postgresql.items() if key != "lost_host"}
    return {"postgresql": {**postgresql, **changed}, "sqlite": sqlite}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:secret@db:5432/app?sslmode=require", "postgresql://me:secret@db:5432/bench?sslmode=require"),
        ("postgres://postgres@/app?host=/run/pg", "postgres://postgres@/bench?host=/run/pg"),
        ("postgresql:///app?host=/run/pg", "postgresql:///bench?host=/run/pg"),
        ("postgresql:///app", "postgresql:///bench"),
    ],
)
def test_the_database_of_a_measurement_is_never_the_given_one(url: str, expected: str) -> None:
    """A measurement begins by emptying all tables."""
    assert databases.of_the_name(url, "bench") == expected


def test_percentiles_are_the_middle_and_the_nineteenth_of_twenty():
    assert percentiles([*range(1, 101)]) == {"p50_ms": 50.5, "p95_ms": 96}
    assert percentiles([7.04]) == {"p50_ms": 7.0, "p95_ms": 7.0}


def test_percentiles_of_nothing_are_an_error():
    with pytest.raises(ValueError, match="at least one"):
        percentiles([])


def test_median_is_not_moved_by_one_slow_round():
    assert median([0.1, 0.2, 90.0]) == 0.2


def test_the_json_has_exactly_the_agreed_keys():
    """Design 12."""
    shaped = json.loads(
        json.dumps(report.shaped(report.with_ratio(found(), {"absurd": {"instances": {"per_s": 150}}})))
    )
    assert list(shaped) == [
        *("checkpoint", "instances", "start", "event", "timer", "kill", "io_pool", "replay"),
        *("claim_million", "admin_list_million", "idle"),
    ]
    assert shaped["checkpoint"]["postgresql"]["ratio"] == 1.1
    assert shaped["checkpoint"]["sqlite"]["ms"] == 0.4
    assert shaped["instances"]["postgresql"] == {"per_s": 600, "ratio_to_absurd": 4.0}
    assert shaped["start"] == {"postgresql": LATE, "sqlite": LATE}
    assert shaped["kill"]["seconds"] == 0.4
    assert shaped["kill"]["lost_host"] == {"seconds": 18.1}
    assert shaped["idle"]["cpu_percent"] == 0.7


def test_the_peers_figures_stand_inside_an_agreed_key():
    assert report.shaped(found(), {"dbos": {}})["instances"]["peers"] == {"dbos": {}}
    assert set(report.shaped(found(), {"dbos": {}})) == set(report.ROWS)


def test_one_figure_for_both_databases_is_the_slower_one():
    assert report.shaped(found(replay={"seconds": 0.2}))["replay"]["seconds"] == 0.2
    assert report.shaped(found(replay={"seconds": 0.01}))["replay"]["seconds"] == 0.05


def test_what_was_not_measured_is_null():
    shaped = report.shaped({"postgresql": {}, "sqlite": {}})
    assert shaped["checkpoint"] == {"postgresql": {"ratio": None}, "sqlite": {"ms": None}}
    assert shaped["kill"] == {"seconds": None}


@pytest.mark.parametrize("peers", [{}, {"absurd": {"failed": "no"}}, {"absurd": {"instances": {"failed": "no"}}}])
def test_without_absurd_there_is_no_ratio_to_it(peers: dict[str, Any]):
    assert report.with_ratio(found(), peers)["postgresql"]["instances"]["ratio_to_absurd"] is None


def test_the_table_says_which_bars_are_kept():
    lines = report.table(found(checkpoint={"ratio": 1.3}, replay={"failed": "RuntimeError: broken"})).splitlines()
    line = {tuple(text[:44].rsplit(maxsplit=1)): text for text in lines[1:-1]}
    assert line["checkpoint / floor", "postgresql"].endswith("NOT")
    assert line["idle start, p50", "postgresql"].endswith("ok")
    assert line["replay of 10,000 steps", "postgresql"].endswith("not measured")
    assert lines[-1] == "postgresql replay failed: RuntimeError: broken"


def test_a_bar_that_must_be_reached_is_not_kept_from_below():
    bar = next(bar for bar in report.BARS if bar.key == "ratio_to_absurd")
    assert (bar.kept(3.0), bar.kept(2.99)) == (True, False)


def test_rows_that_were_not_asked_for_are_not_in_the_table():
    assert "idle" not in report.table({"postgresql": {"checkpoint": {"ratio": 1.0}}, "sqlite": {}})


def test_each_peer_has_a_line_and_says_why_it_failed():
    rows = {"settings": {"peer": "Absurd", "version": "1"}, "steps": {"ratio": 2}, "start": {"failed": "no"}}
    lines = report.peers_table({"absurd": rows, "dbos": {"failed": "status 1"}}).splitlines()
    assert lines[1].split() == ["Absurd", "1", "2", "x", "-", "-", "-"]
    assert lines[-1] == "dbos failed: status 1"


def test_rows_are_chosen_by_name():
    assert bench.chosen(["event"]) == ["event"]
    assert bench.chosen(["kill"]) == ["kill", "lost_host"]
    assert set(report.ROWS) < set(bench.chosen([]))
    with pytest.raises(SystemExit, match="There are no rows evnt"):
        bench.chosen(["evnt"])


def test_the_rounds_before_and_after_the_peer_count_together():
    assert bench.joined({"rounds": [1, 9]}, {"rounds": [5]}) == {"per_s": 5, "rounds": [1, 9, 5]}
    assert bench.joined({"rounds": [3]}, {"failed": "no"})["per_s"] == 3
    assert bench.joined({"failed": "no"}, {"failed": "no"}) == {"failed": "no"}


def test_the_output_of_a_program_is_its_last_line():
    assert processes.output([sys.executable, "-c", "print('x'); print('[1]')"], os.environ, 60) == [1]


def test_a_program_that_fails_or_hangs_is_an_error_and_leaves_no_process():
    with pytest.raises(RuntimeError, match="status 3"):
        processes.output([sys.executable, "-c", "raise SystemExit(3)"], os.environ, 60)
    program = "import subprocess, sys; subprocess.Popen(['sleep', '300']); print(1, flush=True); sys.stdin.read(); "
    waiting = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert waiting.stdout is not None and waiting.stdin is not None
    waiting.stdout.readline()
    members = processes.family(waiting.pid)
    assert len(members) == 2
    assert set(processes.session(waiting.pid)) == set(members)
    processes.end(waiting)
    waiting.stdout.close()
    waiting.stdin.close()

    def left() -> list[int]:
        return [pid for pid in processes.session(waiting.pid) if processes._stat(pid)[0] != "Z"]

    end = time.monotonic() + 30
    while left() and time.monotonic() < end:  # a killed process takes its moment to end
        time.sleep(0.01)
    assert left() == []
