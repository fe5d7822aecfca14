"""Server-sent events of an instance's history, from a real ASGI server (reference 12, scenario L)."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections
from rest_framework.test import APIClient

from durableflow.api import streaming
from durableflow.core import hearing
from durableflow.models import WorkflowInstance, watching
from tests.integration.follow_flows import FollowedOrder, FollowedSecret, FollowedSteps
from tests.support.asgi import ServerSent, Stream, asgi_server
from tests.support.concurrency import Task, eventually
from tests.support.engine import drain_all

pytestmark = pytest.mark.django_db(transaction=True)
Opener = Callable[..., Stream]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of an ASGI server; its threads keep no connection."""
    for alias in connections:
        monkeypatch.setitem(connections.settings[alias], "CONN_MAX_AGE", 0)
    monkeypatch.setattr(watching, "MARK_EVERY", 3600.0)
    with asgi_server() as port:
        yield port


@pytest.fixture
def stream_of(server: int, client_of: Callable[[str], APIClient]) -> Iterator[Opener]:
    """``stream_of(row, "?after=3", role="viewer", Last_Event_ID="3")``."""
    made: list[Stream] = []

    def open_one(row: Any, query: str = "", role: str = "viewer", **headers: str) -> Stream:
        cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client_of(role).cookies.items())
        path = f"/api/workflows/{row.workflow}/instances/{row.instance_id}/history/stream/{query}"
        made.append(Stream(server, path, Cookie=cookies, **headers))
        return made[-1]

    yield open_one
    for stream in made:
        stream.close()


class Reader:
    """Reads a stream in a thread."""

    def __init__(self, stream: Stream) -> None:
        self.seen: list[ServerSent] = []
        self._stream = stream
        self.task = Task(self._run)

    def _run(self) -> None:
        for event in self._stream:
            self.seen.append(event)

    def sees(self, event: str) -> None:
        eventually(lambda: self.task.done or event in [each.event for each in self.seen], event)
        assert self.task.error is None, self.task.error
        assert event in [each.event for each in self.seen], self.seen

    @property
    def ids(self) -> list[int]:
        return [int(event.id) for event in self.seen if event.id is not None]


def test_live(stream_of: Opener, client_of: Callable[[str], APIClient]) -> None:
    """Scenario L: what happens comes when it happens, with the list's own items, to the end."""
    row = FollowedOrder.create()
    stream = stream_of(row)
    headers = stream.response.headers
    assert (stream.status, headers["Content-Type"], headers["Cache-Control"]) == (200, "text/event-stream", "no-cache")
    reader = Reader(stream)
    reader.sees("workflow_queued")
    drain_all()
    reader.sees("wait_started")
    row.send_event("go", 1)
    drain_all()
    reader.task.result()
    assert reader.seen[-1] == ServerSent(None, "end", {"status": "complete"})
    path = f"/api/workflows/{row.workflow}/instances/{row.instance_id}/history/"
    listed = client_of("viewer").get(path).json()["results"]
    assert [event.data for event in reader.seen[:-1]] == listed
    assert [event.event for event in reader.seen[:-1]] == [entry["type"] for entry in listed]
    assert reader.ids == list(row.history.order_by("id").values_list("pk", flat=True))


def test_reconnecting(stream_of: Opener) -> None:
    """Scenario L: Last-Event-ID and ?after= go on exactly; of a sequence only the last has the id, so that one that was cut
    comes again as a whole."""
    row = FollowedOrder.create()
    row.send_event("go", 1)
    drain_all()
    whole = list(stream_of(row))
    for number, event in enumerate(whole[:-2]):
        if event.id is not None:
            assert list(stream_of(row, Last_Event_ID=event.id)) == whole[number + 1 :]
            assert list(stream_of(row, f"?after={event.id}")) == whole[number + 1 :]
    names = [event.event for event in whole if event.id is None]
    assert names == ["step_started", "attempt_started", "attempt_completed"] * 2 + ["end"]
    assert list(stream_of(row, "?after=0", Last_Event_ID=str(whole[-2].id))) == []


def test_the_end_is_no_reason_to_come_again(stream_of: Opener) -> None:
    """Browsers reconnect for ever but for a 204."""
    row = FollowedSteps.create(1)
    drain_all()
    last = row.history.latest("id").pk
    assert stream_of(row, Last_Event_ID=str(last)).status == 204
    assert [event.event for event in stream_of(row, f"?after={last}")] == ["end"]


def test_types(stream_of: Opener) -> None:
    """Scenario L: filtered, also to what an entry only stands for, which has the id then; the end comes all the same."""
    row = FollowedSteps.create(1)
    drain_all()
    seen = list(stream_of(row, "?types=step_started,attempt_started"))
    assert [event.event for event in seen] == ["step_started", "attempt_started", "end"]
    assert [event.id for event in seen] == [None, str(row.history.get(type="step_completed").pk), None]


def test_sensitive_outputs_are_masked(stream_of: Opener) -> None:
    """SEC-09: an error that quotes what a sensitive step has returned."""
    row = FollowedSecret.create()
    drain_all()
    events = list(stream_of(row))
    assert "workflow_errored" in [event.event for event in events]
    assert "s3cr3t" not in str(events) and "[REDACTED]" in str(events)


@pytest.mark.parametrize(("role", "status"), [("anonymous", 401), ("stranger", 404), ("creator", 404), ("viewer", 200)])
def test_who_may_see_it(role: str, status: int, stream_of: Opener) -> None:
    """SEC-04: as the instance itself; errors are JSON also for who accepts events alone."""
    row = FollowedSteps.create(0)
    drain_all()
    stream = stream_of(row, role=role)
    assert stream.status in ((401, 403) if status == 401 else (status,))
    if status != 200:
        assert set(stream.body()) >= {"code", "detail"}


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30])
def test_wrong_places(last: str, stream_of: Opener) -> None:
    """They are refused before the stream begins."""
    stream = stream_of(FollowedSteps.create(0), Last_Event_ID=last)
    assert (stream.status, list(stream.body()["fields"])) == (400, ["Last-Event-ID"])


def test_only_the_head(server: int, client_of: Callable[[str], APIClient]) -> None:
    """A HEAD follows nobody."""
    row = FollowedOrder.create()
    cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client_of("viewer").cookies.items())
    path = f"/api/workflows/{row.workflow}/instances/{row.instance_id}/history/stream/"
    asked = http.client.HTTPConnection("127.0.0.1", server, timeout=60)
    asked.request("HEAD", path, headers={"Cookie": cookies})
    answer = asked.getresponse()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
    asked.close()


def test_a_parameter_that_means_nothing(stream_of: Opener) -> None:
    """It is refused, not ignored."""
    stream = stream_of(FollowedOrder.create(), "?afer=3")
    assert (stream.status, list(stream.body()["fields"])) == (400, ["afer"])


def test_a_right_that_is_taken_away(
    stream_of: Opener, people: Callable[[str], User], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right is looked at again: a stream does not outlive it."""
    monkeypatch.setattr(streaming, "CHECK_EVERY", 0.0)
    row = FollowedOrder.create()
    reader = Reader(stream_of(row))
    reader.sees("workflow_queued")
    people("viewer").user_permissions.clear()
    drain_all()
    reader.task.result()
    assert [event.event for event in reader.seen] == ["workflow_queued", "end"]
    assert reader.seen[-1].data == {"status": None}


def test_signs_of_life(stream_of: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments, so that nothing in between takes a quiet stream for dead."""
    monkeypatch.setattr(streaming, "HEARTBEAT", 0.05)
    row = FollowedOrder.create()
    stream = stream_of(row)
    reader = Reader(stream)
    eventually(lambda: stream.comments >= 4, "heartbeats")
    row.terminate()
    reader.task.result()
    assert [event.event for event in reader.seen] == ["workflow_queued", "workflow_terminated", "end"]


def test_streams_hold_no_thread_and_no_connection(stream_of: Opener) -> None:
    """A hundred quiet streams: the threads are those of one; the database has no session more."""
    row = FollowedOrder.create()
    first = Reader(stream_of(row))
    first.sees("workflow_queued")
    streams = [stream_of(row, f"?after={row.history.get().pk}") for _ in range(40)]
    hub = hearing.hub_of("default")
    assert hub is not None
    eventually(lambda: len(hub._members.get(row.pk, ())) == 41, "all listen")
    eventually(lambda: len([name for name in _threads() if "durableflow-stream" in name]) <= 4)
    eventually(
        lambda: len([name for name in _threads() if name.startswith("ThreadPoolExecutor")]) <= 2, str(_threads())
    )
    if connection.vendor == "postgresql":
        eventually(lambda: _sessions() <= 6, "few sessions")
    for stream in streams:
        stream.close()
    eventually(lambda: len(hub._members.get(row.pk, ())) == 1, "those who hung up have gone")
    row.terminate()
    first.task.result()


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def _sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


@pytest.fixture(autouse=True)
def _all_leave() -> Iterator[None]:
    yield
    hub = hearing.hub_of("default")
    eventually(lambda: hub is None or not hub._members, "the end of all streams")
    assert WorkflowInstance.objects.count() <= 1
