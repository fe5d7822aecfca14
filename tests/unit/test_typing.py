"""mypy --strict accepts the documentation's programs and refuses wrong uses (design 5)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).resolve().parents[2]
ACCEPTANCE = ROOT / "tests" / "acceptance"
PROGRAMS = [*sorted((ACCEPTANCE / "shop").glob("*.py")), ACCEPTANCE / "test_api_programs.py"]
WRONG = Path(__file__).with_name("typing_errors.py")
_ERROR = re.compile(r"^(?P<path>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[a-z-]+)\]$")
_MARK = re.compile(r"# E: (?P<code>[a-z-]+)$")


@pytest.fixture(scope="module")
def reported() -> dict[Path, dict[int, set[str]]]:
    """What the project's mypy reports on the programs and on the wrong uses: the codes at each line of each file."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--explicit-package-bases",
        "--no-error-summary",
        "--hide-error-context",
    ]
    files = [str(path.relative_to(ROOT)) for path in (*PROGRAMS, WRONG)]
    environment = {**os.environ, "MYPYPATH": str(ACCEPTANCE)}
    done = subprocess.run([*command, *files], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[Path, dict[int, set[str]]] = {}
    for line in done.stdout.splitlines():
        if match := _ERROR.match(line):
            lines = found.setdefault(ROOT / match["path"], {})
            lines.setdefault(int(match["line"]), set()).add(match["code"])
    return found


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_the_programs_are_accepted(path: Path, reported: dict[Path, dict[int, set[str]]]) -> None:
    assert reported.get(path, {}) == {}


def test_each_wrong_use_is_refused_and_nothing_else(reported: dict[Path, dict[int, set[str]]]) -> None:
    marked = {
        number: {match["code"]}
        for number, line in enumerate(WRONG.read_text().splitlines(), start=1)
        if (match := _MARK.search(line))
    }
    assert marked
    assert reported.get(WRONG, {}) == marked
