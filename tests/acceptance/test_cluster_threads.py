"""Helper threads of a real cluster that never come back (design 6, "Timeouts"; OPS-08)."""

from __future__ import annotations

from pathlib import Path

import pytest

from durableflow.engine.pool import LEAST_LIMIT
from durableflow.engine.replacement import STUCK
from tests.acceptance.test_cluster_deaths import complete
from tests.support.cluster import cluster, until
from tests.support.engine import history_of
from tests.workflows.cluster_samples import ClusterResist, ClusterSteps

pytestmark = pytest.mark.django_db(transaction=True)
THREADS = LEAST_LIMIT


@pytest.mark.parametrize("how", ["C code", "swallows"])
def test_a_process_whose_threads_never_come_back_is_replaced(tmp_path: Path, how: str) -> None:
    """OPS-08: more bodies than a process may lose ignore their timeouts for ever. It ends with the status that says so, another
    one goes on with all instances, and no worker is charged as lost."""
    log = tmp_path / "bodies"
    log.touch()
    with cluster(tmp_path / "log", durableflow={"THREADS": THREADS}, q_cluster={"workers": 1}) as running:
        params = [{"log": str(log), "name": f"r{number}", "how": how, "count": THREADS + 1} for number in range(8)]
        resisting = [ClusterResist.create(row) for row in params]  # type: ignore[arg-type]
        until(lambda: log.read_text().count(" resists "), "a helper thread is stuck")
        beside = ClusterSteps.create({"log": str(log), "name": "beside"})
        until(lambda: all(complete(row) for row in (*resisting, beside)), "all go on", 120)
        assert running.said("in step bodies that timed out and do not end")
        assert running.said(f"died of exit status {STUCK}; what it executed goes on elsewhere")
        assert running.stop() == 0
        assert not running.alive()
    lines = log.read_text().splitlines()
    stuck = {line.split()[2] for line in lines if " resists " in line}
    done = {line.split()[2] for line in lines if " done " in line}
    assert len(stuck) == 1 and done - stuck, "the first process is stuck, another one goes on"
    assert [lines.count(f"r{number} before") for number in range(8)] == [1] * 8
    assert [history_of(row, "attempt_lost") for row in (*resisting, beside)] == [[]] * 9
