"""What was found, as programs get it: the same for the command line and REST."""

from __future__ import annotations

from typing import Any

from durableflow.health.state import Health


def as_dict(found: Health) -> dict[str, Any]:
    """Plain JSON. Durations are seconds before the check; counts above ``most_counted`` mean: more than that."""
    due = found.oldest_due
    return {
        "status": str(found.status),
        "reasons": [{"level": str(each.level), "code": each.code, "text": each.text} for each in found.reasons],
        "oldest_due": None
        if due is None
        else {"workflow": due.workflow, "instance_id": due.instance_id, "seconds": round(due.seconds, 3)},
        "overdue": found.overdue,
        "workers": found.workers,
        "busy": found.busy,
        "last_seen": _seconds(found.last_seen),
        "last_claim": _seconds(found.last_claim),
        "undelivered": _seconds(found.undelivered),
        "blocked": found.blocked,
        "blocked_latest": [
            {"workflow": each.workflow, "instance_id": each.instance_id, "reason": each.reason}
            for each in found.blocked_latest
        ],
        "holds": {str(reason): count for reason, count in found.holds.items()},
        "processes": [
            {
                "kind": str(each.kind),
                "host": each.host,
                "pid": each.pid,
                "workers": each.workers,
                "busy": each.busy,
                "version": each.version,
                "started": _seconds(each.started),
                "seen": _seconds(each.seen),
                "last_claim": _seconds(each.last_claim),
            }
            for each in found.live
        ],
    }


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
