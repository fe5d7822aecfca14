"""PostgreSQL goes away under a working cluster: stopped, restarted, out of connections, deaf (issue; design 1, 4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest
from django.db import connection

from tests.acceptance.test_cluster_deaths import Held, complete, serves
from tests.support.cluster import ClusterProcess, cluster, until
from tests.support.own_server import OwnServer, own_server
from tests.workflows.cluster_samples import ClusterNap, ClusterSteps

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql_only]
LEASE: Final = 3
AWAY: Final = 3 * LEASE
"""Seconds: far longer than a lease and the time for which it is only suspect."""
EARLY: Final = {f"durableflow.cluster.watchdog.{name}": value for name, value in
                {"OVERDUE": 2.0, "SILENT": 4.0, "IDLE": 0.5, "LOOK": 2.0}.items()}  # fmt: skip
"""A watchdog that would bark at a database that is away, if it did not ask whether it answers."""


@pytest.fixture
def server(transactional_db: None) -> Iterator[OwnServer]:
    with own_server() as own:
        yield own


def stopped(server: OwnServer, meanwhile: Callable[[], None]) -> None:
    server.leave()
    meanwhile()
    server.come_back()


def restarted(server: OwnServer, meanwhile: Callable[[], None]) -> None:
    server.leave()
    server.come_back()
    meanwhile()


def filled(server: OwnServer, meanwhile: Callable[[], None]) -> None:
    server.fill()
    meanwhile()
    server.empty()


def for_longer_than_a_lease() -> None:
    end = time.monotonic() + AWAY
    until(lambda: time.monotonic() > end, "any lease would be over")


@pytest.mark.parametrize(("disturb", "threads"), [(stopped, 1), (restarted, 4), (filled, 4)])
def test_it_waits_for_the_database_and_goes_on(
    tmp_path: Path, server: OwnServer, disturb: Callable[[OwnServer, Callable[[], None]], None], threads: int
) -> None:
    """Bodies that run go on, and what they return is stored; no live worker's instance is taken over, no process dies."""
    held = [Held(tmp_path, name) for name in ("ends meanwhile", "ends later")]
    settings = {"LEASE": LEASE, "THREADS": threads}
    with running_on(server, tmp_path, settings) as running:
        for each in held:
            each.begun()
        nap = ClusterNap.create({"log": str(tmp_path / "nap"), "name": "nap", "seconds": AWAY / 2})
        until(lambda: nap.steps.filter(name="nap").exists(), "it sleeps")
        processes = running.members()

        def meanwhile() -> None:
            held[0].gate.touch()
            for_longer_than_a_lease()

        disturb(server, meanwhile)
        until(lambda: complete(held[0].row), "the body that ended meanwhile is stored")
        until(lambda: complete(nap), "the timer that was over meanwhile goes on")
        serves(tmp_path, "new")
        held[1].finish()
        assert running.members() == processes, "no process has died"
        assert said(running, "The database does not answer") <= 1 and said(running, "answers again") <= 1
        if disturb is not restarted:
            assert said(running, "The database does not answer") == 1
        assert said(running, "stands still") == 0 and said(running, "Traceback") == 0
        assert running.stop() == 0
        assert not running.alive()
    assert [len(each.pids) for each in held] == [1, 1], "nobody's instance was taken over"
    assert (tmp_path / "nap").read_text().split("\n")[:-1] == ["nap before", "nap after"]


def test_a_stop_while_the_database_is_away(tmp_path: Path, server: OwnServer) -> None:
    """Status 0 and no orphan all the same; the instance goes on when its lease is over."""
    held = [Held(tmp_path, "runs"), Held(tmp_path, "has ended")]
    with running_on(server, tmp_path, {"LEASE": LEASE, "SHUTDOWN_GRACE": 1}) as running:
        for each in held:
            each.begun()
        server.leave()
        held[1].gate.touch()
        until(lambda: said(running, "The database does not answer"), "it waits")
        assert running.stop() == 0
        assert not running.alive()
        server.come_back()
    with running_on(server, tmp_path, {"LEASE": LEASE}, log="log2"):
        for each in held:
            each.begun(2)  # what had ended could not be stored
            each.finish()


def running_on(
    server: OwnServer, directory: Path, settings: Mapping[str, float], log: str = "log"
) -> AbstractContextManager[ClusterProcess]:
    """A cluster of three workers that connects as a role whose number of connections can be limited."""
    return cluster(
        directory / log,
        durableflow=settings,
        q_cluster={"workers": 3},
        constants=EARLY,
        DATABASE_URL=server.app_url,
    )


def said(running: ClusterProcess, words: str) -> int:
    return running.log.read_text(errors="replace").count(words)


def test_a_cut_ear_grows_again(tmp_path: Path) -> None:
    """The session of LISTEN is ended: said once, work goes on, and so does hearing."""
    with cluster(tmp_path / "log", constants={"durableflow.cluster.postgresql.TEST_EVERY": 1.0}) as running:
        serves(tmp_path, "before")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE application_name = 'durableflow cluster' AND datname = current_database()"
            )
            assert cursor.fetchone()[0] == 1
        serves(tmp_path, "meanwhile")
        until(lambda: running.said("The cluster hears notifications again."), "it hears again")
        assert said(running, "hears no notifications") == 1
        assert running.stop() == 0


def test_behind_a_pooler_it_looks_each_second_until_it_hears(tmp_path: Path) -> None:
    """A pooler in transaction mode swallows LISTEN: said once; work goes on by the look of each second."""
    pooler = tmp_path / "pooler"
    pooler.touch()
    constants = {f"durableflow.cluster.postgresql.{name}": 1.0 for name in ("TEST_EVERY", "TEST_PATIENCE")}
    with cluster(tmp_path / "log", constants=constants, TEST_DEAF=str(pooler)) as running:
        until(lambda: running.said("does not hear notifications"), "it finds out")
        for n in range(3):
            serves(tmp_path, f"deaf{n}")
        assert said(running, "hear notifications") == 1
        pooler.unlink()
        until(lambda: running.said("The cluster hears notifications again."), "it hears")
        row = ClusterSteps.create({"log": str(tmp_path / "new"), "name": "heard"})
        until(lambda: complete(row), "it goes on")
        assert running.stop() == 0
