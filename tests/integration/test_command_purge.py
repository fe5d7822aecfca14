"""``manage.py durableflow purge`` (case LIF-14; reference 14)."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow.models import WorkflowInstance
from durableflow.operations import Purged, PurgeReport
from durableflow.testing import Harness
from tests.integration.command_flows import Order, Wait, broken
from tests.support.commands import called

pytestmark = pytest.mark.django_db


def ended(workflows: Harness) -> None:
    """Two that completed and one that failed, all long ago; one that waits, and one that has just ended."""
    for each in ("a", "b"):
        workflows.run(Wait, instance_id=each).send_event("paid")
    with broken("load"):
        workflows.run(Order, instance_id="failed")
    workflows.run_due()
    workflows.advance("91 days")
    workflows.run(Wait, instance_id="waits")
    workflows.run(Wait, instance_id="new").send_event("paid")
    workflows.run_due()


def test_what_is_over_goes(workflows: Harness) -> None:
    """A dry run tells the same and deletes nothing; then the ids are free again."""
    ended(workflows)
    before = WorkflowInstance.objects.count()
    dry = called("purge", "--dry-run")
    lines = [" ".join(line.split()) for line in dry.out.splitlines()]
    assert lines[0].startswith("Would delete ") and lines[1] == "WORKFLOW SUCCEEDED FAILED TOTAL"
    assert {"cmd-order 0 1 1", "cmd-wait 2 0 2"} < set(lines)
    assert WorkflowInstance.objects.count() == before
    done = called("purge", "--json")
    assert (done.status, done.document["dry_run"]) == (0, False)
    assert done.document["total"] == before - WorkflowInstance.objects.count()
    assert lines[0] == f"Would delete {done.document['total']} instances."
    assert done.document["workflows"]["cmd-order"] == {"success": 0, "error": 1}
    assert done.document["workflows"]["cmd-wait"] == {"success": 2, "error": 0}
    assert sorted(Wait.instances().values_list("instance_id", flat=True)) == ["new", "waits"]
    assert called("start", "cmd-wait", "--id", "a").status == 0
    assert called("purge").out.startswith("Deleted 0 instances.\n")


def test_what_had_to_stay_is_told(workflows: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the project protects, with its models and by name; nothing is wrong with that."""
    report = PurgeReport(workflows={"w": Purged(success=1)}, locked=2, others={"durableflow.Heartbeat": 3})
    for number in range(2):
        report.protect(f"shop/order-{number}", "shop.Order")
    monkeypatch.setattr("durableflow.management.verbs.purge.purge", lambda **_options: report)
    done = called("purge")
    assert done.status == 0
    assert "Kept 2, protected by shop.Order:\n  shop/order-0\n  shop/order-1\n" in done.out
    assert "Kept 2 with which somebody works just now" in done.out
    assert "Deleted 3 rows of durableflow.Heartbeat." in done.out
    assert called("purge", "--json").document["protected_instances"][1] == {
        "instance": "shop/order-1",
        "protected_by": "shop.Order",
    }


def test_it_can_be_interrupted(workflows: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """130, with how far it came."""

    def interrupted(*, progress: Any, **_options: Any) -> Any:
        progress(500, 1200)
        raise KeyboardInterrupt

    monkeypatch.setattr("durableflow.management.verbs.purge.purge", interrupted)
    done = called("purge")
    assert (done.status, done.out) == (130, "")
    assert "Interrupted after 500 or some more" in done.err
