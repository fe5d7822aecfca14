"""``manage.py demo --auto`` as a person runs it: a process of its own, on a database of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

pytestmark = pytest.mark.skipif(connection.vendor != "sqlite", reason="makes its own SQLite database")


@pytest.fixture
def env(tmp_path: Path) -> Mapping[str, str]:
    """Everything the demo writes goes below ``tmp_path``."""
    kept = {name: value for name, value in os.environ.items() if name not in ("AUTO", "BASE_URL", "DEBUG")}
    return kept | {
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "DATABASE_URL": f"sqlite:///{tmp_path / 'demo.sqlite3'}",
        "VAR_DIR": str(tmp_path / "var"),
    }


def demo(env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "demo", "--auto"],
        cwd=settings.BASE_DIR,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def processes_with(value: str) -> list[str]:
    """Command lines of processes whose environment holds ``value``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and value.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_auto_completes_both_workflows_twice_and_leaves_no_process(env: Mapping[str, str], tmp_path: Path) -> None:
    for run in (1, 2):
        done = demo(env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not processes_with(str(tmp_path))
        assert "Both workflows are complete" in done.stdout
        for line in (
            r"tags       \w+ \d+%",
            r"thumbnail  thumbnails/\S+\.jpg",
            r"payment    pay_\w+: 31.90 EUR, paid once",
        ):
            assert re.search(line, done.stdout), line
        assert f"image-tagging image-{run}: complete" in done.stdout
        assert f"pay-cart cart-{run}: complete" in done.stdout
        assert len(done.stdout.splitlines()) < 80
        assert "\x1b[" not in done.stdout
        assert "assword" not in done.stdout
        assert not done.stderr
    assert len(list((tmp_path / "var" / "mail").iterdir())) == 2
    assert len(list((tmp_path / "var" / "media" / "invoices").iterdir())) == 2


def test_a_failure_names_what_is_not_complete(env: Mapping[str, str], tmp_path: Path) -> None:
    done = demo({**env, "DEMO_BANK_FAILURES": "1000"})
    assert done.returncode == 1
    assert re.search(r"The demo failed\. pay-cart cart-1 is errored: .*BankUnavailable.*503", done.stdout), done.stdout
    assert not processes_with(str(tmp_path))
