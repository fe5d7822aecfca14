"""What a cluster loads before it forks."""

from __future__ import annotations

import pydoc
import sys

import pytest

from tests.support.concurrency import child, finish


def loaded_late() -> None:
    """In a process: load the main process, then execute something as a worker does; the modules that came with it."""
    from durableflow.cluster import broker, run  # noqa: F401

    before = set(sys.modules)
    from tests.workflows.cluster_samples import ClusterSteps

    ClusterSteps.create({"log": "/dev/null", "name": "w"})
    task = pydoc.locate(broker.DRAIN)
    assert callable(task)
    task()
    late = sorted(name for name in set(sys.modules) - before if name.startswith("durableflow"))
    sys.stdout.write(" ".join(late))


@pytest.mark.django_db(transaction=True)
def test_a_worker_loads_nothing_of_ours_after_the_fork() -> None:
    """A deploy replaces the files under a cluster that runs; a worker that is recycled then, and loads some of them, would mix
    two versions of the engine in one process."""
    with child("tests.integration.test_cluster_loading:loaded_late") as process:
        assert finish(process) == ""
