"""Statements past the driver's cursor (design 4 "SQL path", 11)."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from durableflow.core.conf import get_settings
from durableflow.engine import prepared
from durableflow.engine.sql import run

run_bare = partial(run, bare=True)
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql_only]


@pytest.fixture(autouse=True)
def _table() -> None:
    run("default", "CREATE TEMPORARY TABLE kept (id int PRIMARY KEY, v text)")


def test_texts_and_nulls_come_back() -> None:
    """Whatever the text: quotes, percent signs in values, other scripts, empty."""
    for number, text in enumerate(["", "it's 100 %s", "{}", "naïve 東京", None]):
        rows = run_bare("default", "INSERT INTO kept VALUES (%s::int, %s) RETURNING id, v, NULL", [str(number), text])
        assert rows == [(str(number), text, None)]
    assert run_bare("default", "SELECT v FROM kept WHERE id < %s::int", ["0"]) == []
    assert run_bare("default", "DELETE FROM kept WHERE id = %s::int", ["1"]) == []


def test_old_statements_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection keeps a bounded number, and one that had to go is prepared again."""
    monkeypatch.setattr(prepared, "MOST", 3)
    for _round in range(2):
        for number in range(5):
            assert run_bare("default", f"SELECT {number}, %s", ["x"]) == [(str(number), "x")]
    (kept,) = run("default", "SELECT count(*) FROM pg_prepared_statements WHERE name ~ '^durableflow'")
    assert kept == (3,)


@pytest.mark.parametrize("change", ["ROLLBACK", "CREATE TEMPORARY TABLE more (a int)", "DEALLOCATE ALL", "DISCARD ALL"])
def test_what_the_driver_or_a_pooler_has_deallocated(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver deallocates all statements after a ROLLBACK and after changes of the schema: ours are made again."""
    monkeypatch.setattr(prepared, "MOST", 2)
    for number in range(3):
        assert run_bare("default", f"SELECT {number}, %s", ["before"]) == [(str(number), "before")]
        if change == "ROLLBACK":
            with transaction.atomic():
                run("default", "SELECT 1")
                transaction.set_rollback(True)
        else:
            connection.cursor().execute(change if number == 0 else "DEALLOCATE ALL")
        for other in (0, 1, 2):
            assert run_bare("default", f"SELECT {other}, %s", ["after"]) == [(str(other), "after")]


def test_errors_are_djangos() -> None:
    """With the driver's error, whose code tells what to do; the connection goes on."""
    run_bare("default", "INSERT INTO kept VALUES (%s::int, 'a')", ["1"])
    with pytest.raises(IntegrityError) as caught:
        run_bare("default", "INSERT INTO kept VALUES (%s::int, 'a')", ["1"])
    assert getattr(caught.value.__cause__, "sqlstate", None) == "23505"
    assert run_bare("default", "SELECT %s", ["on"]) == [("on",)]


def test_a_transaction_holds() -> None:
    """Inside ``atomic()`` the driver has to send BEGIN first."""
    with transaction.atomic():
        run_bare("default", "INSERT INTO kept VALUES (%s::int, 'a')", ["1"])
        transaction.set_rollback(True)
    assert run("default", "SELECT count(*) FROM kept") == [(0,)]


def test_a_migration_under_it() -> None:
    """A plan that gives other columns than before is made anew, on a new connection."""
    connection.cursor().execute("CREATE TABLE IF NOT EXISTS durableflow_other (a int)")
    try:
        run_bare("default", "SELECT * FROM durableflow_other WHERE %s <> ''", ["x"])
        connection.cursor().execute("ALTER TABLE durableflow_other ADD COLUMN b int")
        assert run_bare("default", "SELECT * FROM durableflow_other WHERE %s <> ''", ["x"]) == []
    finally:
        connection.cursor().execute("DROP TABLE durableflow_other")


def test_a_lost_connection() -> None:
    """The error is one that is waited out; the next connection prepares its own."""
    assert run_bare("default", "SELECT %s", ["before"]) == [("before",)]
    (pid,) = run("default", "SELECT pg_backend_pid()")[0]
    other = connection.copy()
    try:
        other.cursor().execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    finally:
        other.close()
    with pytest.raises(OperationalError):
        run_bare("default", "SELECT %s", ["now"])
    connection.close_if_unusable_or_obsolete()
    assert run_bare("default", "SELECT %s", ["after"]) == [("after",)]


def test_where_preparing_is_off(settings: pytest.FixtureRequest) -> None:
    """PREPARE = False (a pooler in transaction mode): nothing is prepared."""
    settings.DURABLEFLOW = {"PREPARE": False}  # type: ignore[attr-defined]
    assert not get_settings().PREPARE
    assert run_bare("default", "SELECT %s::int", ["7"]) == [(7,)]
    assert run("default", "SELECT count(*) FROM pg_prepared_statements WHERE name ~ '^durableflow'") == [(0,)]
