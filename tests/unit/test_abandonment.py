"""Giving up a body: what may not be cut off (design 6, "Timeouts")."""

from __future__ import annotations

import socket
from unittest import mock

from durableflow.engine import abandonment


def test_an_attempt_that_is_writing_is_left_alone() -> None:
    """Its checkpoint is on the way: to cut its connection would lose a finished body."""
    attempt = mock.Mock()
    attempt.abandon.return_value = False
    assert abandonment.abandon(attempt) is False
    assert [call[0] for call in attempt.mock_calls] == ["abandon"]


def test_a_descriptor_that_is_somebody_elses_by_now_is_not_broken() -> None:
    """The thread may close its connection between the look and the cut, and another one get its number."""
    left, right = socket.socketpair()
    with left, right:
        raw = mock.Mock(closed=False)
        raw.fileno.side_effect = [left.fileno(), -1]
        abandonment.cut_off([("postgresql", raw)], cancel=False)
        left.sendall(b"whole")
        assert right.recv(5) == b"whole"
        raw.fileno.side_effect = [left.fileno()] * 2
        abandonment.cut_off([("postgresql", raw)], cancel=False)
        assert right.recv(5) == b""
