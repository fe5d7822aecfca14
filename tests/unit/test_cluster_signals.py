"""Signals to the whole group that come while the sentinel is being made (design 4, "group SIGTERM ends cleanly")."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from typing import Any

import pytest
from django_q import cluster as q_cluster

from durableflow.cluster.children import Flag
from durableflow.cluster.sentinel import Sentinel

FORK = multiprocessing.get_context("fork")


def made_while_signalled(parent: int, number: int) -> None:
    """django-q2 asks for its broker just after it has made SIGTERM deadly again."""

    def signalled() -> Any:
        os.kill(os.getpid(), number)
        return object()

    q_cluster.get_broker = signalled
    Sentinel(Flag(), Flag(), uuid.uuid4(), parent)
    os.kill(os.getpid(), number)
    os._exit(3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_group_does_not_kill_a_sentinel_that_is_being_made(number: int) -> None:
    """Else the main process, which was asked to stop, says that the cluster has died, and ends with status 1."""
    process = FORK.Process(target=made_while_signalled, args=(os.getpid(), number))
    process.start()
    process.join(30)
    assert process.exitcode == 3
