"""mypy --strict and pyright accept the documentation's programs and refuse wrong uses (design 5).

pyright runs as basedpyright, which is the same checker in a package with its own Node: the ``pyright`` package would fetch
one at its first use.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).resolve().parents[2]
ACCEPTANCE = ROOT / "tests" / "acceptance"
PROGRAMS = [*sorted((ACCEPTANCE / "shop").glob("*.py")), ACCEPTANCE / "test_api_programs.py"]
WRONG = Path(__file__).with_name("typing_errors.py")
FILES = (*PROGRAMS, WRONG)
_MYPY_ERROR = re.compile(r"^(?P<path>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[a-z-]+)\]$")
_MARK = re.compile(r"# E: (?P<codes>[a-z -]+)$")
PYRIGHT = {
    "typeCheckingMode": "standard",
    "pythonVersion": "3.11",
    "include": [str(path) for path in FILES],
    "extraPaths": [str(ROOT), str(ACCEPTANCE)],
    "reportUnnecessaryComparison": "error",  # a condition that is a coroutine, as mypy's truthy-bool
}

Reported: TypeAlias = dict[Path, dict[int, set[str]]]
"""The codes of what a checker reports at each line of each file."""


def marked() -> dict[int, set[str]]:
    """What must be refused: mypy's codes at each line."""
    lines = enumerate(WRONG.read_text().splitlines(), start=1)
    return {number: set(match["codes"].split()) for number, line in lines if (match := _MARK.search(line))}


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def mypy() -> Reported:
    pytest.importorskip("mypy")
    options = ("--strict", "--explicit-package-bases", "--no-error-summary", "--hide-error-context")
    files = [str(path.relative_to(ROOT)) for path in FILES]
    found: Reported = {}
    for line in run("mypy", *options, *files, MYPYPATH=str(ACCEPTANCE)).splitlines():
        if match := _MYPY_ERROR.match(line):
            found.setdefault(ROOT / match["path"], {}).setdefault(int(match["line"]), set()).add(match["code"])
    return found


@pytest.fixture(scope="module")
def pyright(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    if find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    project = tmp_path_factory.mktemp("pyright") / "pyrightconfig.json"
    project.write_text(json.dumps(PYRIGHT))
    report = json.loads(run("basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(project)))
    assert report["summary"]["filesAnalyzed"] >= len(FILES)
    found: Reported = {}
    for problem in report["generalDiagnostics"]:
        if problem["severity"] == "error":
            line = problem["range"]["start"]["line"] + 1
            found.setdefault(Path(problem["file"]), {}).setdefault(line, set()).add(problem.get("rule", "syntax"))
    return found


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_the_programs_are_accepted(path: Path, mypy: Reported) -> None:
    assert mypy.get(path, {}) == {}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_the_programs_are_accepted_by_pyright(path: Path, pyright: Reported) -> None:
    assert pyright.get(path, {}) == {}


def test_each_wrong_use_is_refused_and_nothing_else(mypy: Reported) -> None:
    assert marked()
    assert mypy.get(WRONG, {}) == marked()


def test_each_wrong_use_is_refused_by_pyright_and_nothing_else(pyright: Reported) -> None:
    """Its codes are others; the lines are the same."""
    assert sorted(pyright.get(WRONG, {})) == sorted(marked())
