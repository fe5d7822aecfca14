"""``raw_transaction``: the write lock without Django's bookkeeping, for statements that go to the driver alone."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from durableflow.core.transactions import raw_transaction
from durableflow.engine.sql import run
from tests.support.concurrency import Gate, Task

pytestmark = pytest.mark.django_db(transaction=True)
INSERT = "INSERT INTO auth_group (name) VALUES (%s)"


def names() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def test_it_commits() -> None:
    with raw_transaction("default"):
        run("default", INSERT, ["a"])
        run("default", INSERT, ["b"])
    assert not connection.in_atomic_block
    assert Task(names).result() == ["a", "b"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_whatever_ends_it_early_rolls_back(error: type[BaseException]) -> None:
    """A signal may hit between any two statements: the connection must be as good as new."""
    with pytest.raises(error), raw_transaction("default"):
        run("default", INSERT, ["a"])
        raise error
    with raw_transaction("default"):
        run("default", INSERT, ["b"])
    assert names() == ["b"]


def test_a_failed_statement_rolls_back_as_an_error_of_django() -> None:
    with pytest.raises(IntegrityError), raw_transaction("default"):
        run("default", INSERT, ["a"])
        run("default", INSERT, ["a"])
    assert names() == []


def test_a_refused_commit_rolls_back() -> None:
    """Foreign keys are checked at the commit: what it refuses must not stay open."""
    sql = "INSERT INTO auth_group_permissions (group_id, permission_id) VALUES (-1, -1)"
    with pytest.raises(IntegrityError), raw_transaction("default"):
        run("default", sql)
    with transaction.atomic():
        Group.objects.create(name="a")
    assert names() == ["a"]


def test_in_an_open_block_it_is_a_savepoint() -> None:
    with transaction.atomic():
        Group.objects.create(name="kept")
        with pytest.raises(ValueError, match="x"), raw_transaction("default"):
            run("default", INSERT, ["dropped"])
            raise ValueError("x")
        with raw_transaction("default"):
            run("default", INSERT, ["inner"])
        assert names() == ["inner", "kept"]
        transaction.set_rollback(True)
    assert names() == []


def test_whoever_logs_queries_sees_all() -> None:
    with CaptureQueriesContext(connection) as queries, raw_transaction("default"):
        run("default", INSERT, ["a"])
    assert any("auth_group" in query["sql"] for query in queries.captured_queries)
    assert queries.captured_queries[0]["sql"].startswith("BEGIN")


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has no lock of the whole database")
def test_it_takes_the_write_lock_at_its_start() -> None:
    """Reading first and writing later would fail with "database is locked" where somebody wrote in between."""
    inside = Gate()

    def first() -> None:
        with raw_transaction("default"):
            inside.stop_here()
            run("default", INSERT, ["first"])

    def second() -> list[str]:
        with raw_transaction("default"):
            seen = [name for (name,) in run("default", "SELECT name FROM auth_group")]
            run("default", INSERT, ["second"])
        return seen

    one = Task(first)
    inside.wait_until_reached()
    two = Task(second)
    inside.open()
    one.result()
    assert two.result() == ["first"]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="there it is Django's own block")
def test_a_connection_that_a_body_has_closed_is_opened_again() -> None:
    """``connection.connection.close()`` behind Django's back."""
    with pytest.raises(Exception, match="closed"), raw_transaction("default"):
        connection.connection.close()
        run("default", INSERT, ["a"])
    with raw_transaction("default"):
        run("default", INSERT, ["b"])
    assert names() == ["b"]
