"""The testing kit under pytest and unittest, in a process of its own: what fails, and how it is told (case TST-01)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.sqlite_only  # the processes use a database in memory

FLOW = """
    from __future__ import annotations

    import pytest
    from django.test import SimpleTestCase, TestCase

    from durableflow import Step, Workflow, WorkflowEvent
    from durableflow.models import WorkflowInstance
    from durableflow.testing import Harness, WorkflowTestMixin


    class RunnerFlow(Workflow[str, str]):
        def run(self, event: WorkflowEvent[str], step: Step) -> str:
            return step.do("work", lambda: event.params)
"""

CASES = """
    def test_mock_is_used(workflows):
        workflows.mock_result("work", "mocked")
        assert workflows.run(RunnerFlow, "real").output == "mocked"


    def test_mock_is_not_used(workflows):
        workflows.mock_result("werk", "mocked")
        assert workflows.run(RunnerFlow, "real").output == "real"


    def test_fails_before_the_mock_is_used(workflows):
        workflows.mock_result("work", "mocked")
        raise KeyError("the reason")


    @pytest.mark.xfail(strict=True, reason="its mock is not used")
    def test_expected_to_fail(workflows):
        workflows.mock_result("werk", "mocked")


    class CaseTests(WorkflowTestMixin, TestCase):
        def test_mock_is_used(self):
            self.workflows.mock_result("work", "mocked")
            assert self.workflows.run(RunnerFlow, "real", instance_id="same").output == "mocked"

        def test_mock_is_not_used(self):
            self.workflows.mock_result("werk", "mocked")
            self.workflows.run(RunnerFlow, "real", instance_id="same")

        def test_fails_before_the_mock_is_used(self):
            self.workflows.mock_result("work", "mocked")
            self.fail("the reason")

        def test_is_skipped_before_the_mock_is_used(self):
            self.workflows.mock_result("work", "mocked")
            self.skipTest("not today")
"""

LOOP = """
    class Loop(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None:
            while True:
                try:
                    step.sleep("for ever", "1 day")
                except BaseException:
                    pass


    def test_loop(workflows):
        workflows.run(Loop, instance_id="endless")
"""


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python command in the repository, on a database in memory."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": "sqlite:///:memory:", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def write(folder: Path, *parts: str) -> Path:
    path = folder / "test_in_a_process.py"
    path.write_text("\n".join(textwrap.dedent(part) for part in parts))
    return path


PYTEST = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", "--rootdir", str(ROOT), "-c"]


def test_pytest_fails_a_test_whose_mock_is_not_used(tmp_path: Path) -> None:
    done = run([*PYTEST, str(ROOT / "pyproject.toml"), "-q", "-rA", str(write(tmp_path, FLOW, CASES))])
    outcomes = sorted(
        line.split(" - ")[0].replace(line.split("::")[0].split(" ", 1)[1], "")
        for line in done.stdout.splitlines()
        if line.startswith(("PASSED", "FAILED", "ERROR", "XFAIL", "XPASS"))
    )
    assert outcomes == [
        "FAILED ::CaseTests::test_fails_before_the_mock_is_used",
        "FAILED ::CaseTests::test_mock_is_not_used",
        "FAILED ::test_fails_before_the_mock_is_used",
        "FAILED ::test_mock_is_not_used",
        "PASSED ::CaseTests::test_mock_is_used",
        "PASSED ::test_mock_is_used",
        "XFAIL ::test_expected_to_fail",
    ], done.stdout
    assert "1 skipped" in done.stdout
    assert done.stdout.count("Nothing has used mock_result('werk'). Steps whose body was due in this test: 'work'.") > 0
    assert "mock_result('work')" not in done.stdout.replace('workflows.mock_result("work"', "")


def test_djangos_runner_fails_them_too(tmp_path: Path) -> None:
    write(tmp_path, FLOW, CASES.replace("@pytest", "# @pytest"))
    done = run(
        ["-m", "django", "test", "--noinput", "test_in_a_process"],
        DJANGO_SETTINGS_MODULE="tests.settings",
        PYTHONPATH=str(tmp_path),
    )
    assert "FAILED (failures=2, skipped=1)" in done.stderr, done.stderr
    assert "AssertionError: Nothing has used mock_result('werk')" in done.stderr


def test_an_endless_loop_ends_the_process_with_its_reason(tmp_path: Path) -> None:
    """ENG-02: what pytest has captured would be lost with the process."""
    done = run([*PYTEST, str(ROOT / "pyproject.toml"), "-q", str(write(tmp_path, FLOW, LOOP))])
    assert done.returncode == 70, done.stdout
    assert "durableflow ends this process: loop/endless was suspended at for ever-1" in done.stderr


NAMES = ["Harness", "ReplayBroken", "ReplayReport", "WorkflowTestMixin", "harness", "replay_check"]


def test_the_plugin_needs_no_settings() -> None:
    code = (
        "import sys; sys.path.insert(0, '.'); import durableflow.testing.plugin, durableflow.testing as kit; "
        "print('django' in sys.modules, sorted(kit.__all__), kit.Nothing if False else '')"
    )
    done = run(["-W", "error", "-c", code], DJANGO_SETTINGS_MODULE="")
    assert (done.stdout, done.stderr) == (f"False {NAMES} \n", "")
