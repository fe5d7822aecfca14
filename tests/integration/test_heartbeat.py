"""Signs of life: written beside the work, never in its way (case OPS-14)."""

from __future__ import annotations

import io
import os
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from durableflow.core import clock
from durableflow.engine import heartbeat
from durableflow.engine.heartbeat import Beat, beat, new_key, sign
from durableflow.models import Heartbeat

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def own_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts as a process of its own."""
    monkeypatch.setattr(heartbeat, "_own", heartbeat._Own())
    monkeypatch.setattr(heartbeat, "_silent", False)


def a_beat(**changed: Any) -> Beat:
    return Beat(**{"key": 7, "kind": "cluster", "workers": 2, "busy": 0, **changed})


def test_a_group_has_one_row(stopped_clock: Any) -> None:
    """The first sign makes it, later ones keep it up: start and last claim stay."""
    start = stopped_clock.now
    assert beat("default", a_beat(claimed_ago=3, pid=99))
    now = stopped_clock.advance("10 seconds")
    assert beat("default", a_beat(busy=2, stopping=True, pid=99))
    row = Heartbeat.objects.get()
    assert (row.kind, row.pid, row.workers, row.busy, row.stopping) == ("cluster", "99", 2, 2, True)
    assert (row.started, row.seen, row.last_claim) == (start, now, start - timedelta(seconds=3))
    assert row.host
    assert row.version == heartbeat.version()


def test_the_clock_is_the_databases() -> None:
    """A host whose clock is wrong does not look dead, or alive."""
    beat("default", a_beat(claimed_ago=0))
    row = Heartbeat.objects.get()
    assert abs(clock.read("default") - row.seen) < timedelta(minutes=1)
    assert row.last_claim == row.seen


def test_keys_differ() -> None:
    """Host and pid mean nothing in containers."""
    assert len({new_key() for _ in range(100)}) == 100


def test_a_failure_is_not_the_callers(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Whatever is wrong: False, a line in the log, and a connection that works."""
    monkeypatch.setattr(heartbeat, "_TABLE", "no_such_table")
    caplog.set_level("INFO", "durableflow.engine")
    assert not beat("default", a_beat())
    assert "sign of life" in caplog.text
    monkeypatch.undo()
    assert beat("default", a_beat())


def test_it_is_no_part_of_a_transaction() -> None:
    """Inside atomic() it would be rolled back with it, or break it."""
    with transaction.atomic():
        assert not beat("default", a_beat())
    assert not Heartbeat.objects.exists()


@pytest.mark.sqlite_only
def test_it_does_not_queue_for_the_write_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that holds SQLite's lock costs the caller a tenth of a second, not its busy timeout of many seconds."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("BEGIN IMMEDIATE")
                held.set()
                done.wait(30)
                cursor.execute("ROLLBACK")
        finally:
            connection.close()

    def patience() -> int:
        with connection.cursor() as cursor:
            return int(cursor.execute("PRAGMA busy_timeout").fetchone()[0])

    def write(using: str, told: Beat) -> None:
        meanwhile.append(patience())
        real(using, told)

    before, meanwhile, real = patience(), [], heartbeat._write
    assert before > heartbeat.SQLITE_PATIENCE
    monkeypatch.setattr(heartbeat, "_write", write)
    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(30)
        assert not beat("default", a_beat())  # it returns although nobody lets go
        assert (meanwhile, patience()) == ([heartbeat.SQLITE_PATIENCE], before)
    finally:
        done.set()
        holder.join()


@pytest.mark.postgresql_only
def test_its_commit_does_not_wait_for_the_disk() -> None:
    """And the setting ends with the statement."""
    seen: list[str] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        assert beat("default", a_beat())
    assert "synchronous_commit" in seen[0]
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("on",)


def test_who_is_gone_for_a_day_is_forgotten(stopped_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then, by whoever beats."""
    beat("default", a_beat(key=1))
    stopped_clock.advance("23 hours")
    beat("default", a_beat(key=2))
    monkeypatch.setattr(heartbeat, "SWEEP_EVERY", 1)
    beat("default", a_beat(key=3))
    assert Heartbeat.objects.count() == 3
    stopped_clock.advance("2 hours")
    beat("default", a_beat(key=3))
    assert set(Heartbeat.objects.values_list("key", flat=True)) == {2, 3}


def test_a_drain_tells_each_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is asked to; with the time since its last claim."""
    told: list[Beat] = []
    now = [1000.0]
    monkeypatch.setattr(heartbeat, "beat", lambda using, beat: told.append(beat))
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    sign("default", workers=1, busy=0)
    for passed in range(1, 21):
        now[0] = 1000.0 + passed
        sign("default", workers=1, busy=1, claimed=passed == 7)
    assert [(beat.busy, beat.claimed_ago) for beat in told] == [(0, None), (1, 3.0), (1, 13.0)]
    assert len({beat.key for beat in told}) == 1


def test_a_drain_takes_leave_once_it_has_told_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign that another thread gives behind it is dropped; the next drain of the process is heard again."""
    told: list[Beat] = []
    now = [1000.0]
    monkeypatch.setattr(heartbeat, "beat", lambda using, beat: bool(told.append(beat) or True))
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    heartbeat.leave("default", workers=1)
    assert told == []
    sign("default", workers=1, busy=1, claimed=True)
    now[0] += 3
    heartbeat.leave("default", workers=1)
    sign("default", workers=1, busy=1)
    assert [(beat.stopping, beat.busy, beat.claimed_ago) for beat in told] == [(False, 1, 0.0), (True, 0, 3.0)]
    now[0] += heartbeat.INTERVAL
    sign("default", workers=1, busy=0)
    assert not told[-1].stopping and len({beat.key for beat in told}) == 1


def test_the_last_sign_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite somebody may hold the write lock."""
    told: list[Beat] = []
    monkeypatch.setattr(heartbeat, "beat", lambda using, beat: bool(told.append(beat)) or len(told) == 3)
    sign("default", workers=1, busy=0)
    heartbeat.leave("default", workers=1)
    assert [beat.stopping for beat in told] == [False, True, True]


def test_the_drain_command_takes_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it fails."""
    call_command("durableflow", "drain", stdout=io.StringIO())
    assert Heartbeat.objects.get().stopping
    Heartbeat.objects.update(stopping=False)

    def fail(**_options: Any) -> int:
        raise ValueError

    monkeypatch.setattr("durableflow.management.verbs.drain.drain", fail)
    with pytest.raises(ValueError):
        call_command("durableflow", "drain", stdout=io.StringIO())
    assert Heartbeat.objects.get().stopping


def test_a_clusters_worker_is_silent() -> None:
    """Its cluster speaks for it."""
    heartbeat.silence()
    sign("default", workers=1, busy=0)
    assert not Heartbeat.objects.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_another_group() -> None:
    """Or two processes would write one row."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(heartbeat._own.key).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reader, 100)) != heartbeat._own.key
    os.close(reader)
    os.close(writer)
