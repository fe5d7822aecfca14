"""How commits of other processes end the pusher's wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest
from django.db import connection, connections, transaction

from durableflow.cluster import postgresql
from durableflow.cluster.hint import notify
from durableflow.cluster.listening import Poller, pause
from durableflow.cluster.postgresql import PostgresListener
from durableflow.cluster.sqlite import SqliteListener
from durableflow.core import dispatch
from tests.support.concurrency import PATIENCE, eventually
from tests.support.logs import levels, logged
from tests.workflows.cluster_samples import ClusterSteps


def create() -> None:
    ClusterSteps.create({"log": "/dev/null", "name": "w"})


class TestPostgreSQL:
    """LISTEN and NOTIFY."""

    pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql_only]

    @pytest.fixture
    def listener(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresListener]:
        monkeypatch.setattr(postgresql, "TEST_EVERY", 3600.0)
        made = PostgresListener("default", "default")
        made._test_at = time.monotonic() + 3600
        made.arm()
        yield made
        made.close()

    def heard(self, listener: PostgresListener) -> bool:
        return listener.wait(PATIENCE)

    def test_a_commit_is_heard(self, listener: PostgresListener) -> None:
        create()
        assert self.heard(listener)
        assert not listener.wait(0.05), "one hint ends one wait"

    def test_a_hint_before_the_wait_counts(self, listener: PostgresListener) -> None:
        listener.arm()
        notify("default")
        assert self.heard(listener)

    def test_arming_forgets_what_the_look_will_see(self, listener: PostgresListener) -> None:
        with connection.cursor() as cursor:  # all arrive in one piece
            cursor.execute("SELECT pg_notify('durableflow', n::text) FROM generate_series(1, 5) AS n")
        assert self.heard(listener)
        listener.arm()
        assert not listener.wait(0.05)

    def test_a_rollback_is_not_heard(self, listener: PostgresListener) -> None:
        with pytest.raises(RuntimeError), transaction.atomic():
            create()
            raise RuntimeError
        assert not listener.wait(0.05)

    def test_many_verbs_in_one_transaction_give_one_hint(self, listener: PostgresListener) -> None:
        with transaction.atomic():
            for _ in range(3):
                create()
            assert not listener.wait(0.05), "nothing is said before the commit"
        assert self.heard(listener)
        assert not listener.wait(0.05)

    def test_a_broken_connection_is_replaced(
        self, listener: PostgresListener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "durableflow.cluster")
        monkeypatch.setattr(postgresql, "RECONNECT_AFTER", 0.0)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'durableflow cluster' AND datname = current_database()"
            )
        eventually(lambda: not listener.wait(0.01) and listener._raw() is None, "the end of the connection")
        began = time.monotonic()
        assert not listener.wait(0.1)
        assert time.monotonic() - began >= 0.1, "a lost connection makes no spin"
        listener.arm()
        eventually(lambda: not listener.wait(0.01) and not listener._complaint, "the answer to its test")
        create()
        assert self.heard(listener)
        assert levels(caplog) == ["WARNING", "INFO"]

    def test_a_deaf_connection_is_found_out(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A pooler in transaction mode swallows LISTEN: here the connection listens to something else."""
        monkeypatch.setattr(postgresql, "CHANNEL", "elsewhere")
        monkeypatch.setattr(postgresql, "TEST_PATIENCE", 0.1)
        listener = PostgresListener("default", "default")
        for _ in range(4):
            listener.arm()
            listener.wait(0.15)
        listener.close()
        [record] = logged(caplog)
        assert "LISTEN_DATABASE" in record.getMessage()

    def test_the_self_test_is_no_hint(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setattr(postgresql, "TEST_EVERY", 0.0)
        monkeypatch.setattr(postgresql, "TEST_PATIENCE", 5.0)
        listener, other = PostgresListener("default", "default"), PostgresListener("default", "default")
        for _ in range(3):
            listener.arm()
            other.arm()
            assert not listener.wait(0.1) and not other.wait(0.1)
        listener.close()
        other.close()
        assert not logged(caplog)

    def test_without_a_server_it_says_so_once_and_waits(
        self, listener: PostgresListener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(postgresql, "RECONNECT_AFTER", 0.0)
        listener.close()
        monkeypatch.setitem(listener._wrapper.settings_dict, "HOST", "/nowhere")
        for _ in range(3):
            listener.arm()
            began = time.monotonic()
            assert not listener.wait(0.05)
            assert time.monotonic() - began >= 0.05
        assert len(logged(caplog)) == 1

    def test_a_hint_inside_a_transaction_is_left_out(self, listener: PostgresListener) -> None:
        with transaction.atomic():
            notify("default")
        assert not listener.wait(0.05)

    def test_the_hint_leaves_nothing_behind_on_the_connection(self) -> None:
        notify("default")
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone()[0] == "on"

    def test_an_error_in_the_hint_never_reaches_who_committed(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """CON-04: the row is committed, and that alone counts."""
        monkeypatch.setattr("durableflow.cluster.hint._NOTIFY", "SELECT nonsense(%s, %s)")
        create()
        assert "hint" in caplog.text
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM durableflow_workflowinstance")
            assert cursor.fetchone()[0] == 1


class TestSQLite:
    """``PRAGMA data_version``."""

    pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite_only]

    @pytest.fixture
    def listener(self) -> Iterator[SqliteListener]:
        made = SqliteListener("default")
        made.arm()
        yield made
        made.close()

    def test_a_commit_is_heard(self, listener: SqliteListener) -> None:
        create()
        assert listener.wait(PATIENCE)

    def test_a_rollback_and_a_read_are_not_heard(self, listener: SqliteListener) -> None:
        with pytest.raises(RuntimeError), transaction.atomic():
            create()
            raise RuntimeError
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM durableflow_workflowinstance")
        assert not listener.wait(0.1)

    def test_arming_forgets_what_the_look_will_see(self, listener: SqliteListener) -> None:
        create()
        listener.arm()
        assert not listener.wait(0.1)

    def test_it_takes_no_lock(self, listener: SqliteListener) -> None:
        other = connections["default"].copy()
        with other.cursor() as cursor:
            cursor.execute("BEGIN EXCLUSIVE")
            assert not listener.wait(0.1)
            cursor.execute("ROLLBACK")
        other.close()

    def test_until_ends_the_wait(self, listener: SqliteListener) -> None:
        began = time.monotonic()
        assert not listener.wait(4 * PATIENCE, lambda: time.monotonic() - began > 0.05)
        assert time.monotonic() - began < 2 * PATIENCE


def test_a_poller_hears_nothing_and_takes_its_time() -> None:
    poller, began = Poller(), time.monotonic()
    poller.arm()
    assert poller.wait(0.05) is False
    poller.close()
    assert time.monotonic() - began >= 0.05


def test_a_pause_ends_with_its_condition() -> None:
    began = time.monotonic()
    pause(4 * PATIENCE, lambda: time.monotonic() - began > 0.05)
    assert time.monotonic() - began < 2 * PATIENCE


def test_the_hint_is_given_after_each_commit() -> None:
    assert notify in dispatch._listeners
