"""Figures from samples: plain Python, shared with the peers, which run in an environment of their own."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """``p50_ms`` and ``p95_ms`` of samples in milliseconds."""
    if not values:
        raise ValueError("No samples: percentiles need at least one.")
    ordered = sorted(values)
    return {
        "p50_ms": round(statistics.median(ordered), 1),
        "p95_ms": round(ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))], 1),
    }


def median(values: Sequence[float], digits: int = 3) -> float:
    """The median, rounded."""
    return round(statistics.median(values), digits)
