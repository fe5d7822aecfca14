"""How a demo ends early."""

from __future__ import annotations


class DemoFailed(Exception):
    """Something is not complete. The message names it and says where to look."""


class Stopped(BaseException):
    """A signal asked the demo to end. Not an Exception: nothing that handles failures may swallow it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
