"""The two programs that the demo needs: a web server on a free port and a cluster."""

from __future__ import annotations

import http.client
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from project.demo.runner.children import Child, Children, manage
from project.demo.runner.errors import DemoFailed
from project.demo.runner.signals import Signals

HOST = "127.0.0.1"
START_LIMIT = 40.0
REPLACE_AFTER = 5.0
"""Seconds in which somebody else may start a program again that they ended; after that the demo does it."""


class Servers:
    """Web server and cluster, and the address they share."""

    def __init__(self, root: Path, logs: Path, *, signals: Signals, say: Callable[[str], None]) -> None:
        self._root, self._logs = root, logs
        self._signals = signals
        self._children = Children(say)
        self._web: Child | None = None
        self._cluster: Child | None = None
        self.base_url = ""

    def start(self) -> None:
        """Start the web server, wait until it answers, start the cluster. A port that is taken is replaced."""
        for _ in range(3):
            if self._start_web():
                break
        else:
            raise DemoFailed(
                f"The web server does not start. Its log, {self._logs / 'web.log'}:\n{self._tail(self._web)}"
            )
        self._cluster = self._child("cluster", "durableflow_cluster")
        with self._signals.held():
            self._children.start(self._cluster)

    def look(self) -> None:
        """Start again what has ended. Raises ``DemoFailed`` where that does not help."""
        if self._web and self._cluster:
            with self._signals.held():
                self._children.revive(self._web, after=REPLACE_AFTER, replaced=self._answers)
                self._children.revive(self._cluster, after=REPLACE_AFTER, replaced=lambda: False)

    def stop(self) -> None:
        """End both with everything they started."""
        self._children.stop()

    def _start_web(self) -> bool:
        self.base_url = f"http://{HOST}:{free_port()}"
        web = self._web = self._child("web server", "runserver", "--noreload", self.base_url.removeprefix("http://"))
        with self._signals.held():
            self._children.start(web)
        limit = time.monotonic() + START_LIMIT
        while time.monotonic() < limit and web.ended() is None:
            if self._answers():
                return True
            time.sleep(0.1)
        if web.ended() is None:
            raise DemoFailed(
                f"The web server does not answer after {START_LIMIT:.0f} seconds. "
                f"Its log, {web.log}:\n{self._tail(web)}"
            )
        self._children.drop(web)
        return False

    def _child(self, name: str, *arguments: str) -> Child:
        env = {**os.environ, "BASE_URL": self.base_url, "PYTHONUNBUFFERED": "1"}
        return Child(name, manage(*arguments), log=self._logs / f"{name.split()[0]}.log", env=env, cwd=self._root)

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.base_url}/accounts/login/", timeout=5):  # noqa: S310  our own server
                return True
        except HTTPError as error:
            with error:
                return error.code < 500
        except (OSError, http.client.HTTPException):
            return False

    @staticmethod
    def _tail(child: Child | None) -> str:
        return child.last_lines() if child else ""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
