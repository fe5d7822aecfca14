"""Is due work executed, and by whom? A read model without HTML (design 11; cases OPS-12, OPS-14).

It asks the tables alone, so it tells the same whatever executes workflows: a cluster here, one on another machine,
Celery, or the minute fallback. The number of its queries, and what each of them reads, does not grow with the tables.
"""

from durableflow.health.check import check, glance
from durableflow.health.state import (
    CLUSTER_TERMS,
    DRAIN_TERMS,
    MOST_COUNTED,
    MOST_LISTED,
    Blocked,
    Due,
    Health,
    Level,
    Process,
    Reason,
    Terms,
)

__all__ = [
    "CLUSTER_TERMS",
    "DRAIN_TERMS",
    "MOST_COUNTED",
    "MOST_LISTED",
    "Blocked",
    "Due",
    "Health",
    "Level",
    "Process",
    "Reason",
    "Terms",
    "check",
    "glance",
]
