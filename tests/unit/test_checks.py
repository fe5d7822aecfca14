"""System checks that read settings (docs/checks.md)."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.core import checks as django_checks
from django.db import connections

from durableflow import checks
from project.database import sqlite

OURS = {"broker_class": "durableflow.cluster.Broker", "timeout": 60, "retry": 120}
STOCK = {"orm": "default", "timeout": 60, "retry": 120}


class SubclassedBroker:
    """Stands for a project's class that has nothing to do with ours."""


def ids(found: list[django_checks.CheckMessage]) -> list[str]:
    return [str(message.id) for message in found]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of the database, open to change in one test."""
    connection = connections["default"]
    fresh = {**connection.settings_dict, "OPTIONS": {**connection.settings_dict["OPTIONS"]}}
    monkeypatch.setattr(connection, "settings_dict", fresh)
    return fresh


@pytest.fixture
def lite(database: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An SQLite file with every recommended option."""
    monkeypatch.setattr(connections["default"], "vendor", "sqlite")
    monkeypatch.setattr(connections["default"], "is_in_memory_db", lambda: False, raising=False)
    database.update(sqlite("db.sqlite3"))
    return database


@pytest.fixture
def postgres(database: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A PostgreSQL without options."""
    monkeypatch.setattr(connections["default"], "vendor", "postgresql")
    database.update(CONN_MAX_AGE=600, OPTIONS={})
    return database


def test_a_wrong_setting_is_an_error_that_names_the_key(settings: Any) -> None:
    settings.DURABLEFLOW = {"LEESE": 3}
    [error] = checks.check_settings()
    assert (error.id, error.level) == ("durableflow.E001", django_checks.ERROR)
    assert "LEESE" in error.msg and "LEASE" in error.msg


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("REDACT", "password"),
        ("REDACT", {"password": True}),
        ("REDACT", [7]),
        ("BASE_URL", None),
        ("LIMITS", 3),
        ("LIMITS", {"steps": "many"}),
        ("LEASE", 0.5),
        ("STEP_TIMEOUT", "1h"),
        ("RETENTION", "3 days"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_the_key(settings: Any, key: str, value: object) -> None:
    settings.DURABLEFLOW = {key: value}
    [error] = checks.check_settings()
    assert error.id == "durableflow.E001"
    assert key in error.msg


def test_a_wrong_setting_silences_the_checks_that_need_it(settings: Any) -> None:
    settings.DURABLEFLOW = {"LEESE": 3}
    assert checks.check_mode() == checks.check_cluster() == checks.check_database_settings() == []
    assert list(checks.check_database_server(databases=["default"])) == []


@pytest.mark.parametrize("path", ["shop.nowhere.wake", "os.sep", "wake", 7])
def test_a_dispatch_that_cannot_be_called_is_an_error(settings: Any, path: object) -> None:
    settings.DURABLEFLOW = {"DISPATCH": path}
    assert ids(checks.check_settings()) == ["durableflow.E005"]


def test_an_unknown_listen_database_is_an_error(settings: Any) -> None:
    settings.DURABLEFLOW = {"LISTEN_DATABASE": "direct"}
    [error] = checks.check_settings()
    assert error.id == "durableflow.E003" and "'direct'" in error.msg


def test_right_settings_give_no_message(settings: Any) -> None:
    settings.DURABLEFLOW = {"DISPATCH": "gc.collect", "LISTEN_DATABASE": "default", "LEASE": 15}
    assert checks.check_settings() == []


@pytest.mark.parametrize(
    ("q_cluster", "given", "words"),
    [
        (OURS, {}, "with durableflow's broker"),
        ({**OURS, "broker_class": "durableflow.cluster.broker.Broker"}, {}, "with durableflow's broker"),
        ({**STOCK, "ALT_CLUSTERS": {"flows": OURS}}, {"CLUSTER": "flows"}, "'flows' of ALT_CLUSTERS"),
        ({**OURS, "name": "flows"}, {"CLUSTER": "flows"}, "with durableflow's broker"),
        (STOCK, {"DISPATCH": "gc.collect"}, "by whom 'gc.collect' tells, and once a minute"),
        (STOCK, {}, "once a minute"),
        ({**OURS, "broker_class": f"{__name__}.SubclassedBroker"}, {}, "once a minute"),
    ],
)
def test_the_mode_is_named(settings: Any, q_cluster: object, given: object, words: str) -> None:
    settings.Q_CLUSTER, settings.DURABLEFLOW = q_cluster, given
    [info] = checks.check_mode()
    assert (info.id, info.level) == ("durableflow.I001", django_checks.INFO)
    assert words in info.msg


def test_a_project_without_django_q_and_without_dispatch_is_warned(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DURABLEFLOW = {}
    monkeypatch.setattr("durableflow.cluster.mode.installed", lambda: False)
    assert ids(checks.check_mode()) == ["durableflow.W001"]
    settings.DURABLEFLOW = {"DISPATCH": "gc.collect"}
    [info] = checks.check_mode()
    assert info.id == "durableflow.I001" and "own scheduler, told by 'gc.collect'; it must call" in info.msg


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["manage.py", "check"], True),
        (["/srv/manage.py", "check", "--deploy"], True),
        (["manage.py", "migrate"], False),
        (["/usr/bin/django-admin", "runserver"], False),
        (["/lib/django/__main__.py", "migrate"], False),
        (["/lib/pytest/__main__.py"], True),
        (["pytest"], True),
    ],
)
def test_the_mode_is_told_where_checks_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], shown: bool
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert bool(checks.check_mode()) is shown


def test_a_cluster_that_does_not_exist_is_an_error(settings: Any) -> None:
    settings.Q_CLUSTER = {**STOCK, "ALT_CLUSTERS": {"flows": OURS}}
    settings.DURABLEFLOW = {"CLUSTER": "flow"}
    [error] = checks.check_cluster()
    assert error.id == "durableflow.E002" and "flows" in str(error.hint)


def test_a_cluster_with_another_broker_is_an_error(settings: Any) -> None:
    settings.Q_CLUSTER = {**STOCK, "ALT_CLUSTERS": {"flows": {"workers": 2}}}
    settings.DURABLEFLOW = {"CLUSTER": "flows"}
    assert ids(checks.check_cluster()) == ["durableflow.E006"]


@pytest.mark.parametrize(
    ("times", "warned"),
    [
        ({"timeout": 60, "retry": 120}, False),
        ({"timeout": 60, "retry": 60}, True),
        ({"timeout": 120, "retry": 60}, True),
        ({"timeout": None, "retry": 5}, True),
        ({"timeout": 90}, True),
        ({}, True),
    ],
)
def test_retry_must_be_above_timeout(settings: Any, times: dict[str, Any], warned: bool) -> None:
    """CON-02: django-q2 delivers a task that still runs once more when ``retry`` is over."""
    settings.Q_CLUSTER = {"broker_class": OURS["broker_class"], **times}
    settings.DURABLEFLOW = {}
    assert ids(checks.check_cluster()) == (["durableflow.W006"] if warned else [])


def test_the_times_of_the_cluster_that_executes_count(settings: Any) -> None:
    """CON-02: an ALT_CLUSTERS entry overrides the times of the base."""
    settings.Q_CLUSTER = {**STOCK, "ALT_CLUSTERS": {"flows": {**OURS, "retry": 30}}}
    settings.DURABLEFLOW = {"CLUSTER": "flows"}
    assert ids(checks.check_cluster()) == ["durableflow.W006"]


def test_a_well_set_up_sqlite_gives_no_message(lite: dict[str, Any]) -> None:
    assert checks.check_database_settings() == []


@pytest.mark.parametrize(
    ("option", "word"), [("transaction_mode", "IMMEDIATE"), ("init_command", "WAL"), ("timeout", "timeout")]
)
def test_each_missing_sqlite_option_is_named(lite: dict[str, Any], option: str, word: str) -> None:
    lite["OPTIONS"]["init_command"] = "PRAGMA journal_mode = WAL;"
    assert checks.check_database_settings() == []
    del lite["OPTIONS"][option]
    [warning] = checks.check_database_settings()
    assert warning.id == "durableflow.W002" and word in warning.msg


def test_a_busy_timeout_may_be_set_by_pragma(lite: dict[str, Any]) -> None:
    del lite["OPTIONS"]["timeout"]
    assert checks.check_database_settings() == []


def test_connections_that_do_not_last_are_warned_of_where_our_broker_runs(lite: dict[str, Any], settings: Any) -> None:
    lite["CONN_MAX_AGE"] = 0
    assert ids(checks.check_database_settings()) == ["durableflow.W003"]
    settings.Q_CLUSTER = STOCK
    assert checks.check_database_settings() == []


def test_connections_without_end_are_fine(lite: dict[str, Any]) -> None:
    lite["CONN_MAX_AGE"] = None
    assert checks.check_database_settings() == []


@pytest.mark.parametrize(("level", "warned"), [(None, False), (1, False), (2, False), (3, True), (4, True)])
def test_a_stricter_isolation_level_is_warned_of(postgres: dict[str, Any], level: int | None, warned: bool) -> None:
    if level is not None:
        postgres["OPTIONS"]["isolation_level"] = level
    assert ids(checks.check_database_settings()) == (["durableflow.W004"] if warned else [])


def test_a_connection_pool_is_warned_of_where_our_broker_runs(postgres: dict[str, Any], settings: Any) -> None:
    postgres["OPTIONS"]["pool"] = True
    assert ids(checks.check_database_settings()) == ["durableflow.W005"]
    settings.Q_CLUSTER = STOCK
    assert checks.check_database_settings() == []


def test_another_database_system_is_an_error(database: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "mysql")
    monkeypatch.setattr(connections["default"], "display_name", "MySQL")
    [error] = checks.check_database_settings()
    assert error.id == "durableflow.E004" and "MySQL" in error.msg


def test_all_checks_are_registered_once() -> None:
    checks.register_all()
    registered = [
        str(getattr(check, "__name__", ""))
        for check in django_checks.registry.registry.get_checks()
        if check.__module__ == "durableflow.checks"
    ]
    assert sorted(registered) == [
        "check_cluster",
        "check_database_server",
        "check_database_settings",
        "check_mode",
        "check_settings",
    ]


def test_messages_can_be_silenced(settings: Any) -> None:
    settings.SILENCED_SYSTEM_CHECKS = ["durableflow.I001"]
    [info] = checks.check_mode()
    assert info.is_silenced()
