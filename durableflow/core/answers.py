"""What waits return to a workflow: an event, or a person's decision (api.md)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Event:
    """What ``wait_for_event`` returns: the event that was consumed. ``sent_by`` is the sender's name, '' for code
    without a user."""

    type: str
    payload: Any
    sent_at: datetime
    sent_by: str

    def to_stored(self) -> dict[str, Any]:
        """The value that the journal keeps."""
        return {"type": self.type, "payload": self.payload, "sent_at": self.sent_at, "sent_by": self.sent_by}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What ``wait_for_approval`` returns, and ``decide()`` too. ``bool(decision)`` is ``approved``.

    ``data``: the form's cleaned data or None. ``by``: name of the person ('' for trusted code), ``by_id`` the primary
    key. ``via``: the door (code, admin, api, link). ``at``: when it was made.
    """

    approved: bool
    data: Any
    comment: str
    by: str
    by_id: Any
    via: str
    at: datetime

    def __bool__(self) -> bool:
        return self.approved

    def to_stored(self) -> dict[str, Any]:
        """The value that the inbox and the journal keep."""
        return {
            "approved": self.approved,
            "data": self.data,
            "comment": self.comment,
            "by": self.by,
            "by_id": self.by_id,
            "via": self.via,
            "at": self.at,
        }
