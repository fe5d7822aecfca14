"""DATABASE_URL of the example project."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from project.database import from_url, sqlite, to_url


def pick(settings: dict[str, Any], *keys: str) -> tuple[Any, ...]:
    return tuple(settings[key] for key in keys)


def test_sqlite_paths_are_relative_or_absolute() -> None:
    assert from_url("sqlite:///var/a%20b.sqlite3")["NAME"] == "var/a b.sqlite3"
    assert from_url("sqlite:////srv/db.sqlite3")["NAME"] == "/srv/db.sqlite3"


def test_sqlite_is_set_up_for_one_writer_and_many_readers() -> None:
    options = from_url("sqlite:///db.sqlite3")["OPTIONS"]
    assert options["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in options["init_command"]


def test_postgresql_parts_are_unquoted() -> None:
    settings = from_url("postgresql://ad%40:p%2Fw@db.example:5433/shop?sslmode=require")
    assert pick(settings, "USER", "PASSWORD", "HOST", "PORT", "NAME") == ("ad@", "p/w", "db.example", "5433", "shop")
    assert settings["OPTIONS"] == {"sslmode": "require"}


def test_postgresql_by_unix_socket() -> None:
    settings = from_url("postgresql://postgres@/shop?host=/run/pg")
    assert pick(settings, "USER", "HOST", "PORT", "NAME") == ("postgres", "/run/pg", "", "shop")
    assert settings["OPTIONS"] == {}


@pytest.mark.parametrize("url", ["mysql://a/b", "postgresql://host", "sqlite:///", "sqlite://host/x", "shop.sqlite3"])
def test_a_url_that_names_no_usable_database_is_refused(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"DATABASE_URL.*(postgresql|sqlite)://"):
        from_url(url)


def test_a_password_never_shows_in_the_error() -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        from_url("oracle://ada:hunter2@host/x")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ad%40:p%2Fw@db.example:5433/sh%20op?sslmode=require",
        "postgresql://postgres@/shop?host=/run/pg",
        "sqlite:////srv/a%20b.sqlite3",
    ],
)
def test_the_url_of_a_database_names_the_same_database(url: str) -> None:
    settings = from_url(url)
    assert from_url(to_url(settings)) == settings


def test_the_url_of_a_relative_sqlite_file_does_not_depend_on_the_directory() -> None:
    assert to_url(sqlite("db.sqlite3")).startswith("sqlite:////")
