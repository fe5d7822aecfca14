"""Calling ``manage.py durableflow`` in the test's own process."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from django.core.management import CommandError, call_command


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """It says so."""
        return True


@dataclass(frozen=True)
class Called:
    """How a command ended: its exit status, as the shell would see it, and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


def called(*arguments: str, stdin: str | None = None, terminal: bool = False) -> Called:
    """``manage.py durableflow *arguments``. ``stdin``: what it reads there; ``terminal``: all three streams are one."""
    kind = Terminal if terminal else io.StringIO
    out, err, given = kind(), kind(), kind(stdin or "")
    status, said = 0, ""
    with mock.patch.object(sys, "stdin", given):
        try:
            call_command("durableflow", *arguments, stdout=out, stderr=err, skip_checks=True)
        except CommandError as error:
            status, said = error.returncode, str(error)
        except SystemExit as end:
            status = int(end.code or 0)
    return Called(status, out.getvalue(), err.getvalue() + said)
