"""A status as icon and text, never as colour alone (style 2.2, accessibility)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from django.utils.html import format_html
from django.utils.safestring import SafeString

from durableflow.core.statuses import PendingStatus, Status, StepStatus


class Look(NamedTuple):
    """How a status is drawn: one character, and a tone of ``admin.css``."""

    icon: str
    tone: str


TEXT = "\ufe0e"  # draw the character before it as text, not as a coloured picture

LOOKS: Final[dict[str, Look]] = {
    Status.QUEUED: Look("○", "idle"),
    Status.RUNNING: Look(f"▶{TEXT}", "busy"),
    Status.WAITING: Look("◔", "idle"),
    Status.WAITING_FOR_PAUSE: Look("‖", "idle"),
    Status.PAUSED: Look("‖", "warn"),
    Status.ROLLING_BACK: Look("↺", "warn"),
    Status.COMPLETE: Look("✓", "good"),
    Status.ERRORED: Look("✕", "bad"),
    Status.TERMINATED: Look("■", "off"),
    StepStatus.PENDING: Look("◔", "idle"),
    StepStatus.STARTED: Look(f"▶{TEXT}", "busy"),
    StepStatus.FAILED: Look("✕", "bad"),
    StepStatus.CANCELLED: Look("■", "off"),
    PendingStatus.OPEN: Look("◔", "busy"),
    PendingStatus.RECEIVED: Look("✓", "good"),
    PendingStatus.TIMED_OUT: Look("!", "warn"),
}


def badge(status: str, label: Any) -> SafeString:
    """The badge of an instance, a step or a pending event. ``label``: what people call the status."""
    look = LOOKS.get(status, Look("○", "idle"))
    return toned(look.icon, look.tone, label)


def toned(icon: str, tone: str, label: Any) -> SafeString:
    """A badge with an icon of its own."""
    return format_html('<span class="df-badge df-{}"><span aria-hidden="true">{}</span> {}</span>', tone, icon, label)
