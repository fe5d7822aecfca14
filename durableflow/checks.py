"""System checks: what keeps workflows from running, or makes them slow or unsafe. All are listed in docs/checks.md.

They read settings alone; what has to ask the database runs only with ``--database``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Info, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from durableflow.cluster import mode
from durableflow.cluster.mode import Kind
from durableflow.core.conf import Settings, build
from durableflow.models.creation import database

SQLITE_TIMEOUT: Final = 10.0
"""Seconds for which a writer must be ready to wait for its turn."""
READ_COMMITTED: Final = 2
_SQLITE_CURE: Final = (
    'Give the database "CONN_MAX_AGE": 600 and "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, '
    '"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"}.'
)

Check = Callable[..., list[CheckMessage]]


def register_all() -> None:
    """Register every check. Called by ``AppConfig.ready``; calling it twice has no effect."""
    for check in (check_settings, check_mode, check_cluster, check_database_settings):
        register(check)
    register(check_database_server, Tags.database)


def _settings() -> Settings | None:
    """The ``DURABLEFLOW`` settings; None where they are wrong, which ``check_settings`` reports."""
    try:
        return build(getattr(settings, "DURABLEFLOW", {}))
    except ImproperlyConfigured:
        return None


def check_settings(app_configs: Any = None, **_kwargs: Any) -> list[CheckMessage]:
    """E001 a wrong ``DURABLEFLOW`` dict, E003 LISTEN_DATABASE, E005 DISPATCH, E007 USE_TZ."""
    try:
        current = build(getattr(settings, "DURABLEFLOW", {}))
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="The settings are listed in docs/settings.md.", id="durableflow.E001")]
    found: list[CheckMessage] = []
    if current.LISTEN_DATABASE is not None and current.LISTEN_DATABASE not in connections.settings:
        found.append(
            Error(
                f"DURABLEFLOW['LISTEN_DATABASE'] is {current.LISTEN_DATABASE!r}, but DATABASES has no such alias.",
                hint=f"Known aliases: {', '.join(sorted(connections.settings))}.",
                id="durableflow.E003",
            )
        )
    if current.DISPATCH is not None:
        found += _dispatch(current.DISPATCH)
    if not settings.USE_TZ:
        found.append(
            Error(
                "USE_TZ is False, but workflows wait for exact moments.",
                hint="Set USE_TZ = True: a time without a zone would be another moment after a change of the clocks.",
                id="durableflow.E007",
            )
        )
    return found


def _dispatch(path: Any) -> list[CheckMessage]:
    try:
        problem = "" if callable(import_string(path)) else "it is not callable"
    except (ImportError, AttributeError, TypeError) as error:
        problem = str(error)
    if not problem:
        return []
    return [
        Error(
            f"DURABLEFLOW['DISPATCH'] is {path!r}, and that cannot be called: {problem}.",
            hint="Give the dotted path of a function without arguments that has your scheduler call "
            "durableflow.drain().",
            id="durableflow.E005",
        )
    ]


def check_mode(app_configs: Any = None, **_kwargs: Any) -> list[CheckMessage]:
    """I001 names who executes workflows; W001 says that nothing does."""
    if _settings() is None:
        return []
    current = mode.current()
    if current.kind is Kind.NOTHING:
        return [
            checks.Warning(
                "Nothing executes workflows: INSTALLED_APPS has no django_q, and DURABLEFLOW['DISPATCH'] is not set.",
                hint=f"Add 'django_q' with Q_CLUSTER['broker_class'] = {mode.BROKER!r}, or have your own scheduler "
                "call durableflow.drain() and name it in DISPATCH. Silence this where another project's processes "
                "do it.",
                id="durableflow.W001",
            )
        ]
    return [Info(_sentence(current), id="durableflow.I001")] if _asked_for() else []


def _sentence(current: mode.Mode) -> str:
    if current.kind is Kind.CLUSTER:
        which = f"{current.entry!r} of ALT_CLUSTERS" if current.entry else "with durableflow's broker"
        return f"Workflows are executed by the django-q2 cluster {which}: manage.py durableflow_cluster."
    if current.kind is Kind.DISPATCH and mode.installed():
        return (
            f"Workflows are executed by whom {_settings_dispatch()!r} tells, and once a minute by the django-q2 cluster, which has "
            "another broker than durableflow's. Where durableflow.drain() is not called more often, timers wait up to a minute "
            "and a half."
        )
    if current.kind is Kind.DISPATCH:
        return (
            f"Workflows are executed by this project's own scheduler, told by {_settings_dispatch()!r}; "
            "it must call durableflow.drain() every few seconds as well."
        )
    return (
        "Workflows are executed once a minute, by the django-q2 cluster, which has another broker than durableflow's: "
        "events, timers and new instances wait up to a minute and a half. "
        "docs/cluster.md tells how to do without the wait."
    )


def _settings_dispatch() -> str | None:
    current = _settings()
    return current.DISPATCH if current else None


def _asked_for() -> bool:
    """Whether ``check`` itself runs: Django prints an Info before every other command too, and there it would only be
    in the way."""
    program = PurePath(sys.argv[0] if sys.argv else "")
    manages = program.name in ("manage.py", "django-admin") or program.parts[-2:] == ("django", "__main__.py")
    return not manages or sys.argv[1:2] == ["check"]


def check_cluster(app_configs: Any = None, **_kwargs: Any) -> list[CheckMessage]:
    """E002 and E006 the entry that CLUSTER names, W006 django-q2's two times (case CON-02)."""
    if _settings() is None or not mode.installed():
        return []
    entry, names = mode.entry(), mode.alternatives()
    if entry and entry not in names:
        return [
            Error(
                f"DURABLEFLOW['CLUSTER'] is {entry!r}, but Q_CLUSTER['ALT_CLUSTERS'] has no such entry.",
                hint=f"Known entries: {', '.join(sorted(names)) or 'none'}.",
                id="durableflow.E002",
            )
        ]
    config = mode.cluster_config()
    found: list[CheckMessage] = []
    if entry and not mode.is_ours(config):
        found.append(
            Error(
                f"DURABLEFLOW['CLUSTER'] names {entry!r}, and the broker of that cluster does not execute workflows.",
                hint=f"Set Q_CLUSTER['ALT_CLUSTERS'][{entry!r}]['broker_class'] to {mode.BROKER!r}.",
                id="durableflow.E006",
            )
        )
    return found + _times(config)


def _times(config: Mapping[str, Any]) -> list[CheckMessage]:
    timeout, retry = config.get("timeout"), config.get("retry", 60)
    if timeout and timeout < retry:
        return []
    return [
        checks.Warning(
            f"Q_CLUSTER has timeout {timeout!r} and retry {retry!r}: django-q2 runs a task a second time when retry is "
            "over, also while it is still running.",
            hint="Set timeout to more than an ordinary task takes and retry to more than timeout, for example 60 and "
            "120. Workflows do not depend on it; ordinary tasks do.",
            id="durableflow.W006",
        )
    ]


def check_database_settings(app_configs: Any = None, **_kwargs: Any) -> list[CheckMessage]:
    """E004 the database system; W002 SQLite, W003 connections that do not last, W004 isolation, W005 pools."""
    current = _settings()
    if current is None:
        return []
    using = database()
    connection = connections[using]
    clustered = mode.current().kind is Kind.CLUSTER
    given = connection.settings_dict
    options = given.get("OPTIONS") or {}
    if connection.vendor == "sqlite":
        found = [] if connection.is_in_memory_db() else _sqlite(using, options)  # type: ignore[attr-defined]
    elif connection.vendor == "postgresql":
        found = _isolation(using, options.get("isolation_level")) + (_pool(using, options) if clustered else [])
    else:
        return [
            Error(
                f"The tables of durableflow are in the database {using!r}, which is {connection.display_name}.",
                hint="SQLite and PostgreSQL are supported. Route the app durableflow to such a database.",
                id="durableflow.E004",
            )
        ]
    return found + (_persistence(using, given.get("CONN_MAX_AGE")) if clustered else [])


def _sqlite(using: str, options: Mapping[str, Any]) -> list[CheckMessage]:
    init = str(options.get("init_command") or "").lower().replace(" ", "")
    missing = []
    if "journal_mode=wal" not in init:
        missing.append("readers and the writer block one another (no journal_mode=WAL)")
    if str(options.get("transaction_mode") or "").upper() != "IMMEDIATE":
        missing.append('transactions that read first fail with "database is locked" (no transaction_mode IMMEDIATE)')
    if "busy_timeout=" not in init and float(options.get("timeout") or 0) < SQLITE_TIMEOUT:
        missing.append(f"writers give up soon (no timeout of at least {SQLITE_TIMEOUT:.0f} seconds)")
    if not missing:
        return []
    return [
        checks.Warning(
            f"The SQLite database {using!r} is not set up for several processes: {'; '.join(missing)}.",
            hint=_SQLITE_CURE,
            id="durableflow.W002",
        )
    ]


def _persistence(using: str, age: Any) -> list[CheckMessage]:
    if age is None or age > 0:
        return []
    return [
        checks.Warning(
            f"The database {using!r} has CONN_MAX_AGE 0: django-q2 connects anew for each task and each look.",
            hint='Set DATABASES[...]["CONN_MAX_AGE"] to 600.',
            id="durableflow.W003",
        )
    ]


def _isolation(using: str, level: Any) -> list[CheckMessage]:
    if level is None or int(level) <= READ_COMMITTED:
        return []
    return [_isolation_warning(using, str(getattr(level, "name", level)))]


def _isolation_warning(using: str, level: str) -> CheckMessage:
    return checks.Warning(
        f"The database {using!r} has the isolation level {level}: transactions of the engine fail and are repeated.",
        hint="Use READ COMMITTED for this alias, and a stricter level where a transaction of yours needs it.",
        id="durableflow.W004",
    )


def _pool(using: str, options: Mapping[str, Any]) -> list[CheckMessage]:
    if not options.get("pool"):
        return []
    return [
        checks.Warning(
            f"The database {using!r} has a connection pool, which django-q2 takes along into its child processes.",
            hint='Leave OPTIONS["pool"] out of the settings that the cluster runs with.',
            id="durableflow.W005",
        )
    ]


def check_database_server(
    app_configs: Any = None, databases: Iterable[str] | None = None, **_kwargs: Any
) -> Sequence[CheckMessage]:
    """W004 once more: the level that the server gives by default. Runs with ``check --database`` and ``migrate``
    only."""
    if _settings() is None or database() not in (databases or ()):
        return []
    using = database()
    connection = connections[using]
    if connection.vendor != "postgresql" or "isolation_level" in connection.settings_dict["OPTIONS"]:
        return []
    with connection.cursor() as cursor:
        cursor.execute("SHOW default_transaction_isolation")
        level = str(cursor.fetchone()[0])
    return [] if level in ("read committed", "read uncommitted") else [_isolation_warning(using, level.upper())]
