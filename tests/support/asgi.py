"""A real ASGI server in a thread, and a client that reads an endless answer."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvicorn
from django.core.asgi import get_asgi_application

from tests.support.concurrency import PATIENCE, eventually


@contextmanager
def asgi_server() -> Iterator[int]:
    """Serve the project on a free port of this host while the block runs; the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        get_asgi_application(), lifespan="off", ws="none", log_config=None, timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started, "the server")
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()
    assert not thread.is_alive(), "the server does not end"


class ServerSent(NamedTuple):
    """One server-sent event."""

    id: str | None
    event: str | None
    data: Any


class Stream:
    """An answer of server-sent events."""

    def __init__(self, port: int, path: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("GET", path, headers={"Accept": "text/event-stream", **names})
        self.response = self._connection.getresponse()
        self.status = self.response.status
        self.comments = 0

    def __iter__(self) -> Iterator[ServerSent]:
        fields: dict[str, str] = {}
        while line := self.response.readline().decode():
            name, _colon, value = line.rstrip("\n").partition(": ")
            if line.startswith(":"):
                self.comments += 1
            elif line == "\n" and fields:
                yield ServerSent(fields.get("id"), fields.get("event"), json.loads(fields["data"]))
                fields = {}
            elif line != "\n":
                fields[name] = value

    def body(self) -> Any:
        """The JSON of an answer that is none of events."""
        return json.loads(self.response.read() or "null")

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
