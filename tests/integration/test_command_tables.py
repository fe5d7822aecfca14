"""The commands on a database that has not the tables they need: a sentence in place of a traceback, before anything begins."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder

from durableflow.management import tables
from durableflow.management.commands import durableflow_cluster
from project.settings import BASE_DIR
from tests.support.database import child_environment

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["durableflow_cluster", "durableflow drain"])
def command(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Neither may get as far as to begin."""

    def begun(**_options: Any) -> int:
        pytest.fail("it has begun")

    monkeypatch.setattr(durableflow_cluster, "run", begun)
    monkeypatch.setattr("durableflow.management.verbs.drain.drain", begun)
    return str(request.param)


def call(command: str) -> None:
    call_command(*command.split(), skip_checks=True, stdout=io.StringIO())


def without(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """The database has no tables whose names begin so."""
    names = [name for name in connection.introspection.table_names() if not name.startswith(prefix)]
    monkeypatch.setattr(connection.introspection, "table_names", lambda *_args, **_kwargs: names)


@contextmanager
def unapplied(app: str, name: str) -> Iterator[None]:
    """A migration has not been made yet."""
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied(app, name)
    try:
        yield
    finally:
        recorder.record_applied(app, name)


def test_no_tables_at_all(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "durableflow_")
    with pytest.raises(
        CommandError, match=r"lacks the tables of durableflow\. Run 'manage\.py migrate' first\."
    ) as ended:
        call(command)
    assert ended.value.returncode == 1
    assert f"'default' ({connection.vendor}, " in str(ended.value)


def test_one_table_is_missing(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "durableflow_heartbeat")
    with pytest.raises(CommandError, match="lacks the tables durableflow_heartbeat of durableflow"):
        call(command)


def test_a_migration_is_missing(command: str) -> None:
    """New code on old tables would block instances with errors of ours."""
    with (
        unapplied("durableflow", "0001_initial"),
        pytest.raises(
            CommandError, match=r"lacks migrations of durableflow \(0001_initial\)\. Run 'manage\.py migrate'"
        ),
    ):
        call(command)


def test_the_queue_is_the_clusters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """django-q2's tables: the cluster needs them, a drain does not."""
    without(monkeypatch, "django_q_")
    with pytest.raises(CommandError, match="lacks the tables of django_q, which the cluster needs"):
        call("durableflow_cluster")
    call("durableflow drain")


def test_tables_that_were_made_without_migrations(settings: Any) -> None:
    """A project may do so, for its tests for instance."""
    settings.MIGRATION_MODULES = {config.label: None for config in apps.get_app_configs()}
    assert tables.missing("default", "durableflow") == ""


def test_a_database_that_is_ahead_is_none_of_our_business() -> None:
    """Newer code has migrated it, and old workers go on until they are replaced."""
    recorder = MigrationRecorder(connection)
    recorder.record_applied("durableflow", "9999_later")
    try:
        tables.require("default", "durableflow")
    finally:
        recorder.record_unapplied("durableflow", "9999_later")


def test_a_database_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the cluster, which has its own way of waiting; a drain ends with a sentence."""

    def away(*_args: Any, **_kwargs: Any) -> Any:
        raise OperationalError("connection refused")

    monkeypatch.setattr(connection.introspection, "table_names", away)
    tables.require("default", "durableflow")
    monkeypatch.setattr("durableflow.management.verbs.drain.drain", away)
    with pytest.raises(CommandError, match="'default' is away or busy, try again: connection refused"):
        call("durableflow drain")


@pytest.mark.parametrize("command", ["durableflow_cluster", "durableflow drain"])
def test_an_empty_database(command: str, tmp_path: Path) -> None:
    """Real processes: one line, status 1, and nothing was forked."""
    environment = {**os.environ, **child_environment(DATABASE_URL=f"sqlite:///{tmp_path / 'empty.db'}")}
    ended = subprocess.run(
        [sys.executable, "manage.py", *command.split()],
        cwd=BASE_DIR,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert (
        line.startswith("CommandError: The database 'default' (sqlite, ") and "Run 'manage.py migrate' first." in line
    )
    assert ended.stdout == ""
