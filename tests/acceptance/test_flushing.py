"""Completions that wait for the disk together with the next claim, and a server that crashes (design 1.1, 1.2, 11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from durableflow import Step, Workflow, WorkflowEvent, drain
from durableflow.core.statuses import Status
from durableflow.engine import endings, flushing
from durableflow.models import WorkflowInstance
from tests.support.own_server import OwnServer, own_server

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql_only]


@pytest.fixture
def server(transactional_db: None) -> Iterator[OwnServer]:
    """One that writes to the disk what somebody waits for, and nothing else for ten seconds."""
    with own_server() as own:
        own.run("ALTER SYSTEM SET wal_writer_delay = '10s'")
        own.run("ALTER SYSTEM SET autovacuum = off")
        own.run("SELECT pg_reload_conf()")
        connection.close()
        yield own


class Noting:
    """A workflow of one step, and how often its body has run."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        noting = self

        class Noted(Workflow[int, int]):
            def run(self, event: WorkflowEvent[int], step: Step) -> int:
                return step.do("note", lambda: noting.ran.append(event.params) or event.params)  # type: ignore[func-returns-value]

        self.flow = Noted


def test_what_a_drain_has_completed_is_on_the_disk(server: OwnServer) -> None:
    """The last completion too, after which there was nothing to claim."""
    noting = Noting()
    for number in range(3):
        noting.flow.create(number)
    assert drain() == 3
    server.leave()
    server.come_back()
    assert set(WorkflowInstance.objects.values_list("status", flat=True)) == {Status.COMPLETE}
    assert sorted(noting.ran) == [0, 1, 2]


def test_a_completion_that_a_crash_takes_back_runs_no_body_again(
    server: OwnServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crash comes between the completion and the look that follows: the journal is there, the lease ends."""
    settings.DURABLEFLOW = {**settings.DURABLEFLOW, "LEASE": 1}
    noting, seen = Noting(), []
    complete = endings.complete

    def then_crash(*args: Any, **kwargs: Any) -> None:
        complete(*args, **kwargs)
        if not seen:
            seen.append(WorkflowInstance.objects.get().status)
            server.leave()
            server.come_back()
            seen.append(WorkflowInstance.objects.get().status)

    monkeypatch.setattr(endings, "complete", then_crash)
    row = noting.flow.create(7)
    drain()
    assert seen == [Status.COMPLETE, Status.RUNNING], "the crash has taken nothing back: this proves nothing"
    while row.status != Status.COMPLETE:
        drain()
        row.refresh_from_db()
    assert (row.output, row.interruptions, noting.ran) == (7, 0, [7])
    assert row.history.filter(type="workflow_completed").count() == 1


def test_who_looks_for_no_more_work_waits(server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a drain's loop, as in the thread that makes parked endings, a completion is on the disk when it is seen."""
    row = Noting().flow.create(1)
    monkeypatch.setattr(flushing, "allowed", lambda: False)
    monkeypatch.setattr(flushing, "flush", lambda using: None)
    drain()
    server.leave()
    server.come_back()
    row.refresh_from_db()
    assert row.status == Status.COMPLETE
