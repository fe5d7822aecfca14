"""Database settings from one URL, without a dependency.

``sqlite:///relative/path`` (from the current directory), ``sqlite:////absolute/path``,
``postgresql://user:password@host:port/name?option=value``; a Unix socket is ``postgresql://user@/name?host=/directory``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from django.core.exceptions import ImproperlyConfigured

# Kept open between requests and tasks: django-q2 closes a connection without a maximum age after every task.
CONN_MAX_AGE = 600
# WAL lets readers go on beside the one writer; NORMAL is safe with it against a crash of the process.
SQLITE_INIT = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=20000;"


def sqlite(path: Path | str) -> dict[str, Any]:
    """Settings of one SQLite file as a durable workflow needs them.

    ``transaction_mode`` IMMEDIATE takes the write lock at BEGIN, so that a transaction that reads before it writes
    waits for its turn and never fails with "database is locked"; ``timeout`` is in seconds.
    """
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "CONN_MAX_AGE": CONN_MAX_AGE,
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": SQLITE_INIT},
    }


def from_url(url: str) -> dict[str, Any]:
    """Settings of the database that ``url`` names; ImproperlyConfigured if it names none that is supported."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = unquote(parts.path).removeprefix("/")
        if parts.netloc or not path:
            raise ImproperlyConfigured(
                "DATABASE_URL: SQLite is written sqlite:///relative/path or sqlite:////absolute/path."
            )
        return sqlite(path)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ImproperlyConfigured(
            f"DATABASE_URL starts with {parts.scheme!r}: expected sqlite:///path or postgresql://user:password@host:port/name."
        )
    options = dict(parse_qsl(parts.query))
    name = unquote(parts.path).removeprefix("/")
    if not name:
        raise ImproperlyConfigured(
            "DATABASE_URL names no database: expected postgresql://user:password@host:port/name."
        )
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or options.pop("user", "")),
        "PASSWORD": unquote(parts.password or options.pop("password", "")),
        "HOST": unquote(parts.hostname or options.pop("host", "")),
        "PORT": str(parts.port or options.pop("port", "")),
        "CONN_MAX_AGE": CONN_MAX_AGE,
        "OPTIONS": options,
    }


def to_url(settings: dict[str, Any]) -> str:
    """The URL of a database, so that a child process can be given the one in use (the test database, say)."""
    if settings["ENGINE"].endswith("sqlite3"):
        return f"sqlite:///{quote(str(Path(settings['NAME']).resolve()))}"
    # Host and port go into the query: there a directory with a Unix socket is as good as a host name.
    place = {
        key: str(settings[key.upper()]) for key in ("user", "password", "host", "port") if settings.get(key.upper())
    }
    plain = {key: value for key, value in settings.get("OPTIONS", {}).items() if isinstance(value, str)}
    return f"postgresql:///{quote(settings['NAME'])}?{urlencode(plain | place)}"
