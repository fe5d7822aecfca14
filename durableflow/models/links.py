"""Links on which one person decides one wait (design 8, case SEC-06)."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.core import signing
from django.urls import NoReverseMatch, reverse

from durableflow.core import clock
from durableflow.core.conf import get_settings
from durableflow.core.durations import Duration, parse_duration

SALT = "durableflow.decide"
ROUTES = ("durableflow:decide", "durableflow-api:decide")


class LinkContent(NamedTuple):
    """What a link says: which pending event, for whom (primary key as text), until when (seconds since the epoch)."""

    pending_event: int
    user: str
    until: float


class BadLink(ValueError):
    """The link is no link of ours, or was changed. It shows nothing (403)."""


class ExpiredLink(BadLink):
    """The link was good and its time is over (410)."""


def decision_url(pending: Any, user: Any, expires: Duration) -> str:
    """See ``PendingEvent.decision_url``. Raises TypeError for what is no stored user."""
    if getattr(user, "pk", None) is None:
        raise TypeError(f"decision_url() needs the user who shall decide, not {user!r}.")
    seconds = parse_duration(expires, what="expires", positive=True).total_seconds()
    token = signing.dumps([pending.pk, str(user.pk), int(clock.host_now().timestamp() + seconds)], salt=SALT)
    return get_settings().BASE_URL.rstrip("/") + _path(token)


def _path(token: str) -> str:
    for route in ROUTES:
        try:
            return reverse(route, args=[token])
        except NoReverseMatch:
            continue
    raise RuntimeError(
        'decision_url() needs its page: add path("durableflow/", include("durableflow.pages.urls")) to the URLs.'
    )


def read(token: str) -> LinkContent:
    """Check a link's token. Raises BadLink or ExpiredLink."""
    try:
        pending, user, until = signing.loads(token, salt=SALT)
    except (signing.BadSignature, ValueError, TypeError) as error:
        raise BadLink("This link is not valid.") from error
    if clock.host_now().timestamp() > until:
        raise ExpiredLink("This link has expired.")
    return LinkContent(pending, user, until)
