"""Where the measurements run: a PostgreSQL server, and a database on it for each program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg

from tests.support.postgres import postgres


@contextmanager
def server() -> Iterator[str]:
    """The PostgreSQL of DATABASE_URL, or a throwaway one."""
    given = os.environ.get("DATABASE_URL", "")
    if given.startswith("postgres"):
        yield given
        return
    with postgres() as url:
        yield url


def of_the_name(url: str, name: str) -> str:
    """The URL of the database ``name`` on the server of ``url``, which may name no host (``postgresql:///app``)."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/{name}" + (f"?{parts.query}" if parts.query else "")


@contextmanager
def made(url: str, name: str) -> Iterator[str]:
    """The URL of an empty database on the server of ``url``, dropped at the end with whoever is still connected."""
    name = f"{name}_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        yield of_the_name(url, name)
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
