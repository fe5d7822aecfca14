"""A running cluster purges by itself (design 9; reference 14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from durableflow.models import Chore, WorkflowInstance
from tests.integration.retention_flows import ended, left, old
from tests.support.cluster import cluster, until
from tests.workflows.cluster_samples import ClusterSteps

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_cluster_purges_what_is_over_and_leaves_the_rest(tmp_path: Path) -> None:
    """Nothing else is due: the broker hands out a drain for it, again for each batch, and works on meanwhile."""
    old(25)
    young = ended(
        ClusterSteps.create({"log": str(tmp_path / "young"), "name": "y"}, instance_id="young"), "complete", 1
    )
    with cluster(tmp_path / "cluster.log", constants={"durableflow.operations.regular.ROWS_AT_ONCE": 10}):
        until(lambda: left() == [young.instance_id], "the purge")
        row = ClusterSteps.create({"log": str(tmp_path / "log"), "name": "n"}, instance_id="new")
        until(lambda: WorkflowInstance.objects.get(pk=row.pk).status == "complete", "the instance")
    assert set(Chore.objects.values_list("name", flat=True)) == {"purge", "schedules"}
