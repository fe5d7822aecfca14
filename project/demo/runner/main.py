"""The demo from its first line to the last: everything that was started is ended, whatever happens in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import OperationalError, connections
from django.urls import reverse

from project.demo.runner import flow as flows
from project.demo.runner.client import Api, Refused
from project.demo.runner.errors import DemoFailed, Stopped
from project.demo.runner.people import Person, make_people
from project.demo.runner.servers import Servers
from project.demo.runner.signals import Signals

SECONDS = 160.0
"""An automatic demo gives up after this time, so that it ends, cleaning up included, within three minutes."""

Say = Callable[[str], None]


class Demo:
    """One demo. ``say`` gets lines of text; ``auto`` decides by itself and ends when both workflows are complete."""

    def __init__(self, *, auto: bool, seconds: float, say: Say) -> None:
        self._auto = auto
        self._say_line = say
        self._deadline = time.monotonic() + seconds
        self._signals = Signals()
        self._servers = Servers(
            Path(settings.BASE_DIR), Path(settings.VAR_DIR) / "log", signals=self._signals, say=self._say
        )

    def run(self) -> int:
        """The exit code: 0 if all went well or a person ended it, 1 for a failure, 128 + n for an early signal n."""
        with self._signals.watched():
            try:
                self._run()
                code = 0
            except (DemoFailed, Refused) as failure:
                self._say_line(f"The demo failed. {failure}")
                code = 1
            except Stopped as stopped:
                self._say_line("")
                code = 128 + stopped.signum if self._auto else 0
            finally:
                self._signals.ignore()
                self._servers.stop()
                connections.close_all()
        self._say_line("Web server and cluster are stopped.")
        return code

    def _run(self) -> None:
        try:
            call_command("migrate", interactive=False, verbosity=0)
        except OperationalError as error:
            raise DemoFailed(f"The database cannot be used: {error}") from error
        requester, approver = make_people()
        self._servers.start()
        url = self._servers.base_url
        self._say_line(f"Web server  {url}/\nLogs        {Path(settings.VAR_DIR) / 'log'}\n")
        flow = flows.start(requester, self._api(requester), say=self._say)

        def decide(pending_event: int) -> None:
            if self._auto:
                self._say("the approver's program approves the picture over REST")
                flows.approve(self._api(approver), pending_event, title=f"Demo picture {flow.image.pk}")
            else:
                self._say_line(where_to_approve(url, pending_event, requester, approver))

        flows.run_until_complete(flow, decide=decide, deadline=self._deadline if self._auto else None)
        self._say_line(
            "\nBoth workflows are complete. What was stored:\n  "
            + "\n  ".join(flows.stored(flow, everything=self._auto))
        )
        if not self._auto:
            self._stay(url)

    def _stay(self, url: str) -> None:
        self._say_line(f"\nThe pages are at {url}/ until you press Ctrl-C.")
        while True:
            time.sleep(flows.PAUSE)
            self._servers.look()

    def _api(self, person: Person) -> Api:
        return Api(self._servers.base_url, person.token, tick=self._servers.look)

    def _say(self, text: str) -> None:
        self._say_line(f"{time.strftime('%H:%M:%S')}  {text}")


def where_to_approve(url: str, pending_event: int, requester: Person, approver: Person) -> str:
    """What a person needs to know to decide."""
    address = url + reverse("admin:durableflow_pendingevent_change", args=[pending_event])
    return (
        f"\nThe picture waits for your decision:\n"
        f"  {address}\n"
        f"  user {approver.user.get_username()}, password {approver.password}\n"
        f"The one who started it ({requester.user.get_username()}, password {requester.password}) may not decide.\n"
        f"Press Ctrl-C to stop.\n"
    )
