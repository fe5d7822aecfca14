"""The parts of the demo runner on their own: children that leave nothing behind, signals, and a patient client."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from durableflow.cluster.children import gone
from project.demo.runner import children as children_module
from project.demo.runner import client as client_module
from project.demo.runner.children import Child, Children
from project.demo.runner.client import Api, Refused
from project.demo.runner.errors import DemoFailed, Stopped
from project.demo.runner.servers import free_port
from project.demo.runner.signals import Signals
from project.demo.runner.watch import Watched, all_pages, describe

# Starts a grandchild that ignores SIGTERM, writes its pid and sleeps.
STUBBORN_FAMILY = """
import pathlib, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
family = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
family.stdout.readline()
print(family.pid, flush=True)
time.sleep(60)
"""


def until(found: Callable[[], Any], what: str) -> Any:
    """Poll for at most 20 seconds."""
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        if value := found():
            return value
        time.sleep(0.02)
    raise AssertionError(f"never came: {what}")


def lives(pid: int) -> bool:
    return not gone(pid)


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    monkeypatch.setattr(children_module, "GRACE", 0.5)
    children = Children(lambda text: None)
    yield children
    children.stop()


def child(tmp_path: Path, code: str) -> Child:
    return Child(
        "thing", [sys.executable, "-c", code], log=tmp_path / "log" / "thing.log", env=os.environ, cwd=tmp_path
    )


def test_stop_ends_descendants_that_ignore_sigterm(family: Children, tmp_path: Path) -> None:
    parent = child(tmp_path, STUBBORN_FAMILY)
    family.start(parent)
    grandchild = int(until(parent.last_lines, "the grandchild's pid"))
    assert parent.process is not None
    assert os.getpgid(grandchild) == parent.process.pid != os.getpgrp()
    family.stop()
    assert not lives(grandchild)
    assert not lives(parent.process.pid)


def test_stop_reaches_what_a_dead_child_left_behind(family: Children, tmp_path: Path) -> None:
    parent = child(tmp_path, STUBBORN_FAMILY)
    family.start(parent)
    grandchild = int(until(parent.last_lines, "the grandchild's pid"))
    assert parent.process is not None
    parent.process.kill()
    parent.process.wait()
    family.stop()
    assert not lives(grandchild)


def test_a_dead_child_is_started_again_but_not_for_ever(family: Children, tmp_path: Path) -> None:
    crashing = child(tmp_path, "print('the reason'); raise SystemExit(3)")
    family.start(crashing)

    def revive(replaced: bool = False) -> None:
        until(lambda: crashing.ended() is not None, "its end")
        family.revive(crashing, after=0, replaced=lambda: replaced, most=2)

    revive(replaced=True)
    assert crashing.starts == 1
    revive()
    assert crashing.starts == 2
    with pytest.raises(DemoFailed, match=r"(?s)thing ended 2 times \(last exit code 3\).*the reason"):
        revive()


def test_a_dead_child_is_given_time_to_be_started_by_somebody_else(family: Children, tmp_path: Path) -> None:
    crashing = child(tmp_path, "")
    family.start(crashing)
    until(lambda: crashing.ended() is not None, "its end")
    family.revive(crashing, after=60, replaced=lambda: False)
    assert crashing.starts == 1


def test_a_signal_unwinds_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as caught, Signals().watched():
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the signal did not unwind")
    assert caught.value.signum == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_held_signal_waits_and_cleaning_up_ignores_it() -> None:
    signals, passed = Signals(), []
    with signals.watched():
        with pytest.raises(Stopped), signals.held():
            os.kill(os.getpid(), signal.SIGINT)
            passed.append("held")
        signals.ignore()
        os.kill(os.getpid(), signal.SIGINT)
        passed.append("ignored")
    assert passed == ["held", "ignored"]


class Answers(BaseHTTPRequestHandler):
    """Gives the prepared answers one after the other, and keeps what was asked."""

    prepared: list[tuple[int, Any]]
    asked: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        type(self).asked.append((self.path, dict(self.headers)))
        status, body = type(self).prepared.pop(0)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Answers]]]:
    handler = type("Prepared", (Answers,), {"prepared": [], "asked": []})
    with HTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", handler
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PAUSE", 0.01)


def api(url: str, tick: Callable[[], None] = lambda: None) -> Api:
    return Api(url, "secret-token", tick=tick)


def test_the_client_is_patient_with_a_server_that_restarts(server: tuple[str, type[Answers]]) -> None:
    url, handler = server
    handler.prepared += [(502, b"<html>"), (500, {}), (200, b"half"), (200, {"ok": True})]
    assert api(url).post("/x/", {"a": 1}, **{"Idempotency-Key": "k"}) == {"ok": True}
    assert len(handler.asked) == 4
    assert {headers["Idempotency-Key"] for _, headers in handler.asked} == {"k"}


def test_the_client_does_not_repeat_what_was_refused(server: tuple[str, type[Answers]]) -> None:
    url, handler = server
    handler.prepared += [(409, {"code": "already_decided", "detail": "Ada was first."})]
    with pytest.raises(Refused, match=r"409 already_decided: Ada was first\.") as caught:
        api(url).get("/x/")
    assert caught.value.code == "already_decided"
    assert len(handler.asked) == 1


def test_the_client_gives_up_in_the_end_and_names_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PATIENCE", 0.1)
    with pytest.raises(DemoFailed, match=r"GET http://127.0.0.1:\d+/x/ did not work") as caught:
        api(f"http://127.0.0.1:{free_port()}").get("/x/")
    assert "secret-token" not in str(caught.value)


def test_the_client_looks_after_the_children_before_each_try() -> None:
    def tick() -> None:
        raise DemoFailed("the cluster is gone")

    with pytest.raises(DemoFailed, match="the cluster is gone"):
        api("http://127.0.0.1:9", tick).get("/x/")


def test_lists_are_read_to_their_last_page(server: tuple[str, type[Answers]]) -> None:
    url, handler = server
    handler.prepared += [(200, {"results": [{"id": 1}], "next": f"{url}/x/?cursor=2"}), (200, {"results": [{"id": 2}]})]
    assert all_pages(api(url), "/x/") == [{"id": 1}, {"id": 2}]
    assert [path for path, _ in handler.asked] == ["/x/", "/x/?cursor=2"]


STEP = {"id": 1, "kind": "do", "name": "charge", "count": 1, "status": "pending", "attempts": 1}


def test_a_look_says_each_change_once(server: tuple[str, type[Answers]]) -> None:
    url, handler = server
    waiting = {"status": "waiting", "waiting_for": [{"pending_event": 7, "name": "approval"}]}
    handler.prepared += [(200, waiting), (200, [STEP]), (200, waiting), (200, [STEP | {"attempts": 2}])]
    watched = Watched(api(url), "pay-cart", "cart-1")
    said: list[str] = []
    for _ in range(2):
        watched.look(said.append)
    assert said == [
        "pay-cart cart-1: step 'charge' pending",
        "pay-cart cart-1: waiting, waits for 'approval'",
        "pay-cart cart-1: step 'charge' pending, attempt 2",
    ]


@pytest.mark.parametrize("status", ["errored", "terminated", "paused"])
def test_an_instance_that_cannot_go_on_says_why(server: tuple[str, type[Answers]], status: str) -> None:
    url, handler = server
    handler.prepared += [(200, {"status": status, "error": {"type": "ValueError", "message": "bad\nthing"}}), (200, [])]
    watched = Watched(api(url), "pay-cart", "cart-1")
    said: list[str] = []
    watched.look(said.append)
    assert watched.stuck
    assert said == [f"pay-cart cart-1: {status}: ValueError: bad thing"]


def test_steps_are_described_in_words() -> None:
    assert describe(STEP | {"kind": "wait_for_approval", "name": "approval", "count": 2, "status": "complete"}) == (
        "wait for approval 'approval' #2 complete"
    )
