"""Verbs over many rows, and the purge (api.md ``durableflow.operations``)."""

from __future__ import annotations

from durableflow.operations.bulk import (
    bulk_delete,
    bulk_pause,
    bulk_restart,
    bulk_resume,
    bulk_retry,
    bulk_terminate,
)
from durableflow.operations.purge import purge
from durableflow.operations.report import BulkReport, Purged, PurgeReport, Reason

__all__ = [
    "BulkReport",
    "PurgeReport",
    "Purged",
    "Reason",
    "bulk_delete",
    "bulk_pause",
    "bulk_restart",
    "bulk_resume",
    "bulk_retry",
    "bulk_terminate",
    "purge",
]
